"""The live half of a run: topics, clients, warm-up, steady, faults, recovery, and the last look at the log.

Phases are marked as they really happened; what the plan wanted is in the timeline.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from aftershock.errors import FaultError
from aftershock.faults.runtime import abort
from aftershock.faults.runtime.executor import execute
from aftershock.faults.runtime.world import World
from aftershock.faults.timeline.timeline import Marks, Timeline, phases
from aftershock.harness.cluster.target import Target
from aftershock.harness.run import collect
from aftershock.harness.run.assignments import Surroundings, assignments
from aftershock.harness.run.client_processes import Crew
from aftershock.harness.run.collect import Reading, Sampler, calibrate
from aftershock.harness.run.progress import ArmStatus, Progress, Status, p99_ms
from aftershock.harness.run.rundir import RunClock, RunDir
from aftershock.harness.safety.heal import advise
from aftershock.harness.safety.journal import Journal
from aftershock.harness.world.world import world_of
from aftershock.workloads.load.fleet import Fleet
from aftershock.workloads.load.logread import EndOffsets, Topic
from aftershock.workloads.load.warmup import settled

T = TypeVar("T")
_START_DEADLINE_S = 30.0
_LEAD_US = 300_000  # between telling the clients to go and their first record
_LOOK_AT_WARMUP_US = 500_000


async def drive(
    timeline: Timeline,
    cluster: Target,
    home: RunDir,
    spool: Path,
    clock: RunClock,
    progress: Progress,
    java: tuple[str, ...],
    *,
    rehearse: bool,
) -> None:
    """Drive the load and the faults against a ready cluster; the evidence is in ``home`` and ``spool`` afterwards.

    ``java`` is the command that starts Kafka's own clients, empty when no arm wants them.

    Raises:
        PlanError: an SLO is finer than the host can measure; nothing was sent.
        WorkloadError: a client process died.
        FaultError: a fault could not be healed.
    """
    topics, begin = await asyncio.to_thread(cluster.provide, timeline.topics)
    around = Surroundings(
        home.run_id,
        clock.origin_ns,
        spool,
        home.path / "events.jsonl",
        topics,
        cluster.broker_racks,
        begin,
        java,
    )
    crew = assignments(timeline, cluster, around)
    home.tell(
        producers=[
            {"producer_id": each.producer_id, "workload": each.workload, "arm": each.arm}
            for each in crew
            if each.op == "produce"
        ],
        topics=_topics_told(cluster, topics),
        voters=list(cluster.voters),
        **cluster.whereabouts(),
    )
    world = world_of(cluster, Crew(home.run_id, spool))
    await calibrate(home, timeline.slo, world, clock)
    journal = Journal(home.path / "journal.jsonl", clock)
    fleet = Fleet(crew, home.path / "logs")
    act = _Act(timeline, cluster, world, home, clock, progress, fleet, journal, tuple(topics.values()), begin)
    try:
        async with Sampler(home.path / "metrics", clock, act.counters), act.fleet:
            async with progress.following(act.status):
                await act.fleet.start(_START_DEADLINE_S)
                await _unless(_watched(act.fleet, cluster), act.play(rehearse=rehearse))
            await act.close()
    finally:
        journal.close()


class _Act:
    """The load from its first record to its last, with the phase it is in."""

    def __init__(
        self,
        timeline: Timeline,
        cluster: Target,
        world: World,
        home: RunDir,
        clock: RunClock,
        progress: Progress,
        fleet: Fleet,
        journal: Journal,
        topics: Sequence[Topic],
        begin: EndOffsets,
    ) -> None:
        self._topics = topics
        self._begin = begin
        self._timeline = timeline
        self._cluster = cluster
        self._world = world
        self._home = home
        self._clock = clock
        self._progress = progress
        self.fleet = fleet
        self._journal = journal
        self._phase = "starting clients"
        self._load_start_us = clock.now_us()

    def status(self) -> Status:
        """What is going on now."""
        arms = [
            ArmStatus(
                f"{p.workload}/{p.arm} {p.op}",
                p.sent if p.op != "consume" else None,
                p.ok,
                p.failed + p.in_doubt,
                p99_ms(p.window_us),
            )
            for p in self.fleet.progress().values()
        ]
        elapsed_s = max(0, self._clock.now_us() - self._load_start_us) / 1e6
        return Status(self._phase, elapsed_s, self._journal.open_faults(), arms)

    def counters(self) -> list[Reading]:
        """Bytes over each link: Toxiproxy counts those that closed, clients those that last; and fetches."""
        readings = [
            Reading(node, f"toxiproxy.received_bytes/{proxy}/{stream}", count)
            for (proxy, node, stream), count in self._cluster.proxy_bytes().items()
        ]
        for worker, told in self.fleet.progress().items():
            for broker, (sent, received) in told.traffic.items():
                link = f"client_{told.rack}-k{broker}/{worker}"
                readings.append(Reading(broker, f"client.sent_bytes/{link}", sent))
                readings.append(Reading(broker, f"client.received_bytes/{link}", received))
            readings += [Reading(None, f"client.{name}/{worker}", count) for name, count in told.counts.items()]
        return readings

    async def play(self, *, rehearse: bool) -> None:
        """Warm-up, steady, faults, recovery; returns when the last record has its final status."""
        timing = self._timeline.timing
        self._load_start_us = self._clock.now_us() + _LEAD_US
        await self.fleet.go(self._load_start_us)
        self._enter("warmup")
        await self._warm_up()
        steady_start_us = self._clock.now_us()
        self._enter("steady")
        await self._account()
        await self._clock.sleep_until_us(steady_start_us + timing.steady_ms * 1000)
        await self._account()
        faults_start_us = load_end_us = self._clock.now_us()
        if self._timeline.steps:
            self._enter("fault")
            await self._break(rehearse=rehearse)
            self._enter("recovery")
            now = Marks(self._load_start_us, steady_start_us, faults_start_us, self._clock.now_us())
            load_end_us = self._load_end_us(now)
        await self._clock.sleep_until_us(load_end_us)
        self._enter("ending")
        await self.fleet.stop(load_end_us)
        self._mark(Marks(self._load_start_us, steady_start_us, faults_start_us, load_end_us))

    async def _account(self) -> None:
        """What each broker has used, at both ends of the steady part: to look each second costs too much."""
        used = await asyncio.to_thread(self._cluster.used)
        brokers = {str(broker): each._asdict() for broker, each in used.items()}
        self._home.event(self._clock.now_us(), "broker_used", brokers=brokers)

    async def _break(self, *, rehearse: bool) -> None:
        """The faults, till they are over or the plan says stop: then all of them are undone at once."""
        say = self._progress.say
        faults = execute(self._timeline, self._world, self._journal, self._clock, say, rehearse=rehearse)
        conditions = [abort.parse(text) for text in self._timeline.abort]
        if not conditions:
            await self._advised(faults)
            return
        watch = abort.Watch(conditions, [topic.name for topic in self._topics], self._world, self._clock)
        met = None
        try:
            await _unless(watch.keep(), self._advised(faults))
        except abort.Met as error:
            met = str(error)
            say(f"aborted, as the plan asks: {met}")
        self._home.tell(abort={"looks": watch.looks, "met": met})

    async def _advised(self, faults: Coroutine[None, None, None]) -> None:
        """Await them; what could not be healed is said with what to type."""
        try:
            await faults
        except FaultError as error:
            advise(error, self._journal.lines, self._cluster)
            raise

    async def close(self) -> None:
        """Read what the topics hold, let the consumers read as far, and end the clients."""
        cluster, home, say = self._cluster, self._home.path, self._progress.say
        ends = await collect.read_topics(cluster, self._topics, self._begin, home, say)
        await collect.read_commits(cluster, self._timeline, home, say)
        missing = await self.fleet.drain(ends, collect.READ_DEADLINE_S)
        for worker, partitions in missing.items():
            say(f"{worker} did not read to the end of {sorted(partitions)}")
        await self.fleet.quit()
        if left := await collect.sessions_left(cluster, home):
            self._home.event(self._clock.now_us(), "fetch_sessions_left", **left)

    async def _warm_up(self) -> None:
        """Wait until latency has stopped drifting, or the plan's limit is reached."""
        timing = self._timeline.timing
        earliest_us = self._load_start_us + timing.warmup_min_ms * 1000
        latest_us = self._load_start_us + timing.warmup_max_ms * 1000
        await self._clock.sleep_until_us(earliest_us)
        while not (now := settled(self.fleet.medians_us())).ok and self._clock.now_us() < latest_us:
            await self._clock.sleep_until_us(min(latest_us, self._clock.now_us() + _LOOK_AT_WARMUP_US))
        after_ms = (self._clock.now_us() - self._load_start_us) // 1000
        self._home.tell(warmup={"settled": now.ok, "after_ms": after_ms, "why": now.why})
        self._progress.say(f"warm-up {'over' if now.ok else 'NOT settled'} after {after_ms / 1000:.1f} s: {now.why}")

    def _load_end_us(self, marks: Marks) -> int:
        """``recovery`` after the last fault's window, or from now where no fault could be injected."""
        windows = [p.end_us for p in phases(self._journal.lines, marks, self._timeline) if p.name == "fault"]
        return max(windows, default=marks.load_end_us) + self._timeline.timing.recovery_ms * 1000

    def _mark(self, marks: Marks) -> None:
        cut = phases(self._journal.lines, marks, self._timeline)
        self._home.write_json("phases.json", [phase.as_json() for phase in cut])
        self._home.tell(marks=marks.as_json())

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._home.event(self._clock.now_us(), "phase", phase=phase)
        elapsed_s = max(0, self._clock.now_us() - self._load_start_us) / 1e6
        self._progress.say(f"{elapsed_s:5.0f} s  {phase}")


def _topics_told(cluster: Target, topics: Mapping[str, Topic]) -> list[dict[str, Any]]:
    """The topics as ``run.json`` has them, with the replicas of each partition as they are before the first fault."""
    placed: dict[str, dict[int, list[int]]] = {}
    for state in cluster.admin.partitions(list(topics)):
        placed.setdefault(state.topic, {})[state.partition] = list(state.replicas)
    return [asdict(topic) | {"assignment": placed.get(topic.name, {})} for topic in topics.values()]


async def _watched(fleet: Fleet, cluster: Target) -> NoReturn:
    """Raise as soon as a client ends that wasn't told to, or the proxy that all of them pass."""
    if cluster.wire_proxy is None:
        await fleet.watch()
    else:
        await _unless(fleet.watch(), cluster.wire_proxy.watch())


async def _unless(failing: Coroutine[None, None, NoReturn], work: Coroutine[None, None, T]) -> T:
    """The result of ``work``, unless ``failing`` raises first: then ``work`` is cancelled, and that is raised."""
    watch, task = asyncio.ensure_future(failing), asyncio.ensure_future(work)
    try:
        await asyncio.wait((watch, task), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (watch, task):
            each.cancel()
        await asyncio.gather(watch, task, return_exceptions=True)
    if not task.cancelled():
        return task.result()
    return watch.result()

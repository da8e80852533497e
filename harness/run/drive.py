"""Live half of a run: topics, clients, warm-up, steady, faults, recovery, and a last reading of the cluster.

Phases are marked with the times at which they really began; the planned times are in the timeline.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn, TypeVar

from aftershock.errors import FaultError
from aftershock.faults.runtime import abort
from aftershock.faults.runtime.executor import execute
from aftershock.faults.runtime.world import World
from aftershock.faults.timeline.timeline import Marks, Timeline, phases
from aftershock.harness.cluster.target import Target
from aftershock.harness.run import collect
from aftershock.harness.run.assignments import RunContext, assignments
from aftershock.harness.run.client_processes import ClientProcesses
from aftershock.harness.run.collect import Reading, Sampler, calibrate
from aftershock.harness.run.progress import ArmStatus, Progress, Status, p99_ms
from aftershock.harness.run.rundir import RunClock, RunDir
from aftershock.harness.safety.heal import advise
from aftershock.harness.safety.journal import Journal
from aftershock.harness.world.world import world_of
from aftershock.workloads.load.fleet import Fleet
from aftershock.workloads.load.logread import EndOffsets, Topic
from aftershock.workloads.load.warmup import judge_warmup

T = TypeVar("T")
_START_DEADLINE_S = 30.0
_LEAD_US = 300_000  # from the order to start until the first record
_WARMUP_PERIOD_US = 500_000


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

    ``java`` is the command that starts Kafka's own clients, empty if no arm needs them.

    Raises:
        PlanError: an SLO is finer than the host can measure; nothing was sent.
        WorkloadError: a client process died.
        FaultError: a fault could not be healed.
    """
    topics, begin = await asyncio.to_thread(cluster.provide, timeline.topics)
    context = RunContext(
        home.run_id,
        clock.origin_ns,
        spool,
        home.path / "events.jsonl",
        topics,
        cluster.broker_racks,
        begin,
        java,
    )
    clients = assignments(timeline, cluster, context)
    # the replicas of each partition before the first fault
    replicas: dict[str, dict[int, list[int]]] = {}
    for state in cluster.admin.partitions(list(topics)):
        replicas.setdefault(state.topic, {})[state.partition] = list(state.replicas)
    home.update(
        producers=[
            {"producer_id": client.producer_id, "workload": client.workload, "arm": client.arm}
            for client in clients
            if client.op == "produce"
        ],
        topics=[asdict(topic) | {"assignment": replicas.get(topic.name, {})} for topic in topics.values()],
        voters=list(cluster.voters),
        **cluster.describe(),
    )
    world = world_of(cluster, ClientProcesses(home.run_id, spool))
    await calibrate(home, timeline.slo, world, clock)
    journal = Journal(home.path / "journal.jsonl", clock)
    fleet = Fleet(clients, home.path / "logs")
    run = _LiveRun(timeline, cluster, world, home, clock, progress, fleet, journal, tuple(topics.values()), begin)
    try:
        async with Sampler(home.path / "metrics", clock, run.counters), fleet:
            async with progress.following(run.status):
                await fleet.start(_START_DEADLINE_S)
                await _race(_watch_processes(fleet, cluster), run.play(rehearse=rehearse))
            await run.close()
    finally:
        journal.close()


class _LiveRun:
    """The load from its first record to its last, with its current phase."""

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
        self._fleet = fleet
        self._journal = journal
        self._phase = "starting clients"
        self._load_start_us = clock.now_us()

    def status(self) -> Status:
        """Return the current state for the progress display."""
        arms = [
            ArmStatus(
                f"{p.workload}/{p.arm} {p.op}",
                p.sent if p.op != "consume" else None,
                p.ok,
                p.failed + p.in_doubt,
                p99_ms(p.window_us),
            )
            for p in self._fleet.progress().values()
        ]
        elapsed_s = max(0, self._clock.now_us() - self._load_start_us) / 1e6
        return Status(self._phase, elapsed_s, self._journal.open_faults(), arms)

    def counters(self) -> list[Reading]:
        """Read bytes over each link, and fetches.

        Toxiproxy counts the bytes of closed connections, the clients count the bytes of open ones.
        """
        readings = [
            Reading(node, f"toxiproxy.received_bytes/{proxy}/{stream}", count)
            for (proxy, node, stream), count in self._cluster.proxy_bytes().items()
        ]
        for worker, progress in self._fleet.progress().items():
            for broker, (sent, received) in progress.traffic.items():
                link = f"client_{progress.rack}-k{broker}/{worker}"
                readings.append(Reading(broker, f"client.sent_bytes/{link}", sent))
                readings.append(Reading(broker, f"client.received_bytes/{link}", received))
            readings += [Reading(None, f"client.{name}/{worker}", count) for name, count in progress.counts.items()]
        return readings

    async def play(self, *, rehearse: bool) -> None:
        """Run warm-up, steady, faults and recovery; return when the last record has its final status."""
        timing = self._timeline.timing
        self._load_start_us = self._clock.now_us() + _LEAD_US
        await self._fleet.go(self._load_start_us)
        self._enter("warmup")
        await self._warm_up()
        steady_start_us = self._clock.now_us()
        self._enter("steady")
        await self._record_usage()
        await self._clock.sleep_until_us(steady_start_us + timing.steady_ms * 1000)
        await self._record_usage()
        faults_start_us = load_end_us = self._clock.now_us()
        if self._timeline.steps:
            self._enter("fault")
            await self._run_faults(rehearse=rehearse)
            self._enter("recovery")
            marks = Marks(self._load_start_us, steady_start_us, faults_start_us, self._clock.now_us())
            # `recovery` counts from the end of the last fault window, or from now if no fault was injected
            windows = [p.end_us for p in phases(self._journal.lines, marks, self._timeline) if p.name == "fault"]
            load_end_us = max(windows, default=marks.load_end_us) + timing.recovery_ms * 1000
        await self._clock.sleep_until_us(load_end_us)
        self._enter("ending")
        await self._fleet.stop(load_end_us)
        marks = Marks(self._load_start_us, steady_start_us, faults_start_us, load_end_us)
        phase_list = phases(self._journal.lines, marks, self._timeline)
        self._home.write_json("phases.json", [phase.as_json() for phase in phase_list])
        self._home.update(marks=marks.as_json())

    async def _warm_up(self) -> None:
        """Wait until latency has stopped drifting, or the plan's limit is reached."""
        timing = self._timeline.timing
        earliest_us = self._load_start_us + timing.warmup_min_ms * 1000
        latest_us = self._load_start_us + timing.warmup_max_ms * 1000
        await self._clock.sleep_until_us(earliest_us)
        while not (now := judge_warmup(self._fleet.medians_us())).ok and self._clock.now_us() < latest_us:
            await self._clock.sleep_until_us(min(latest_us, self._clock.now_us() + _WARMUP_PERIOD_US))
        after_ms = (self._clock.now_us() - self._load_start_us) // 1000
        self._home.update(warmup={"settled": now.ok, "after_ms": after_ms, "why": now.why})
        result = "complete" if now.ok else "NOT settled"
        self._progress.log(f"warm-up {result} after {after_ms / 1000:.1f} s: {now.why}")

    async def _record_usage(self) -> None:
        """Record the resource use of each broker.

        Resource use is read only at both ends of the steady phase, because a reading each second costs too much.
        """
        usage = await asyncio.to_thread(self._cluster.usage)
        brokers = {str(broker): used._asdict() for broker, used in usage.items()}
        self._home.event(self._clock.now_us(), "broker_used", brokers=brokers)

    async def _run_faults(self, *, rehearse: bool) -> None:
        """Run the faults to their end. If an abort condition of the plan becomes true, undo all faults at once."""
        log = self._progress.log

        async def run_steps() -> None:
            try:
                await execute(self._timeline, self._world, self._journal, self._clock, log, rehearse=rehearse)
            except FaultError as error:
                advise(error, self._journal.lines, self._cluster)
                raise

        conditions = [abort.parse(text) for text in self._timeline.abort]
        if not conditions:
            await run_steps()
            return
        watch = abort.AbortWatch(conditions, [topic.name for topic in self._topics], self._world, self._clock)
        met = None
        try:
            await _race(watch.keep(), run_steps())
        except abort.AbortConditionMet as error:
            met = str(error)
            log(f"aborted, as the plan asks: {met}")
        self._home.update(abort={"looks": watch.looks, "met": met})

    async def close(self) -> None:
        """Read the topics to their ends, let the consumers catch up to there, and stop the clients."""
        cluster, home, log = self._cluster, self._home.path, self._progress.log
        ends = await collect.read_topics(cluster, self._topics, self._begin, home, log)
        await collect.read_commits(cluster, self._timeline, home, log)
        missing = await self._fleet.drain(ends, collect.READ_DEADLINE_S)
        for worker, partitions in missing.items():
            log(f"{worker} did not read to the end of {sorted(partitions)}")
        await self._fleet.quit()
        if session_counts := await collect.open_fetch_sessions(cluster, home):
            self._home.event(self._clock.now_us(), "fetch_sessions_left", **session_counts)

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._home.event(self._clock.now_us(), "phase", phase=phase)
        elapsed_s = max(0, self._clock.now_us() - self._load_start_us) / 1e6
        self._progress.log(f"{elapsed_s:5.0f} s  {phase}")


async def _watch_processes(fleet: Fleet, cluster: Target) -> NoReturn:
    """Raise as soon as a client ends that was not stopped, or the wire proxy that all clients pass."""
    if cluster.wire_proxy is None:
        await fleet.watch()
    else:
        await _race(fleet.watch(), cluster.wire_proxy.watch())


async def _race(failing: Coroutine[None, None, NoReturn], work: Coroutine[None, None, T]) -> T:
    """Return the result of ``work``; if ``failing`` raises first, cancel ``work`` and raise that error."""
    watch, task = asyncio.ensure_future(failing), asyncio.ensure_future(work)
    try:
        await asyncio.wait((watch, task), return_when=asyncio.FIRST_COMPLETED)
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(watch, task, return_exceptions=True)
    if not task.cancelled():
        return task.result()
    return watch.result()

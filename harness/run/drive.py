"""Live half of a run: topics, clients, warm-up, steady, faults, recovery, and the final reading of the cluster.

Phase marks are measured times; the timeline holds the planned times.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
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
_LEAD_US = 300_000  # from the start command to the first record
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
    """Drive the load and the faults against a ready cluster, and leave the evidence in ``home`` and ``spool``.

    ``java`` is the command that starts Kafka's own clients, empty if no arm needs them.

    Raises:
        PlanError: an SLO is finer than the host can measure; nothing was sent.
        WorkloadError: a client process died.
        FaultError: a fault could not be healed.
    """
    topics, begin = await asyncio.to_thread(cluster.provide, timeline.topics)
    events = home.path / "events.jsonl"
    context = RunContext(home.run_id, clock.origin_ns, spool, events, topics, cluster.broker_racks, begin, java)
    clients = assignments(timeline, cluster, context)
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


@dataclass
class _LiveRun:
    """The load from its first record to its last, with its current phase."""

    timeline: Timeline
    cluster: Target
    world: World
    home: RunDir
    clock: RunClock
    progress: Progress
    fleet: Fleet
    journal: Journal
    topics: Sequence[Topic]
    begin: EndOffsets
    phase: str = "starting clients"

    def __post_init__(self) -> None:
        self.load_start_us = self.clock.now_us()

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
            for p in self.fleet.progress().values()
        ]
        elapsed_s = max(0, self.clock.now_us() - self.load_start_us) / 1e6
        return Status(self.phase, elapsed_s, self.journal.open_faults(), arms)

    def counters(self) -> list[Reading]:
        """Read the bytes of each link, and the fetches.

        Toxiproxy counts the bytes of closed connections only; the clients also count open connections.
        """
        readings = [
            Reading(node, f"toxiproxy.received_bytes/{proxy}/{stream}", count)
            for (proxy, node, stream), count in self.cluster.proxy_bytes().items()
        ]
        for worker, progress in self.fleet.progress().items():
            for broker, (sent, received) in progress.traffic.items():
                link = f"client_{progress.rack}-k{broker}/{worker}"
                readings.append(Reading(broker, f"client.sent_bytes/{link}", sent))
                readings.append(Reading(broker, f"client.received_bytes/{link}", received))
            readings += [Reading(None, f"client.{name}/{worker}", count) for name, count in progress.counts.items()]
        return readings

    async def play(self, *, rehearse: bool) -> None:
        """Run warm-up, steady, faults and recovery; return when the last record has its final status.

        The warm-up ends when latency stops drifting, or at the plan's limit.
        """
        timing = self.timeline.timing
        self.load_start_us = self.clock.now_us() + _LEAD_US
        await self.fleet.go(self.load_start_us)
        self._enter("warmup")
        latest_us = self.load_start_us + timing.warmup_max_ms * 1000
        await self.clock.sleep_until_us(self.load_start_us + timing.warmup_min_ms * 1000)
        while not (warmup := judge_warmup(self.fleet.medians_us())).ok and self.clock.now_us() < latest_us:
            await self.clock.sleep_until_us(min(latest_us, self.clock.now_us() + _WARMUP_PERIOD_US))
        after_ms = (self.clock.now_us() - self.load_start_us) // 1000
        self.home.update(warmup={"settled": warmup.ok, "after_ms": after_ms, "why": warmup.why})
        result = "complete" if warmup.ok else "NOT settled"
        self.progress.log(f"warm-up {result} after {after_ms / 1000:.1f} s: {warmup.why}")

        steady_start_us = self.clock.now_us()
        self._enter("steady")
        await self._record_usage()
        await self.clock.sleep_until_us(steady_start_us + timing.steady_ms * 1000)
        await self._record_usage()

        faults_start_us = load_end_us = self.clock.now_us()
        if self.timeline.steps:
            self._enter("fault")
            await self._run_faults(rehearse=rehearse)
            self._enter("recovery")
            marks = Marks(self.load_start_us, steady_start_us, faults_start_us, self.clock.now_us())
            # recovery starts at the end of the last fault window, or now if no fault was injected
            windows = [p.end_us for p in phases(self.journal.lines, marks, self.timeline) if p.name == "fault"]
            load_end_us = max(windows, default=marks.load_end_us) + timing.recovery_ms * 1000
        await self.clock.sleep_until_us(load_end_us)
        self._enter("ending")
        await self.fleet.stop(load_end_us)
        marks = Marks(self.load_start_us, steady_start_us, faults_start_us, load_end_us)
        phase_list = phases(self.journal.lines, marks, self.timeline)
        self.home.write_json("phases.json", [phase.as_json() for phase in phase_list])
        self.home.update(marks=marks.as_json())

    async def _record_usage(self) -> None:
        """Record the resource use of each broker, only at the start and the end of steady: the reading is expensive."""
        usage = await asyncio.to_thread(self.cluster.usage)
        brokers = {str(broker): resources._asdict() for broker, resources in usage.items()}
        self.home.event(self.clock.now_us(), "broker_used", brokers=brokers)

    async def _run_faults(self, *, rehearse: bool) -> None:
        """Run the faults to their end; undo all faults at once if an abort condition of the plan becomes true."""
        log = self.progress.log

        async def run_steps() -> None:
            try:
                await execute(self.timeline, self.world, self.journal, self.clock, log, rehearse=rehearse)
            except FaultError as error:
                advise(error, self.journal.lines, self.cluster)
                raise

        conditions = [abort.parse(text) for text in self.timeline.abort]
        if not conditions:
            await run_steps()
            return
        watch = abort.AbortWatch(conditions, [topic.name for topic in self.topics], self.world, self.clock)
        reason = None
        try:
            await _race(watch.keep(), run_steps())
        except abort.AbortConditionMet as error:
            reason = str(error)
            log(f"aborted by the plan's abort condition: {reason}")
        self.home.update(abort={"looks": watch.looks, "met": reason})

    async def close(self) -> None:
        """Read the topics to their ends, let the consumers catch up to there, and stop the clients."""
        cluster, home, log = self.cluster, self.home.path, self.progress.log
        ends = await collect.read_topics(cluster, self.topics, self.begin, home, log)
        await collect.read_commits(cluster, self.timeline, home, log)
        missing = await self.fleet.drain(ends, collect.READ_DEADLINE_S)
        for worker, partitions in missing.items():
            log(f"{worker} did not read to the end of {sorted(partitions)}")
        await self.fleet.quit()
        if session_counts := await collect.open_fetch_sessions(cluster, home):
            self.home.event(self.clock.now_us(), "fetch_sessions_left", **session_counts)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.home.event(self.clock.now_us(), "phase", phase=phase)
        elapsed_s = max(0, self.clock.now_us() - self.load_start_us) / 1e6
        self.progress.log(f"{elapsed_s:5.0f} s  {phase}")


async def _watch_processes(fleet: Fleet, cluster: Target) -> NoReturn:
    """Raise as soon as the wire proxy, or a client that was not stopped, ends."""
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

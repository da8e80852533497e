"""Live run from the warm-up to the final reads: phases of the load, faults, status display and recorded counters."""

import asyncio
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from aftershock.errors import AftershockError, FaultError, Log
from aftershock.faults.runtime import abort
from aftershock.faults.targets.values import TopicPartition
from aftershock.faults.targets.world import World
from aftershock.faults.timeline.executor import execute
from aftershock.faults.timeline.timeline import Marks, Timeline, phases
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.assignments import group_names, has_service_containers
from aftershock.harness.cluster.target import Target
from aftershock.harness.kafka.batches import read_batches, wait_until_stable
from aftershock.harness.kafka.groups import sessions_after_run
from aftershock.harness.kafka.replicas import SHARE_STATE, read_committed, read_replicas
from aftershock.harness.lifecycle.heal import advise
from aftershock.harness.run.leaders import LeaderRecorder
from aftershock.harness.run.pipes import SETTLE_LIMIT_US, PipeArm, pipe_arms, settle
from aftershock.harness.run.progress import ArmStatus, Progress, Status, p99_ms
from aftershock.harness.run.recording import Reading
from aftershock.harness.run.stable_offsets import recorded_topics
from aftershock.harness.safety.journal import Journal
from aftershock.harness.safety.ownership import remove_services
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.names import OFFSETS_TOPIC, topic_names
from aftershock.results.evidence.files import read_lines
from aftershock.results.evidence.outages import CLIENT_DIED, IDENTITY
from aftershock.results.evidence.transactions import (
    OPEN_TRANSACTIONS,
    RETURN_MS,
    open_transactions_ms,
    timeouts_ms,
)
from aftershock.workloads.load import process
from aftershock.workloads.load.assignment import Assignment
from aftershock.workloads.load.events import Reported
from aftershock.workloads.load.fleet import DRAIN_LIMIT_S, PIPES, Fleet
from aftershock.workloads.load.logread import EndOffsets, ReadLimit, RecordFormat, Topic, end_offsets, read_log
from aftershock.workloads.load.warmup import judge_warmup

T = TypeVar("T")
READ_IDLE_S = 30.0
AFTER_FAULT_US = 61_000_000
"""Time after the last fault in which a consumer need not read on, a second more than the judge's ``RECOVERY_US``."""
_LEAD_US = 300_000  # from the start command to the first record
_WARMUP_PERIOD_US = 500_000


@dataclass
class LiveRun:
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
    leaders: LeaderRecorder
    phase: str = "starting clients"
    end_us: int | None = None  # planned end of the load
    steady_start_us: int | None = None
    rows: int | None = None  # on the disk
    reading: tuple[ReadLimit, int] | None = None  # final read, and the records that it has to read

    def __post_init__(self) -> None:
        self.load_start_us = self.clock.now_us()

    def saved(self, rows: int, before_us: int) -> None:
        self.rows = rows
        self.home.event(self.clock.now_us(), "saved", rows=rows, before_us=before_us)

    def status(self) -> Status:
        by_arm: dict[str, list[process.Progress]] = {}
        for worker in self.fleet.progress().values():
            by_arm.setdefault(f"{worker.workload}/{worker.arm} {worker.op}", []).append(worker)
        arms = [
            ArmStatus(
                name,
                None if workers[0].op in ("consume", "pipe") else sum(worker.sent for worker in workers),
                sum(worker.ok for worker in workers),
                sum(worker.failed + worker.in_doubt for worker in workers),
                p99_ms([latency_us for worker in workers for latency_us in worker.window_us]),
            )
            for name, workers in by_arm.items()
        ]
        now_us = self.clock.now_us()
        phase, left_s, worst = self.phase, None, None
        if self.end_us is not None:
            left_s = max(0, self.end_us - now_us) / 1e6
        if self.reading:
            phase = f"{phase}, {min(self.reading[0].records, self.reading[1]):,} of {self.reading[1]:,} records"
        if self.steady_start_us is not None and (minute := self.fleet.worst_minute(self.steady_start_us)):
            worst = (minute[0] - self.load_start_us) / 1e6, minute[1] / 1000
        return Status(
            phase,
            max(0, now_us - self.load_start_us) / 1e6,
            self.journal.open_faults(),
            arms,
            left_s,
            (len(self.journal.injected), len(self.timeline.steps)),
            worst,
            self.rows,
        )

    def record_reports(self) -> None:
        """Record what each client process reports, and which clients compare the values of records."""
        reports = self.fleet.reports()
        readers = [client for client in self.fleet.assignments if Reported.VALUES in reports.get(client.worker, ())]
        compared = {f"{reader.workload}/{reader.arm}": None for reader in readers}
        self.home.update(reports=reports, values_compared=[*compared, "log"])

    def record_death(self, client: Assignment, death: process.Death) -> None:
        """Record that a client has ended by itself; the run goes on for the others."""
        names = {"workload": client.workload, "arm": client.arm, "op": client.side, "worker": client.worker}
        status = {} if death.status is None else {"status": death.status}
        self.home.event(self.clock.now_us(), CLIENT_DIED, **names, why=death.why, lines=list(death.lines), **status)
        last = f": {death.lines[-1]}" if death.lines else ""
        self.progress.log(f"{client.worker} ended by itself, and the run goes on without it: {death.why}{last}")

    def counters(self) -> list[Reading]:
        """Return the bytes on each link, the CPU time of brokers' requests, and the counters that clients report."""
        # the clients also count bytes, because Toxiproxy counts those of a connection only after the connection closes
        readings = [
            Reading(node, f"toxiproxy.received_bytes/{proxy}/{stream}", count)
            for (proxy, node, stream), count in self.cluster.proxy_bytes().items()
        ]
        used = self.cluster.request_cpu_us().items()
        readings += [Reading(broker, "broker.request_cpu_us", used_us) for broker, used_us in used]
        for worker, progress in self.fleet.progress().items():
            for broker, (sent, received) in progress.traffic.items():
                link = f"client_{progress.rack}-k{broker}/{worker}"
                readings.append(Reading(broker, f"client.sent_bytes/{link}", sent))
                readings.append(Reading(broker, f"client.received_bytes/{link}", received))
            readings += [Reading(None, f"client.{name}/{worker}", count) for name, count in progress.counts.items()]
        return readings + self.observed()

    def observed(self) -> list[Reading]:
        """Return what the wire proxy has counted of each client's fetches, and record what it has seen and held."""
        if self.cluster.wire_proxy is None:
            return []
        self._record_seen(self.cluster.wire_proxy.held())
        if not observes(self.timeline):
            return []
        observed = self.cluster.wire_proxy.observed()
        self._record_seen(observed["events"])
        readings, totals = list[Reading](), Counter[str]()
        for client, broker, counts in observed["counters"]:
            for name, count in counts.items():
                if name in ("sent_bytes", "received_bytes"):
                    readings.append(Reading(broker, f"wire.{name}/k{broker}/{client}", count))
                else:
                    totals[f"wire.{name}/{client}"] += count
        return [*readings, *(Reading(None, name, count) for name, count in totals.items())]

    def _record_seen(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            at_us = (event.pop("at_ns") - self.clock.origin_ns) // 1000
            self.home.event(at_us, event.pop("event"), **event)

    async def play(self, *, rehearse: bool) -> None:
        """Drive the load and the faults from the warm-up to the end; return when no record is in flight.

        The warm-up ends when latency has become stable, or at the plan's time limit for the warm-up. The recorded start
        and end of each phase are measured; the timeline has the planned times.
        """
        timing = self.timeline.timing
        self.load_start_us = self.clock.now_us() + _LEAD_US
        await self.fleet.go(self.load_start_us)
        self._enter("warmup", start_us=self.load_start_us)
        latest_us = self.load_start_us + timing.warmup_max_ms * 1000
        after_warmup_us = (timing.steady_ms + self.timeline.length_ms) * 1000
        self.end_us = latest_us + after_warmup_us
        await self.clock.sleep_until_us(self.load_start_us + timing.warmup_min_ms * 1000)
        while not (warmup := judge_warmup(self.fleet.medians_us())).ok and self.clock.now_us() < latest_us:
            await self.clock.sleep_until_us(min(latest_us, self.clock.now_us() + _WARMUP_PERIOD_US))
        after_ms = (self.clock.now_us() - self.load_start_us) // 1000
        state = {"settled": warmup.ok, "after_ms": after_ms, "why": warmup.why, "unsettled": warmup.unsettled}
        state |= {"silent": warmup.silent} if warmup.silent else {}
        self.home.update(warmup=state)
        result = "complete" if warmup.ok else "NOT settled"
        self.progress.log(f"warm-up {result} after {after_ms / 1000:.1f} s: {warmup.why}")

        self.steady_start_us = steady_start_us = self.clock.now_us()
        self.end_us = steady_start_us + after_warmup_us
        self._enter("steady")
        await self._record_usage()
        # the engine takes 1 to 2 s for a reading, and the second one shall end with the phase
        took_us = self.clock.now_us() - steady_start_us
        steady_end_us = steady_start_us + timing.steady_ms * 1000
        await self.clock.sleep_until_us(steady_end_us - took_us)
        await self._record_usage()
        await self.clock.sleep_until_us(steady_end_us)

        faults_start_us = load_end_us = self.clock.now_us()
        if self.timeline.steps:
            self._enter("fault")
            await self._run_faults(rehearse=rehearse)
            self._enter("recovery")
            marks = Marks(self.load_start_us, steady_start_us, faults_start_us, self.clock.now_us())
            # recovery starts at the end of the last fault window, or now if no fault was injected
            windows = [p.end_us for p in phases(self.journal.lines, marks, self.timeline) if p.name == "fault"]
            load_end_us = max(windows, default=marks.load_end_us) + timing.recovery_ms * 1000
        self.end_us = load_end_us
        await self.clock.sleep_until_us(load_end_us)
        self._enter("ending")
        await self.fleet.stop(load_end_us)
        await self._record_metrics()
        marks = Marks(self.load_start_us, steady_start_us, faults_start_us, load_end_us)
        phase_list = phases(self.journal.lines, marks, self.timeline)
        self.home.write_json("phases.json", [phase.as_json() for phase in phase_list])
        self.home.update(marks=marks.as_json())

    async def _record_usage(self) -> None:
        """Add the current resource usage of each broker to ``run.json``; not called often, because reading is slow."""
        usage = await asyncio.to_thread(self.cluster.usage)
        brokers = {str(broker): resources._asdict() for broker, resources in usage.items()}
        self.home.event(self.clock.now_us(), "broker_used", brokers=brokers)
        await self._record_metrics()

    async def _record_metrics(self) -> None:
        """Record the brokers' metrics if the plan has ``cluster: {jmx: true}``."""
        if self.timeline.cluster.get("jmx"):
            metrics = await asyncio.to_thread(self.cluster.metrics)
            self.home.event(
                self.clock.now_us(), "broker_metrics", brokers={str(b): found for b, found in metrics.items()}
            )

    async def _run_faults(self, *, rehearse: bool) -> None:
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
            await race(watch.keep(), run_steps())
        except abort.AbortConditionMet as error:
            reason = str(error)
            log(f"aborted by the plan's abort condition: {reason}")
        self.home.update(abort={"looks": watch.looks, "met": reason})

    async def close(self) -> None:
        """Write the logs of all topics to disk, let the consumers read them to the end, and stop the clients."""
        cluster, home, log = self.cluster, self.home.path, self.progress.log
        bootstrap, security = cluster.bootstrap(None), cluster.security.resolved()
        if pipes := pipe_arms(self.timeline):
            await self._settle(pipes)
        self.phase, self.end_us = "reading the topics and every replica", None
        log(self.phase)
        transactional = [topic for topic in self.topics if topic.name in timeouts_ms(self.timeline.workloads)]
        if transactional:
            unstable = await self._ended_transactions(recorded_topics(self.timeline))
            for topic_name, number in unstable:
                log(f"{topic_name}/{number} has an open transaction; what it holds is not judged")
            if unstable:
                positions = [[*where, *offsets] for where, offsets in sorted(unstable.items())]
                self.home.event(self.clock.now_us(), OPEN_TRANSACTIONS, positions=positions)
        ends = await asyncio.to_thread(end_offsets, bootstrap, self.topics, READ_IDLE_S, security)
        limit = ReadLimit(READ_IDLE_S)
        first = sum(offset for offsets in self.begin.values() for offset in offsets.values())
        self.reading = limit, sum(end for offsets in ends.values() for end in offsets.values()) - first
        read = partial(read_log, bootstrap, self.topics, ends, home / "log", security=security, begin=self.begin)
        read = partial(read, formats=self._formats())
        replicas = cluster.admin, self.topics, ends, home / "replicas"
        try:
            _, identities, _ = await asyncio.gather(
                asyncio.to_thread(read, limit.part()),
                asyncio.to_thread(read_replicas, *replicas, limit.part(), self.begin),
                self.leaders.write(log),
            )
            if transactional:
                batches = cluster.admin.copy(), transactional, ends, home / "batches"
                readable = await asyncio.to_thread(read_batches, *batches, limit.part(), self.begin)
                ends = {name: readable.get(name, of_topic) for name, of_topic in ends.items()}
        finally:
            limit.stop()  # the threads of a failed or interrupted read end soon
        for identity in identities:
            fields = identity._asdict()
            at_us = fields.pop("timestamp_ms") * 1000 - int(self.home.facts["origin_unix_us"])
            self.home.event(at_us, IDENTITY, **fields)
        self.phase, self.reading = "the consumers read to the ends of the topics", None
        self.end_us = self.clock.now_us() + int(DRAIN_LIMIT_S * 1e6)
        missing = await self.fleet.drain(ends, self._idle_s())
        for worker, places in missing.items():
            names = ", ".join(f"{topic}/{number}" for topic, number in sorted(places))
            log(f"the consumer {worker} did not read to their ends: {names}")
        for worker, still in self.fleet.standstills.items():
            of_group = next(one for one in self.fleet.assignments if one.worker == worker)
            names_of = {"workload": of_group.workload, "arm": of_group.arm, "op": of_group.side}
            rows = [[*place, *offsets] for place, offsets in sorted(still.positions.items())]
            idle = {} if still.idle_us is None else {"idle_us": still.idle_us}
            self.home.event(self.clock.now_us(), "drain_incomplete", **names_of, positions=rows, **idle)
        self.record_reports()  # of clients too that a fault has started
        await self.fleet.quit()
        # consumers commit until they are closed
        read_us = self.clock.now_us()
        if (result := await read_commits(cluster, self.timeline, home, log, ReadLimit(READ_IDLE_S))) is not None:
            self.home.event(read_us, "offsets_read", **result)
        await asyncio.to_thread(self.observed)
        if sessions := await asyncio.to_thread(sessions_after_run, read_lines(home / "events.jsonl"), cluster.admin):
            self.home.event(self.clock.now_us(), "fetch_sessions_left", **sessions)

    def _idle_s(self) -> float:
        """Return after how many seconds without progress a reader stands still, though no fault affects it."""
        fault_us = max((line["t_us"] for line in self.journal.lines), default=-AFTER_FAULT_US)
        return READ_IDLE_S + max(0, fault_us + AFTER_FAULT_US - self.clock.now_us()) / 1e6

    async def _settle(self, pipes: Sequence[PipeArm]) -> None:
        """Let services process the last inputs, and end them, so that what they write at the end is in the log."""
        self.phase = "the services process the last inputs"
        self.progress.log(self.phase)
        self.end_us = self.clock.now_us() + SETTLE_LIMIT_US
        bootstrap, security = self.cluster.bootstrap(None), self.cluster.security.resolved()
        topics = {topic.name: topic for topic in self.topics}
        readable = await self._readable_inputs({pipe.from_ for pipe in pipes})

        async def ends(names: Iterable[str]) -> EndOffsets:
            of = [topics[name] for name in dict.fromkeys(names)]
            return {**await asyncio.to_thread(end_offsets, bootstrap, of, READ_IDLE_S, security), **readable}

        await settle(pipes, self.cluster.admin, ends, self.home, self.clock, int(self._idle_s() * 1e6))
        await self.fleet.quit(ops=PIPES)
        if has_service_containers(self.timeline):
            # the container of a service that had not started yet, whose worker was therefore killed, would write on
            await asyncio.to_thread(remove_services, engine.connect(), self.home.run_id)

    async def _ended_transactions(self, topics: Sequence[str]) -> dict[TopicPartition, tuple[int, int]]:
        """Wait until all transactions of topics must have ended; return the offsets of partitions with an open one."""
        longest_ms = max(timeouts_ms(self.timeline.workloads).values())
        settings = self.timeline.cluster.get("config") or {}
        limit_s = (open_transactions_ms(longest_ms, settings) + RETURN_MS) / 1000
        return await asyncio.to_thread(wait_until_stable, self.cluster.admin.copy(), topics, limit_s)

    async def _readable_inputs(self, inputs: Collection[str]) -> EndOffsets:
        """Return the ends of transactional inputs, without what no reader of committed records gets.

        No service commits a position beyond a marker, or beyond the records of aborted transactions at the end.
        """
        names = {*inputs} & timeouts_ms(self.timeline.workloads).keys()
        transactional = [topic for topic in self.topics if topic.name in names]
        if not transactional:
            return {}
        await self._ended_transactions([*names])
        bootstrap, security = self.cluster.bootstrap(None), self.cluster.security.resolved()
        ends = await asyncio.to_thread(end_offsets, bootstrap, transactional, READ_IDLE_S, security)
        batches = self.cluster.admin.copy(), transactional, ends, self.home.path / "batches"
        return await asyncio.to_thread(read_batches, *batches, ReadLimit(READ_IDLE_S), self.begin)

    def _formats(self) -> dict[str, RecordFormat]:
        """Return the formats of topics whose records have JSON values, or belong to a pipe."""
        formats: dict[str, RecordFormat] = {}
        for workload in self.timeline.workloads:
            produce, pipe = workload.get("produce") or {}, workload.get("pipe")
            for topic in topic_names(produce):
                known = formats.get(topic, RecordFormat())
                formats[topic] = replace(known, value=produce.get("value"))
            if pipe:
                formats[pipe["from"]] = replace(formats.get(pipe["from"], RecordFormat()), of_pipe=True)
                formats |= dict.fromkeys(pipe["to"].values(), RecordFormat(pipe["mark"], of_pipe=True))
        return formats

    def _enter(self, phase: str, **details: int) -> None:
        self.phase = phase
        self.home.event(self.clock.now_us(), "phase", phase=phase, **details)
        elapsed_s = max(0, self.clock.now_us() - self.load_start_us) / 1e6
        self.progress.log(f"{elapsed_s:5.0f} s  {phase}")


def observes(timeline: Timeline) -> bool:
    """Return True if the wire proxy observes what each client fetches."""
    return timeline.cluster.get("wire_proxy") == "observe"


async def read_commits(
    cluster: Target, timeline: Timeline, home: Path, log: Log, limit: ReadLimit
) -> dict[str, str] | None:
    """Write the offset commits of the run's groups from the coordinators' topics to disk.

    Return the details of the event ``offsets_read``: the ``error`` if the topics can't be read. Return None if the plan
    has no group, or on an attached cluster, of whose coordinators' topics nothing is read.
    """
    committing = [arm for load in timeline.workloads if load.get("commit") for arm in load["arms"].values()]
    topics = {SHARE_STATE if arm["settings"].get("share") else OFFSETS_TOPIC for arm in committing}
    if any(True for _ in group_names(timeline)):
        topics.add(OFFSETS_TOPIC)
    if "attach" in timeline.cluster or not topics:
        return None
    try:
        await asyncio.to_thread(read_committed, cluster.admin.copy(), sorted(topics), home / "offsets", limit)
    except AftershockError as error:
        log(f"the committed offsets can't be read from the coordinators' topics: {error}")
        return {"error": str(error)}
    return {}


async def race(failing: Coroutine[None, None, NoReturn], work: Coroutine[None, None, T]) -> T:
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

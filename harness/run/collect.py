"""Measurements of a run: the host's noise before the load, counters during the load, and the cluster's final state.

* `calibrate` runs before the load. It refuses an SLO on latency that is finer than the host's timers.
* `Sampler` runs during the load. `docs/DESIGN.md` lists the metrics; counters are cumulative.
* The ``read_…`` functions read topics, replicas and committed offsets after the load.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.errors import AftershockError, FaultError, PlanError
from aftershock.faults.runtime.record import Clock
from aftershock.faults.runtime.world import Linked
from aftershock.faults.timeline.timeline import Objective, Timeline
from aftershock.harness.cluster.target import Target
from aftershock.harness.kafka.groups import granted_sessions, still_open
from aftershock.harness.kafka.replicas import OFFSETS, SHARE_STATE, read_committed, read_replicas
from aftershock.harness.run.rundir import RunClock, RunDir
from aftershock.results.evidence.files import read_lines
from aftershock.results.slo import Measure, parse
from aftershock.workloads.load.logread import EndOffsets, Topic, read_log

Log = Callable[[str], None]

TIMERS, TIMER_US = 100, 5_000
PROBES = 3
READ_DEADLINE_S = 30.0
_TICK_US = 100_000
_TICKS_PER_SAMPLE = 10
_SCHEMA = pa.schema([("t_us", pa.int64()), ("broker_id", pa.int32()), ("name", pa.string()), ("value", pa.float64())])


@dataclass(frozen=True)
class Noise:
    """``timer_late_ms``: 90th percentile of ``timers`` timers; ``probe_ms``: median of ``probes`` probes, if any."""

    timer_late_ms: float
    timers: int
    probe_ms: float | None
    probes: int


async def calibrate(home: RunDir, objectives: Iterable[Objective], world: Linked, clock: Clock) -> None:
    """Measure and record the noise of timers and of round trips through client links.

    Raises:
        PlanError: SLOs are finer than the noise.
    """
    late_ms = []
    for _ in range(TIMERS):
        due_us = clock.now_us() + TIMER_US
        await clock.sleep_until_us(due_us)
        late_ms.append((clock.now_us() - due_us) / 1000)
    links = [link for link in world.links() if link.channel == "client"]
    probes_ms = []
    for _ in range(PROBES):
        for result in await asyncio.gather(*map(world.probe_ms, links), return_exceptions=True):
            if isinstance(result, BaseException):
                if not isinstance(result, FaultError):  # FaultError: a probe without an answer
                    raise result
            else:
                probes_ms.append(result)
    probe_ms = round(median(probes_ms), 3) if probes_ms else None
    noise = Noise(round(quantiles(late_ms, n=10)[-1], 3), TIMERS, probe_ms, len(probes_ms))
    home.update(calibration=asdict(noise))
    if problems := list(unmeasurable_slos(objectives, noise)):
        raise PlanError(problems)


def unmeasurable_slos(objectives: Iterable[Objective], noise: Noise) -> Iterable[str]:
    """Yield a sentence for each SLO on latency whose threshold is below the noise."""
    for objective in objectives:
        slo = parse(objective.text)
        limit_us = slo.threshold_us if isinstance(slo, Measure) and slo.of.about.confident else None
        if limit_us is not None and limit_us < noise.timer_late_ms * 1000:
            yield (
                f"{objective.at}: `{objective.text}` is finer than this host can measure: its timers are "
                f"{noise.timer_late_ms:g} ms late; raise the threshold, or stop other work on the host"
            )


class Sample(NamedTuple):
    """One row of ``metrics/``."""

    t_us: int
    broker_id: int | None
    name: str
    value: float


class Reading(NamedTuple):
    """Current value of a counter; ``broker_id`` is None if the counter doesn't belong to a broker."""

    broker_id: int | None
    name: str
    value: float


class CpuTimes(NamedTuple):
    """Jiffies since boot: busy, stolen by the hypervisor, and in total (proc(5), /proc/stat)."""

    busy: int
    steal: int
    total: int


class Sampler:
    """Async context manager that samples during its block, and then writes ``samples.parquet`` to ``folder``.

    ``read`` returns counters and is called about once a second; it may block, and an error leaves a gap.
    """

    def __init__(self, folder: Path, clock: RunClock, read: Callable[[], Sequence[Reading]]) -> None:
        self._folder = folder
        self._clock = clock
        self._read = read
        self._samples: list[Sample] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._sample_host()), asyncio.create_task(self._sample_counters())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        table = pa.Table.from_pylist([sample._asdict() for sample in self._samples], _SCHEMA)
        pq.write_table(table, self._folder / "samples.parquet", compression="zstd")

    async def _sample_host(self) -> None:
        """Record how late a 100 ms timer fires, and the CPU times at every tenth tick."""
        due_us = self._clock.now_us()
        before = cpu_times()
        for tick in range(1, 1 << 62):
            due_us += _TICK_US
            await self._clock.sleep_until_us(due_us)
            now_us = self._clock.now_us()
            self._samples.append(Sample(now_us, None, "host.tick_late_us", now_us - due_us))
            if tick % _TICKS_PER_SAMPLE == 0:
                now = cpu_times()
                if now and before and now.total > before.total:
                    total = now.total - before.total
                    self._samples.append(Sample(now_us, None, "host.cpu_busy", (now.busy - before.busy) / total))
                    self._samples.append(Sample(now_us, None, "host.steal", (now.steal - before.steal) / total))
                before = now

    async def _sample_counters(self) -> None:
        while True:
            try:
                readings = await asyncio.to_thread(self._read)
            except AftershockError:
                # the exposure check reports a gap in the counters; a gap must not end the run
                readings = []
            now_us = self._clock.now_us()
            self._samples += [Sample(now_us, *reading) for reading in readings]
            await self._clock.sleep_until_us(now_us + _TICK_US * _TICKS_PER_SAMPLE)


def cpu_times() -> CpuTimes | None:
    """Return the host's CPU times; None on a host without /proc/stat."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    except OSError:
        return None
    idle, steal, total = fields[3] + fields[4], fields[7], sum(fields)
    return CpuTimes(total - idle - steal, steal, total)


async def read_topics(cluster: Target, topics: Sequence[Topic], begin: EndOffsets, home: Path, log: Log) -> EndOffsets:
    """Read the records of the topics and of each replica; return the end offsets."""
    log("reading the topics")
    bootstrap, security = cluster.bootstrap(None), cluster.security.resolved()
    read = partial(read_log, bootstrap, topics, home / "log", security=security, begin=begin)
    ends = await asyncio.to_thread(read, READ_DEADLINE_S)
    log("reading every replica")
    await asyncio.to_thread(read_replicas, cluster.admin, topics, ends, home / "replicas", READ_DEADLINE_S, begin)
    return ends


async def read_commits(cluster: Target, timeline: Timeline, home: Path, log: Log) -> None:
    """Read the coordinators' records of the plan's commits; skip an attached cluster."""
    committing = [arm for load in timeline.workloads if load.get("commit") for arm in load["arms"].values()]
    topics = {SHARE_STATE if arm["settings"].get("share") else OFFSETS for arm in committing}
    if "attach" in timeline.cluster or not topics:
        return
    try:
        await asyncio.to_thread(read_committed, cluster.admin, sorted(topics), home / "offsets", READ_DEADLINE_S)
    except AftershockError as error:
        log(f"the committed offsets of the coordinators can't be read: {error}")


async def open_fetch_sessions(cluster: Target, home: Path) -> dict[str, Any] | None:
    """Return the numbers of fetch sessions that clients reported and that are still open; None without reports."""
    sessions = granted_sessions(read_lines(home / "events.jsonl"))
    if not sessions:
        return None
    return {"told": len(sessions), "left": await asyncio.to_thread(still_open, sessions, cluster.admin)}

"""What this host can measure just now: how late its timers fire, and what a probe through a quiet link costs.

Taken before the load of each run and kept in ``run.json``. An SLO on latency that is finer than the timers are late
would judge the host, so it is refused before anything is sent.

What the host and the links did, sampled at a fixed period while the load runs.

Two suspects are watched here: the host (is the CPU gone? does a timer fire late?) and the links (did any traffic meet
the fault?). Names are listed in `docs/DESIGN.md`; a counter is recorded as it is, cumulative.

The last look: what is read of a cluster when the load is over, and what its clients left there when they went.
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
from aftershock.harness.kafka.groups import still_open, told_sessions
from aftershock.harness.kafka.replicas import OFFSETS, SHARE_STATE, read_committed, read_replicas
from aftershock.harness.run.rundir import RunClock, RunDir
from aftershock.results.evidence.files import read_lines
from aftershock.results.slo import Measure, parse
from aftershock.workloads.load.logread import EndOffsets, Topic, read_log

TIMERS, TIMER_US = 100, 5_000
PROBES = 3


@dataclass(frozen=True)
class Noise:
    """``timer_late_ms``: the 90th percentile of ``timers``; ``probe_ms``: the median of ``probes``, None without."""

    timer_late_ms: float
    timers: int
    probe_ms: float | None
    probes: int


async def calibrate(home: RunDir, objectives: Iterable[Objective], world: Linked, clock: Clock) -> None:
    """Measure, write down, and refuse what can't be judged. PlanError with every SLO that is too fine."""
    late_ms = [await _late_ms(clock) for _ in range(TIMERS)]
    probes_ms = await _probes_ms(world)
    noise = Noise(
        round(quantiles(late_ms, n=10)[-1], 3),
        TIMERS,
        round(median(probes_ms), 3) if probes_ms else None,
        len(probes_ms),
    )
    home.tell(calibration=asdict(noise))
    if finer := list(too_fine(objectives, noise)):
        raise PlanError(finer)


def too_fine(objectives: Iterable[Objective], noise: Noise) -> Iterable[str]:
    """A sentence for each SLO on latency whose threshold is below the noise."""
    for objective in objectives:
        slo = parse(objective.text)
        limit_us = slo.threshold_us if isinstance(slo, Measure) and slo.of.about.confident else None
        if limit_us is not None and limit_us < noise.timer_late_ms * 1000:
            yield (
                f"{objective.at}: `{objective.text}` is finer than this host can measure now, whose timers are "
                f"{noise.timer_late_ms:g} ms late: raise the threshold, or free the host of other work"
            )


async def _late_ms(clock: Clock) -> float:
    due_us = clock.now_us() + TIMER_US
    await clock.sleep_until_us(due_us)
    return (clock.now_us() - due_us) / 1000


async def _probes_ms(world: Linked) -> list[float]:
    """Round trips through each client link, those that are answered."""
    links = [link for link in world.links() if link.channel == "client"]
    tried = [await asyncio.gather(*map(world.probe_ms, links), return_exceptions=True) for _ in range(PROBES)]
    for trip in (trip for trips in tried for trip in trips):
        if isinstance(trip, BaseException) and not isinstance(trip, FaultError):
            raise trip
    return [trip for trips in tried for trip in trips if isinstance(trip, float)]


_TICK_US = 100_000
_TICKS_A_SAMPLE = 10
_SCHEMA = pa.schema([("t_us", pa.int64()), ("broker_id", pa.int32()), ("name", pa.string()), ("value", pa.float64())])


class Sample(NamedTuple):
    """One row of ``metrics/``."""

    t_us: int
    broker_id: int | None
    name: str
    value: float


class Reading(NamedTuple):
    """A counter's value now; ``broker_id`` where it belongs to one."""

    broker_id: int | None
    name: str
    value: float


class CpuTimes(NamedTuple):
    """Jiffies since boot: not idle, stolen by the hypervisor, and in all (proc(5), /proc/stat)."""

    busy: int
    steal: int
    total: int


class Sampler:
    """Samples from entry to exit, and writes ``metrics/samples.parquet`` then.

    Args:
        folder: the run's ``metrics/``.
        clock: the run's clock.
        read: reads counters, about once a second; it may block, and a failure leaves a gap.
    """

    def __init__(self, folder: Path, clock: RunClock, read: Callable[[], Sequence[Reading]]) -> None:
        self._folder = folder
        self._clock = clock
        self._read = read
        self._samples: list[Sample] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._tick()), asyncio.create_task(self._sample_counters())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        table = pa.Table.from_pylist([sample._asdict() for sample in self._samples], _SCHEMA)
        pq.write_table(table, self._folder / "samples.parquet", compression="zstd")

    async def _tick(self) -> None:
        """A 100 ms timer that records how late it fires, and the CPU's times at every tenth."""
        due_us = self._clock.now_us()
        before = cpu_times()
        for tick in range(1, 1 << 62):
            due_us += _TICK_US
            await self._clock.sleep_until_us(due_us)
            now_us = self._clock.now_us()
            self._samples.append(Sample(now_us, None, "host.tick_late_us", now_us - due_us))
            if tick % _TICKS_A_SAMPLE == 0:
                before = self._sample_cpu(now_us, before)

    def _sample_cpu(self, now_us: int, before: CpuTimes | None) -> CpuTimes | None:
        now = cpu_times()
        if now and before and now.total > before.total:
            total = now.total - before.total
            self._samples.append(Sample(now_us, None, "host.cpu_busy", (now.busy - before.busy) / total))
            self._samples.append(Sample(now_us, None, "host.steal", (now.steal - before.steal) / total))
        return now

    async def _sample_counters(self) -> None:
        while True:
            try:
                readings = await asyncio.to_thread(self._read)
            except AftershockError:
                # a gap in the counters shows in the exposure check; it must not end the run
                readings = []
            now_us = self._clock.now_us()
            self._samples += [Sample(now_us, *reading) for reading in readings]
            await self._clock.sleep_until_us(now_us + _TICK_US * _TICKS_A_SAMPLE)


def cpu_times() -> CpuTimes | None:
    """The host's CPU times; None where there is no /proc/stat."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    except OSError:
        return None
    idle, steal, total = fields[3] + fields[4], fields[7], sum(fields)
    return CpuTimes(total - idle - steal, steal, total)


READ_DEADLINE_S = 30.0

Say = Callable[[str], None]


async def read_topics(cluster: Target, topics: Sequence[Topic], begin: EndOffsets, home: Path, say: Say) -> EndOffsets:
    """What the topics hold, and each of their replicas; how far that is."""
    say("reading the topics as they are now")
    bootstrap, security = cluster.bootstrap(None), cluster.security.resolved()
    read = partial(read_log, bootstrap, topics, home / "log", security=security, begin=begin)
    ends = await asyncio.to_thread(read, READ_DEADLINE_S)
    say("reading every replica")
    await asyncio.to_thread(read_replicas, cluster.admin, topics, ends, home / "replicas", READ_DEADLINE_S, begin)
    return ends


async def read_commits(cluster: Target, timeline: Timeline, home: Path, say: Say) -> None:
    """What coordinators wrote of the plan's commits; the offsets of an attached cluster are none of ours."""
    committing = [arm for each in timeline.workloads if each.get("commit") for arm in each["arms"].values()]
    topics = {SHARE_STATE if arm["settings"].get("share") else OFFSETS for arm in committing}
    if "attach" in timeline.cluster or not topics:
        return
    try:
        await asyncio.to_thread(read_committed, cluster.admin, sorted(topics), home / "offsets", READ_DEADLINE_S)
    except AftershockError as error:
        say(f"what coordinators wrote can't be read: {error}")


async def sessions_left(cluster: Target, home: Path) -> dict[str, Any] | None:
    """Of the fetch sessions that clients told of: how many, and which are open still. None where none was told of."""
    told = told_sessions(read_lines(home / "events.jsonl"))
    if not told:
        return None
    return {"told": len(told), "left": await asyncio.to_thread(still_open, told, cluster.admin)}

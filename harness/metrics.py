"""What the host and the links did, sampled at a fixed period while the load runs.

Two suspects are watched here: the host (is the CPU gone? does a timer fire late?) and the links (did any traffic meet
the fault?). Names are listed in `docs/DESIGN.md`; a counter is recorded as it is, cumulative.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.errors import AftershockError
from aftershock.harness.clock import RunClock

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

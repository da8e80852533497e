"""Samples of counters and of the host's load during a run; `docs/DESIGN.md` lists the metrics."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from aftershock.errors import AftershockError
from aftershock.harness.run.saver import Sample, save
from aftershock.harness.safety.rundir import RunClock
from aftershock.workloads.load.events import cpu_times

_TICK_US = 100_000
_TICKS_PER_SAMPLE = 10
T = TypeVar("T")


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Call a blocking function in a thread, and wait for its end even if the caller is cancelled."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class Reading(NamedTuple):
    """Current value of a counter of a broker, or without ``broker_id`` of the whole run."""

    broker_id: int | None
    name: str
    value: float


class Sampler:
    """Async context manager that samples metrics during its block, and writes them to ``folder``.

    The function ``read``, called about once a second, returns the current counters, which are cumulative; it may block.
    """

    def __init__(self, folder: Path, clock: RunClock, read: Callable[[], Sequence[Reading]]) -> None:
        self._folder = folder
        self._clock = clock
        self.now_us = clock.now_us
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
        await in_thread(save, self._folder, self.take())

    def take(self) -> Sequence[Sample]:
        """Return the samples since the last call."""
        samples, self._samples = self._samples, []
        return samples

    async def _sample_host(self) -> None:
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
                # no counters for this second: the exposure check reports such a gap, which must not end the run
                readings = []
            now_us = self._clock.now_us()
            self._samples += [Sample(now_us, *reading) for reading in readings]
            await self._clock.sleep_until_us(now_us + _TICK_US * _TICKS_PER_SAMPLE)

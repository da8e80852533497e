"""Polling of brokers during a run, in threads and with connections of its own.

What a broker answers late or not at all delays only the polls of the same lane, never the load.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self

from aftershock.harness.cluster.target import Target
from aftershock.harness.kafka.admin import Admin
from aftershock.harness.run.recording import in_thread
from aftershock.harness.safety.rundir import RunClock

PERIOD_US = 500_000
_CPU_MAX = 0.01
"""Share of a core that the polls of a recorder may take: where each costs more, they are less often."""

Poll = Callable[[Admin], Any]


class PollingRecorder:
    """Async context manager that polls the brokers of a cluster twice a second during its block."""

    def __init__(self, cluster: Target, clock: RunClock) -> None:
        self._cluster, self._clock = cluster, clock
        self._tasks: list[asyncio.Task[None]] = []

    def lanes(self) -> Sequence[Iterator[Poll]]:
        """Return the polls, which may block: an endless iterator for each task that polls on its own."""
        raise NotImplementedError

    def polled(self, result: Any, /) -> None:
        """Take the result of a poll, in the event loop; by default it is ignored."""

    async def __aenter__(self) -> Self:
        lanes = self.lanes()
        self._tasks = [asyncio.create_task(self._poll(lane, _CPU_MAX / len(lanes))) for lane in lanes]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _poll(self, polls: Iterator[Poll], cpu_max: float) -> None:
        with closing(self._cluster.admin.copy()) as admin:
            for poll in polls:
                began_us = self._clock.now_us()
                result, used_s = await in_thread(_timed, poll, admin)
                self.polled(result)
                await self._clock.sleep_until_us(began_us + max(PERIOD_US, int(used_s / cpu_max * 1e6)))


def _timed(poll: Poll, admin: Admin) -> tuple[Any, float]:
    """Return the result of a poll, and the CPU time that it took in seconds."""
    began_s = time.thread_time()
    return poll(admin), time.thread_time() - began_s

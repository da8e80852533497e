"""The event loop that a reference client lives on, and runs a step of at a time.

Its selector is ``select(2)``, which waits in microseconds; epoll waits in whole milliseconds, and half of one would be
added to every record's lateness. It is meant for few descriptors, and a client has a handful.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aftershock.workloads.load import US_PER_S

T = TypeVar("T")


class Loop:
    """One event loop with the tasks that must not fail on it: when one does, the next ``step`` raises its error."""

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._vital: list[asyncio.Task[Any]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run until ``work`` is done; its result."""
        return self._loop.run_until_complete(work)

    def inside(self, make: Callable[[], T]) -> T:
        """What ``make`` returns, called while the loop runs: who lives on a loop wants to be made there."""

        async def made() -> T:
            return make()

        return self.run(made())

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Let ``work`` go on in every step from now on."""
        self._vital.append(self._loop.create_task(work))

    def step(self, wait_us: int) -> None:
        """Run for that long, or until a vital task ends."""
        self.run(self._rest(wait_us / US_PER_S))
        for task in [task for task in self._vital if task.done()]:
            self._vital.remove(task)
            task.result()

    async def _rest(self, wait_s: float) -> None:
        if self._vital:
            await asyncio.wait(self._vital, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(wait_s)

    def close(self, leaving: Coroutine[Any, Any, None]) -> None:
        """Cancel what is going on, run ``leaving`` and close the loop."""
        self.run(self._ended())
        self.run(leaving)
        self._loop.close()

    async def _ended(self) -> None:
        for task in self._vital:
            task.cancel()
        await asyncio.gather(*self._vital, return_exceptions=True)

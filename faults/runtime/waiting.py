"""Wait for conditions and results, always with a deadline and with a reason for the error message."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from aftershock.errors import AftershockError, ClusterError, FaultError
from aftershock.faults.runtime.record import Clock

T = TypeVar("T")
POLL_US = 200_000
READ_DEADLINE_MS = 5_000


async def wait_until(
    condition: Callable[[], Awaitable[str | None]], clock: Clock, deadline_ms: int, poll_us: int = POLL_US
) -> None:
    """Poll ``condition`` each ``poll_us`` until it returns None; raise FaultError with its last text at the deadline.

    Until then, ``condition`` returns a text about what is missing, or raises AftershockError, as Kafka refuses requests
    in the middle of a failover.
    """
    deadline_us = clock.now_us() + deadline_ms * 1000
    while True:
        try:
            missing = await condition()
        except AftershockError as error:
            missing = str(error)
        if missing is None:
            return
        if clock.now_us() >= deadline_us:
            raise FaultError(f"after {deadline_ms / 1000:g} s still: {missing}")
        await clock.sleep_until_us(min(clock.now_us() + poll_us, deadline_us))


async def with_timeout(work: Awaitable[T], clock: Clock, timeout_ms: int) -> T | None:
    """Return the result of ``work``; after ``timeout_ms`` on the run's clock, cancel the work and return None."""
    working = asyncio.ensure_future(work)
    alarm = asyncio.ensure_future(clock.sleep_until_us(clock.now_us() + timeout_ms * 1000))
    try:
        await asyncio.wait({working, alarm}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, alarm):
            task.cancel()
        await asyncio.gather(working, alarm, return_exceptions=True)


async def retry_refused(request: Callable[[], Awaitable[T]], clock: Clock, deadline_ms: int) -> T:
    """Send a request, and retry it for ``deadline_ms`` while Kafka refuses the request (ClusterError)."""
    deadline_us = clock.now_us() + deadline_ms * 1000
    while True:
        try:
            return await request()
        except ClusterError:
            if clock.now_us() >= deadline_us:
                raise
        await clock.sleep_until_us(clock.now_us() + POLL_US)


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work`` to its end even if the caller is cancelled meanwhile, then raise the cancellation, or return.

    The undo of a kill, for example, must follow the kill, which can't be cancelled.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()

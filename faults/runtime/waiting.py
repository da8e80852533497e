"""Waiting for a condition, with a reason and a deadline; never for a fixed time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from aftershock.errors import AftershockError, ClusterError, FaultError
from aftershock.faults.runtime.record import Clock

T = TypeVar("T")
POLL_US = 200_000
READ_DEADLINE_MS = 5_000


async def until(condition: Callable[[], Awaitable[str | None]], clock: Clock, deadline_ms: int) -> None:
    """Ask until ``condition`` answers None; what it answers instead says what is still missing.

    An AftershockError while asking counts as "not yet": Kafka refuses to answer in the middle of a failover. Raises
    FaultError with the last thing missing when ``deadline_ms`` are over.
    """
    give_up_us = clock.now_us() + deadline_ms * 1000
    while True:
        try:
            missing = await condition()
        except AftershockError as error:
            missing = str(error)
        if missing is None:
            return
        if clock.now_us() >= give_up_us:
            raise FaultError(f"after {deadline_ms / 1000:g} s still: {missing}")
        await clock.sleep_until_us(min(clock.now_us() + POLL_US, give_up_us))


async def within(work: Awaitable[T], clock: Clock, limit_ms: int) -> T | None:
    """The result, or None if it took longer than ``limit_ms`` on the run's clock; the work is cancelled then."""
    working = asyncio.ensure_future(work)
    alarm = asyncio.ensure_future(clock.sleep_until_us(clock.now_us() + limit_ms * 1000))
    try:
        await asyncio.wait({working, alarm}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, alarm):
            task.cancel()
        await asyncio.gather(working, alarm, return_exceptions=True)


async def patiently(ask: Callable[[], Awaitable[T]], clock: Clock, deadline_ms: int) -> T:
    """The answer, asked for again while Kafka refuses (ClusterError), as it may in the middle of a failover.

    Any other error, and Kafka's last one after ``deadline_ms``, is raised as it is.
    """
    give_up_us = clock.now_us() + deadline_ms * 1000
    while True:
        try:
            return await ask()
        except ClusterError:
            if clock.now_us() >= give_up_us:
                raise
        await clock.sleep_until_us(clock.now_us() + POLL_US)


async def to_the_end(work: Coroutine[Any, Any, Any]) -> None:
    """Await it to its end even if we are cancelled meanwhile, and only then let the cancellation through.

    For what must not be left half-done: a kill that is on its way to the engine can't be called back, and its undo must
    not overtake it.
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

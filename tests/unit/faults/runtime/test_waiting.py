"""Waiting for conditions and results, with a reason and a deadline."""

from __future__ import annotations

import asyncio

import pytest

from aftershock.errors import AdminError, FaultError
from aftershock.faults.runtime.waiting import retry_refused, run_to_completion, wait_until, with_timeout
from aftershock.tests.unit.faults.fake_world import JumpingClock


async def test_until_reports_the_missing_condition() -> None:
    """The error at the deadline has the last condition that was missing."""
    clock = JumpingClock()

    async def never() -> str | None:
        return f"nothing at {clock.now_us()}"

    with pytest.raises(FaultError, match="after 3 s still: nothing at 3000000"):
        await wait_until(never, clock, 3_000)


async def test_until_treats_refusals_as_not_yet() -> None:
    """An error of Kafka during a poll counts as not yet."""
    clock = JumpingClock()

    async def later() -> str | None:
        if clock.now_us() < 1_000_000:
            raise AdminError("not now", "NOT_CONTROLLER")
        return None

    await wait_until(later, clock, 3_000)
    assert clock.now_us() == 1_000_000


async def test_within() -> None:
    """The result is returned in time; else the work is cancelled and None returned; errors are raised."""
    clock = JumpingClock()
    cancelled = asyncio.Event()

    async def slow(ms: int) -> str:
        try:
            await clock.sleep_until_us(clock.now_us() + ms * 1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "here"

    async def wrong() -> str:
        raise FaultError("no")

    assert await with_timeout(slow(500), clock, 1_000) == "here"
    assert await with_timeout(slow(5_000), clock, 1_000) is None
    assert cancelled.is_set()
    with pytest.raises(FaultError, match="no"):
        await with_timeout(wrong(), clock, 1_000)


async def test_patiently_gives_up() -> None:
    """Refusals are raised after the deadline, other errors at once."""
    clock = JumpingClock()

    async def refused() -> None:
        raise AdminError("not now", "NOT_CONTROLLER")

    async def wrong() -> None:
        raise FaultError("wrong")

    with pytest.raises(AdminError, match="not now"):
        await retry_refused(refused, clock, 1_000)
    assert clock.now_us() >= 1_000_000
    with pytest.raises(FaultError, match="wrong"):
        await retry_refused(wrong, clock, 1_000)


async def test_to_the_end() -> None:
    """After any number of cancellations the work ends first; then the cancellation is raised."""
    clock = JumpingClock()
    done = asyncio.Event()

    async def work() -> None:
        await clock.sleep_until_us(1_000_000)
        done.set()

    task = asyncio.create_task(run_to_completion(work()))
    for at_us in (100_000, 200_000):
        await clock.sleep_until_us(at_us)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()

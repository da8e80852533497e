"""The sleeper that anything may wake."""

import asyncio
import math

from aftershock.workloads.kafka.client.tasks import Wake


async def test_what_happened_before_the_wait_is_not_missed() -> None:
    """A wake between two waits ends the next one; once."""
    wake = Wake()
    wake()
    await wake.wait(math.inf)
    waiting = asyncio.create_task(wake.wait(math.inf))
    await asyncio.sleep(0)
    assert not waiting.done()
    wake()
    await waiting


async def test_the_time_out_ends_a_wait_quietly() -> None:
    """Nobody woke: the wait returns all the same, and raises nothing."""
    await Wake().wait(1)

"""Crash loop: the node is killed after each return, and in service at the end."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


LOOP = "{id: loop, at: 1s, for: 12s, kind: crash_loop, broker: leader of orders/0, every: 1s}"


def summary(stage: Stage) -> tuple[float, bool]:
    (told,) = [witness for witness in stage.journal.witnesses("loop") if witness.unit == "deaths"]
    return told.observed, told.ok


async def test_the_node_is_killed_after_each_return(stage: Stage) -> None:
    """A boot takes three seconds: four deaths in twelve, each after a return into every ISR."""
    await stage.play(LOOP)
    assert (4, True) == summary(stage)
    assert stage.all_ok("loop")
    assert [1] * 4 == stage.world.called("kill")
    assert stage.line("loop", "healing").t_us == 13_000_000
    assert stage.world.healthy()


async def test_every_is_the_least_time_between_deaths(stage: Stage) -> None:
    """A node that is back early is not killed before `every` has passed."""
    await stage.play(LOOP.replace("every: 1s", "every: 5s"))
    kills = [t_us for t_us, verb, _ in stage.world.calls if verb == "kill"]
    assert [5_000_000, 5_000_000] == [later - earlier for earlier, later in pairwise(kills)]


async def test_one_death_is_a_kill(stage: Stage) -> None:
    """A loop that ends before the first return fails its witness."""
    await stage.play(LOOP.replace("for: 12s", "for: 2s"))
    assert (1, False) == summary(stage)


async def test_a_rehearsal_fails_its_witness(stage: Stage) -> None:
    """A rehearsal kills no node."""
    await stage.rehearse(LOOP)
    assert (0, False) == summary(stage)
    assert [] == stage.world.called("kill") + stage.world.called("start")


async def test_a_node_that_does_not_come_back(stage: Stage) -> None:
    """A node that can't start fails the fault and its heal."""

    async def dying(_broker: object) -> None:
        return

    stage.world.start = dying  # type: ignore[method-assign, assignment]
    with pytest.raises(FaultError, match="node 1 did not come back"):
        await stage.play(LOOP.replace("for: 12s", "for: 100s"))
    assert "the node's container is exited" in str(stage.line("loop", "failed").why)


@pytest.mark.parametrize("at_ms", [1_001, 1_500, 4_500, 8_000, 13_001])
async def test_interrupted(stage: Stage, at_ms: int) -> None:
    """Interrupted at any time, the node runs at the end and is not killed again."""
    await stage.interrupt(at_ms, LOOP)
    kills = len(stage.world.called("kill"))
    await stage.clock.sleep_until_us(30_000_000)
    assert stage.world.healthy()
    assert kills == len(stage.world.called("kill"))

"""Stall: nothing moves, nothing is lost, and the connections of before are those of after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


STALL = '{id: still, at: 1s, for: 6s, kind: stall, link: "client(a) <-> broker(2)"}'


async def test_a_kept_connection_is_asked_once_and_answered_after_the_heal(stage: Stage) -> None:
    """One of two dials (the other is a new probe's each time) is from before, and hung up when its answer is there."""
    await stage.play(STALL)
    assert [(w.observed, w.n) for w in stage.journal.witnesses("still") if w.unit == "answers"] == [(0, 2), (0, 2)]
    assert stage.world.called("dial") == ["client_a-k2"]
    assert stage.world.hung_up == 1


async def test_a_connection_that_somebody_else_ends_is_left_out(stage: Stage) -> None:
    """A refusal in the middle closes it: from then on there is nothing to ask, and the heal doesn't wait for it."""
    await stage.play(STALL, '{id: shut, at: 3s, for: 2s, kind: refuse, link: "client(a) -> broker(2)"}')
    assert stage.journal.states("still")[-1] == "healed"
    assert stage.all_ok("still")


async def test_held_bytes_that_never_arrive(stage: Stage) -> None:
    """The toxics are gone, but what was asked has no answer: the heal has not taken hold."""
    remove = stage.world.remove_toxic

    async def in_vain(proxy: str, name: str) -> None:
        held = stage.world.proxies[proxy][name]
        await remove(proxy, name)
        stage.world.proxies[proxy]["left"] = held

    stage.world.remove_toxic = in_vain  # type: ignore[method-assign]
    with pytest.raises(FaultError, match="a request sent over client_a-k2 during the stall has no answer"):
        await stage.play(STALL)

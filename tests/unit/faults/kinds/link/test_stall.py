"""Stall: no bytes move, no bytes are lost, and existing connections survive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


STALL = '{id: still, at: 1s, for: 6s, kind: stall, link: "client(a) <-> broker(2)"}'


async def test_an_existing_connection_is_answered_after_the_heal(stage: Stage) -> None:
    """One of two dials is from before the stall and is closed after its answer; the other is a new probe."""
    await stage.play(STALL)
    assert [(w.observed, w.n) for w in stage.journal.witnesses("still") if w.unit == "answers"] == [(0, 2), (0, 2)]
    assert stage.world.called("dial") == ["client_a-k2"]
    assert stage.world.hung_up == 1


async def test_a_connection_that_somebody_else_ends_is_left_out(stage: Stage) -> None:
    """A refusal closes the connection during the stall, so there is no later request, and the heal doesn't wait
    for an answer.
    """
    await stage.play(STALL, '{id: shut, at: 3s, for: 2s, kind: refuse, link: "client(a) -> broker(2)"}')
    assert stage.journal.states("still")[-1] == "healed"
    assert stage.all_ok("still")


async def test_held_bytes_that_never_arrive(stage: Stage) -> None:
    """The toxics are removed but a held request gets no answer, so the heal fails."""
    remove = stage.world.remove_toxic

    async def in_vain(proxy: str, name: str) -> None:
        held = stage.world.proxies[proxy][name]
        await remove(proxy, name)
        stage.world.proxies[proxy]["left"] = held

    stage.world.remove_toxic = in_vain  # type: ignore[method-assign]
    with pytest.raises(FaultError, match="a request sent over client_a-k2 during the stall has no answer"):
        await stage.play(STALL)

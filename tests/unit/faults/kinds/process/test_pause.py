"""Pause: the node is paused and silent, and in service after the resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


PAUSE = "{id: frozen, at: 1s, for: 6s, kind: pause, broker: 2}"


async def test_read_back_and_silent(stage: Stage) -> None:
    """The witness is the state read back, about once a second, and one request that is not answered."""
    await stage.play(PAUSE)
    witnesses = stage.journal.witnesses("frozen")
    assert [witness.unit for witness in witnesses[:2]] == ["reads", "answers"]
    assert 5 <= len(witnesses) <= 9
    assert stage.all_ok("frozen")
    assert stage.line("frozen", "intended").undo.as_json() == {"verb": "resume", "args": {"broker": 2}}


async def test_answers_although_paused(stage: Stage) -> None:
    """A node that reads back as paused and still answers fails a witness."""
    stage.world._lose = lambda _broker, _state: None  # type: ignore[method-assign, assignment]
    state = stage.world.state

    async def claimed(broker: object) -> object:
        await state(broker)  # type: ignore[arg-type]
        return "paused" if stage.world.called("pause") and not stage.world.called("resume") else "running"

    stage.world.state = claimed  # type: ignore[method-assign, assignment]
    await stage.play(PAUSE)
    failed = [witness for witness in stage.journal.witnesses("frozen") if not witness.ok]
    assert [witness.unit for witness in failed] == ["answers"]


async def test_resumed_from_outside(stage: Stage) -> None:
    """A container resumed during the fault fails the read-back."""

    def meddle() -> None:
        stage.world._regain(2)  # type: ignore[arg-type]

    await stage.play_with(4_500, meddle, PAUSE)
    assert not stage.all_ok("frozen")
    assert stage.journal.states("frozen")[-1] == "healed"

"""Paused clients: stopped and silent during the fault, and resumed at the heal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError
from aftershock.tests.unit.faults.fakes.clients import CONSUMER, PRODUCER

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


PAUSE = "{id: frozen, at: 1s, for: 4s, kind: pause_client, client: baseline}"


async def test_stopped_silent_and_resumed(stage: Stage) -> None:
    """State and silence are witnessed each second; the undo resumes the client."""
    await stage.play(PAUSE)
    assert stage.all_ok("frozen")
    assert stage.line("frozen", "intended").undo.as_json()["verb"] == "resume_clients"
    assert stage.world.called("resume_client") == [CONSUMER, PRODUCER]
    assert stage.journal.states("frozen")[-1] == "healed"


async def test_a_paused_client_with_heartbeats_fails_the_witness(stage: Stage) -> None:
    """A worker whose state is stopped but which still sends heartbeats fails the witness of silence."""
    down = stage.world._down

    def only_said(worker: str, state: object) -> None:
        down(worker, state)  # type: ignore[arg-type]
        stage.world._silent_since_us.clear()

    stage.world._down = only_said  # type: ignore[method-assign, assignment]
    await stage.play(PAUSE)
    failed = {witness.what for witness in stage.journal.witnesses("frozen") if not witness.ok}
    assert failed == {"clients that wrote a heartbeat or had a success during the fault"}


async def test_a_short_pause_is_seen_by_its_state_alone(stage: Stage) -> None:
    """A pause shorter than the heartbeat interval has no witness of silence."""
    await stage.play("{id: frozen, at: 1s, for: 400ms, kind: pause_client, client: baseline}")
    assert {witness.what for witness in stage.journal.witnesses("frozen")} == {
        "clients whose processes are paused, as the kernel reports"
    }


async def test_without_injection_no_witness_passes(stage: Stage) -> None:
    """This covers an injection that does nothing, and a rehearsal."""
    await stage.rehearse(PAUSE)
    stage.world._down = lambda *_: None  # type: ignore[method-assign, assignment]
    await stage.play(PAUSE)
    witnesses = stage.journal.witnesses("frozen")
    assert witnesses
    assert not any(witness.ok for witness in witnesses)


async def test_a_client_that_stays_paused_fails_the_heal(stage: Stage) -> None:
    stage.world._up = lambda *_: None  # type: ignore[method-assign, assignment]
    with pytest.raises(FaultError, match=f"{CONSUMER} is paused"):
        await stage.play(PAUSE)
    assert stage.journal.states("frozen")[-1] == "failed"

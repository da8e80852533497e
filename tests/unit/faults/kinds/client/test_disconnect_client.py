"""Disconnect: the clients' connections are closed, and there is nothing to undo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aftershock.tests.unit.faults.fakes.clients import CONSUMER, PRODUCER

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


CUT_OFF = "{id: cut-off, at: 1s, kind: disconnect_client, client: baseline}"


async def test_existing_connections_are_closed(stage: Stage) -> None:
    """The witness counts closed connections and ignores new ones."""
    await stage.play(CUT_OFF)
    assert stage.world.called("disconnect_client") == [CONSUMER, PRODUCER]
    (witness,) = stage.journal.witnesses("cut-off")
    assert (witness.asked, witness.observed, witness.ok) == (4, 4, True)
    assert stage.journal.states("cut-off") == ["intended", "injected", "witnessed", "healed"]


async def test_an_open_connection_fails_the_witness(stage: Stage) -> None:
    stage.world.open[PRODUCER] |= {f"{PRODUCER} 3"}
    await stage.play(CUT_OFF)
    assert [witness.observed for witness in stage.journal.witnesses("cut-off")] == [4]
    assert not stage.all_ok("cut-off")


async def test_a_rehearsal_proves_nothing(stage: Stage) -> None:
    """All connections stay open, and no witness passes."""
    await stage.rehearse(CUT_OFF)
    (witness,) = stage.journal.witnesses("cut-off")
    assert (witness.observed, witness.ok) == (0, False)


async def test_a_client_without_connections_fails_the_step(stage: Stage) -> None:
    """The step fails before any connection is closed."""
    stage.world.open[CONSUMER] = frozenset()
    await stage.play(CUT_OFF)
    assert f"the client {CONSUMER} has no TCP connection to close" in str(stage.journal.lines[0].why)
    assert stage.world.called("disconnect_client") == []

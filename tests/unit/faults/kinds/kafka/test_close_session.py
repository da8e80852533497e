"""Close session: by an id from the client or the plan; the broker no longer has the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.tests.unit.faults.conftest import timeline_of
from aftershock.tests.unit.faults.fakes.clients import CONSUMER

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


BY_ID = "{id: gone, at: 1s, kind: close_session, broker: 1, session: 11}"
OF_ARM = "{id: gone, at: 1s, kind: close_session, client: baseline}"


async def test_by_its_id(stage: Stage) -> None:
    """The session is closed on the broker in the plan, and on no other."""
    await stage.play(BY_ID)
    assert {1: set(), 2: {22}, 3: set()} == stage.world.sessions
    (witness,) = stage.journal.witnesses("gone")
    assert (1, 1, True) == (witness.asked, witness.observed, witness.ok)


async def test_of_an_arm(stage: Stage) -> None:
    """All sessions reported by the arm's consumers are closed; a session that no longer exists is omitted."""
    stage.world.told_sessions[CONSUMER] = {1: 11, 2: 22, 3: 33}  # type: ignore[dict-item]
    await stage.play(OF_ARM)
    assert {1: set(), 2: set(), 3: set()} == stage.world.sessions
    assert ((1, 2), (CONSUMER,)) == (
        stage.line("gone", "injected").targets.brokers,
        stage.line("gone", "injected").targets.clients,
    )
    assert stage.all_ok("gone")


async def test_a_rehearsal_closes_nothing(stage: Stage) -> None:
    """The broker still has the session."""
    await stage.rehearse(BY_ID)
    assert {11} == stage.world.sessions[1]  # type: ignore[index]
    assert [False] == [witness.ok for witness in stage.journal.witnesses("gone")]


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [(BY_ID.replace("11", "12"), "has no open fetch session 12"), (OF_ARM, "baseline reports no open fetch session")],
)
async def test_nothing_to_close(stage: Stage, fault: str, sentence: str) -> None:
    """An unknown id or a client without sessions fails the step, and no session is closed."""
    await stage.play(fault)
    assert sentence in str(stage.line("gone", "failed").why)
    assert [] == stage.world.called("close_fetch_session")


@pytest.mark.parametrize("parameters", ["", ", session: 5", ", client: baseline, session: 5, broker: 1"])
def test_refused_in_a_plan(parameters: str) -> None:
    """The session must be given in exactly one way."""
    with pytest.raises(PlanError, match="either `client: ARM`"):
        timeline_of("{at: 1s, kind: close_session" + parameters + "}")

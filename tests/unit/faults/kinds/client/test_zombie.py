"""Zombies: frozen until their group has expelled them, and members again afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError, PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.tests.unit.faults.conftest import FRAME
from aftershock.tests.unit.faults.fakes.clients import CONSUMER

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


ZOMBIE = "{id: undead, at: 1s, for: 50s, kind: zombie, client: baseline}"
EXPELLED = "clients whose group's coordinator no longer has them as members"


async def test_only_the_consumer_is_frozen_and_is_seen_expelled(stage: Stage) -> None:
    """The last witness is the coordinator's word; healed when it is a member again."""
    await stage.play(ZOMBIE)
    assert stage.world.called("pause_client") == [CONSUMER]
    assert stage.all_ok("undead")
    last = stage.journal.witnesses("undead")[-1]
    assert (last.what, last.observed) == (EXPELLED, 1)
    assert stage.journal.states("undead")[-1] == "healed"


async def test_a_group_that_keeps_it(stage: Stage) -> None:
    """Frozen, but never expelled: it was no zombie, and the witness says so."""
    in_group = stage.world.in_group

    async def patient(worker: str) -> bool | None:
        await in_group(worker)
        return True

    stage.world.in_group = patient  # type: ignore[method-assign, assignment]
    await stage.play(ZOMBIE)
    assert [witness.what for witness in stage.journal.witnesses("undead") if not witness.ok] == [EXPELLED]


async def test_never_a_member_again(stage: Stage) -> None:
    """It runs and speaks and stays outside: that is not healed."""
    up = stage.world._up

    def outside(worker: str, ready_us: int) -> None:
        up(worker, ready_us)
        stage.world.grouped.clear()

    stage.world._up = outside  # type: ignore[method-assign, assignment]
    with pytest.raises(FaultError, match="has not joined its group again"):
        await stage.play(ZOMBIE)


async def test_a_rehearsal_proves_nothing(stage: Stage) -> None:
    """Nobody is frozen, and no witness speaks."""
    await stage.rehearse(ZOMBIE)
    witnesses = stage.journal.witnesses("undead")
    assert EXPELLED in {witness.what for witness in witnesses}
    assert not any(witness.ok for witness in witnesses)


async def test_one_without_a_group_is_not_hit(stage: Stage) -> None:
    """What the plan could not know is found at injection: nothing is frozen."""
    stage.world.grouped.clear()
    await stage.play(ZOMBIE)
    assert f"the client {CONSUMER} is in no group now" in str(stage.journal.lines[0].why)
    assert stage.world.called("pause_client") == []


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (FRAME + "  - {at: 1s, for: 30s, kind: zombie, client: baseline}\n", "lengthen `for` to 48s"),
        (
            FRAME.replace(
                "group: readers}", "group: readers}\n    arms: {quick: {settings: {session.timeout.ms: 6000}}}"
            )
            + "  - {at: 1s, for: 5s, kind: zombie, client: quick}\n",
            "the session of `orders/quick` lasts 6s",
        ),
        (
            FRAME.replace("group: readers}", "group: readers}\n    arms: {ours: {client: reference}}")
            + "  - {at: 1s, for: 44s, kind: zombie, client: ours}\n",
            "the session of `orders/ours` lasts 45s",
        ),
        (
            FRAME.replace(", group: readers", "") + "  - {at: 1s, for: 50s, kind: zombie, client: baseline}\n",
            "`baseline` consumes in no group",
        ),
        (
            FRAME + "  - {at: 1s, for: 50s, kind: zombie, client: baseline, op: produce}\n",
            "only a consumer has a session",
        ),
    ],
)
def test_a_session_must_be_outlasted(plan: str, sentence: str) -> None:
    """The arm's own setting, Kafka's default or the broker's, whichever holds for that client; and only consumers."""
    with pytest.raises(PlanError) as refused:
        load_plan(plan)
    assert sentence in str(refused.value)

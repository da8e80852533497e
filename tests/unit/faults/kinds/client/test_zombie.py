"""Zombies: paused until their group has expelled them, and members again after the heal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.kinds.client.base import CLIENT_RETURN_DEADLINE_MS
from aftershock.faults.plan.check import load_plan
from aftershock.tests.unit.faults.conftest import FRAME
from aftershock.tests.unit.faults.fakes.clients import CONSUMER

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


ZOMBIE = "{id: undead, at: 1s, for: 50s, kind: zombie, client: baseline}"
EXPELLED = "consumers that their group's coordinator has expelled from the group"


async def test_only_the_consumer_is_paused_and_expelled(stage: Stage) -> None:
    """The last witness is the coordinator's list of members; the fault is healed when the consumer is a member
    again.
    """
    await stage.play(ZOMBIE)
    assert stage.world.called("pause_client") == [CONSUMER]
    assert stage.all_ok("undead")
    last = stage.journal.witnesses("undead")[-1]
    assert (last.what, last.observed) == (EXPELLED, 1)
    assert stage.journal.states("undead")[-1] == "healed"


async def test_a_group_that_does_not_expel_the_consumer(stage: Stage) -> None:
    """A paused consumer that stays a member fails the witness."""
    in_group = stage.world.in_group

    async def patient(worker: str) -> bool | None:
        await in_group(worker)
        return True

    stage.world.in_group = patient  # type: ignore[method-assign, assignment]
    await stage.play(ZOMBIE)
    assert [witness.what for witness in stage.journal.witnesses("undead") if not witness.ok] == [EXPELLED]


async def test_never_a_member_again(stage: Stage) -> None:
    """A consumer that runs and never joins the group again is healed after the deadline, and left to the checks."""
    in_group, expelled = stage.world.in_group, set[str]()

    async def outside(worker: str) -> bool | None:
        if await in_group(worker) is False:
            expelled.add(worker)
        return worker not in expelled

    stage.world.in_group = outside  # type: ignore[method-assign, assignment]
    await stage.play(ZOMBIE)
    times_us = {line.state: line.t_us for line in stage.journal.lines if line.fault == "undead"}
    assert times_us["healed"] - times_us["healing"] >= CLIENT_RETURN_DEADLINE_MS * 1000


async def test_a_rehearsal_proves_nothing(stage: Stage) -> None:
    """No client is paused, and no witness passes."""
    await stage.rehearse(ZOMBIE)
    witnesses = stage.journal.witnesses("undead")
    assert EXPELLED in {witness.what for witness in witnesses}
    assert not any(witness.ok for witness in witnesses)


async def test_a_consumer_without_group_is_not_paused(stage: Stage) -> None:
    """The plan check can't detect it, so the injection fails before the pause."""
    stage.world.grouped.clear()
    await stage.play(ZOMBIE)
    assert f"the client {CONSUMER} is a member of no group" in str(stage.journal.lines[0].why)
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
            "group of `orders/quick` expels a paused consumer only after 6s",
        ),
        (
            FRAME.replace("group: readers}", "group: readers}\n    arms: {ours: {client: reference}}")
            + "  - {at: 1s, for: 44s, kind: zombie, client: ours}\n",
            "group of `orders/ours` expels a paused consumer only after 45s",
        ),
        (
            FRAME.replace(
                "group: readers}",
                "group: readers}\n    arms: {ours: {client: reference, settings: {group.protocol: classic, "
                "session.timeout.ms: 7000}}}",
            )
            + "  - {at: 1s, for: 5s, kind: zombie, client: ours}\n",
            "group of `orders/ours` expels a paused consumer only after 7s",
        ),
        (
            FRAME.replace(", group: readers", "") + "  - {at: 1s, for: 50s, kind: zombie, client: baseline}\n",
            "no consumer of `baseline` is in a group",
        ),
        (
            FRAME + "  - {at: 1s, for: 50s, kind: zombie, client: baseline, op: produce}\n",
            "only consumers and services have group sessions",
        ),
    ],
)
def test_the_fault_must_outlast_the_session_timeout(plan: str, sentence: str) -> None:
    """The timeout is the arm's setting, Kafka's default or the broker's; only consumers can be zombies."""
    with pytest.raises(PlanError) as refused:
        load_plan(plan)
    assert sentence in str(refused.value)

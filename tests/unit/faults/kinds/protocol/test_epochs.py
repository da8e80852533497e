"""False leader epochs: the rule from the epochs at the injection, and a witness that needs a leader that moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aftershock.faults.plan.check import load_plan
from aftershock.tests.unit.faults.conftest import FRAME

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


MOVE = "{id: move, at: 2s, kind: reassign, topic: orders, rotate: 1}"


def fault(words: str, at: str = "0s") -> str:
    return f"{{id: bad, at: {at}, for: 8s, kind: falsify_epochs, topic: orders, {words}}}"


def compared(stage: Stage) -> list[tuple[int, int, bool]]:
    """Return asked, observed and verdict of each comparison of epochs."""
    witnesses = (witness for witness in stage.journal.witnesses("bad") if witness.unit == "partitions")
    return [(round(witness.asked), round(witness.observed), witness.ok) for witness in witnesses]


async def test_absent_epochs(stage: Stage) -> None:
    await stage.play(fault("epoch: absent"))
    assert [(6, 6, True), (6, 6, True)] == compared(stage)
    assert stage.all_ok("bad")


async def test_epochs_that_do_not_rise(stage: Stage) -> None:
    """Before a leader has moved, there is nothing to compare."""
    await stage.play(fault("epoch: frozen"), MOVE)
    assert [(6, 6, True)] == compared(stage)
    assert stage.all_ok("bad")


async def test_no_leader_moves(stage: Stage) -> None:
    """The fault shows nothing, and the witnesses are the counters alone."""
    await stage.play(fault("epoch: frozen"))
    assert [] == compared(stage)


async def test_earlier_epochs(stage: Stage) -> None:
    """Of all partitions, whose leaders moved before the fault."""
    await stage.play(MOVE.replace("2s", "0s"), fault("epoch: earlier, by: 1", at="4s"))
    assert [(6, 6, True), (6, 6, True)] == compared(stage)


async def test_there_is_no_earlier_epoch(stage: Stage) -> None:
    await stage.play(fault("epoch: earlier"))
    assert ["failed"] == stage.journal.states("bad")
    assert "no earlier epoch" in (stage.line("bad", "failed").why or "")


async def test_a_rule_without_effect(stage: Stage) -> None:
    """The epochs are the controller's, so the comparison fails."""
    stage.world.ineffective = True
    await stage.play(fault("epoch: absent"))
    assert [(6, 0, False), (6, 0, False)] == compared(stage)


async def test_one_partition(stage: Stage) -> None:
    await stage.play(fault("epoch: absent, partition: 2"))
    assert [(1, 1, True), (1, 1, True)] == compared(stage)


def test_a_topic_whose_leaders_cannot_move_is_named() -> None:
    plan = FRAME.replace("replication: 3, config: {min.insync.replicas: 2}", "replication: 1")
    checked = load_plan(f"{plan}  - {fault('epoch: frozen')}\n")
    assert any("its leaders can't move" in warning for warning in checked.warnings)

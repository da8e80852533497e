"""Controllers: another is seen to rule, the node comes back; and what a plan should know about quorums is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.tests.unit.faults.conftest import FRAME, timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


KILL = "{id: next, at: 1s, for: 4s, kind: kill_controller}"
MOVE = "{id: next, at: 1s, kind: move_controller}"


@pytest.mark.parametrize(("by", "verb"), [("restart", "stop"), ("pause", "pause"), ("kill", "kill")])
async def test_moved(stage: Stage, by: str, verb: str) -> None:
    """The one in office is taken away in that manner until another rules, and runs again when the action is over."""
    await stage.play(MOVE.replace("controller}", f"controller, by: {by}}}"))
    assert [3] == stage.world.called(verb)
    assert stage.world.active_controller != 3
    assert stage.world.healthy()
    (witness,) = stage.journal.witnesses("next")
    assert (2, 2, True) == (witness.asked, witness.observed, witness.ok)
    assert ["intended", "injected", "witnessed", "healed"] == stage.journal.states("next")
    assert ((3,), ("orders",)) == (
        stage.line("next", "injected").targets.brokers,
        stage.line("next", "injected").targets.topics,
    )


@pytest.mark.parametrize("by", ["restart", "pause", "kill"])
async def test_interrupted(stage: Stage, by: str) -> None:
    """Cancelled while nobody rules: the node is brought back all the same."""
    stage.world.deposed = False
    await stage.interrupt(3_000, MOVE.replace("controller}", f"controller, by: {by}}}"))
    assert stage.world.healthy()


async def test_nobody_takes_over(stage: Stage) -> None:
    """No other is elected in time: failed with that, and the node is back."""
    stage.world.deposed = False
    await stage.play(MOVE)
    assert "node 3 is still the active controller" in str(stage.line("next", "failed").why)
    assert stage.world.healthy()


@pytest.mark.parametrize("fault", [KILL, MOVE])
async def test_not_done(stage: Stage, fault: str) -> None:
    """A rehearsal touches no node, and the one in office is still there."""
    await stage.rehearse(fault)
    assert 3 == stage.world.active_controller
    assert not {"kill", "stop", "pause"} & {verb for _, verb, _ in stage.world.calls}
    assert {False} == {witness.ok for witness in stage.journal.witnesses("next")}


async def test_killed_for_a_while(stage: Stage) -> None:
    """Another rules from beginning to end, the node stays dead as long, and is back afterwards."""
    await stage.play(KILL)
    assert stage.all_ok("next")
    assert ["intended", "injected", "witnessed", "healing", "healed"] == stage.journal.states("next")
    assert len(stage.journal.witnesses("next")) >= 5
    assert stage.world.healthy()


@pytest.mark.parametrize(
    "fault",
    [KILL, MOVE, "{at: 1s, for: 5s, kind: fence_broker}", "{at: 1s, for: 5s, kind: pause, broker: controller}"],
)
def test_combined_nodes_are_confounded(fault: str) -> None:
    """`plan check` warns where the controller is a broker as well, and is silent where it isn't."""
    combined = load_plan(FRAME + f"  - {fault}\n").warnings
    isolated = load_plan("cluster: {controllers: 3}\n" + FRAME + f"  - {fault}\n").warnings
    assert any("is a broker as well, so" in warning for warning in combined)
    assert not any("is a broker as well, so" in warning for warning in isolated)


@pytest.mark.parametrize("fault", [KILL, MOVE])
def test_nobody_to_take_over(fault: str) -> None:
    """One voter is refused."""
    with pytest.raises(PlanError, match="no other controller can take over"):
        load_plan("cluster: {controllers: 1}\n" + FRAME + f"  - {fault}\n")


def test_met_by_whoever_uses_a_topic() -> None:
    """Clients never talk to a controller, so its loss is met by all of them."""
    assert {"topics"} == {step.met_by for step in timeline_of(KILL).steps}

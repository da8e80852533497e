"""Faults on the controller: another is elected, the node returns; the plan check reports quorum problems."""

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
    """The controller is taken away until another is elected, and runs again at the end of the action."""
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
    """Cancelled without an active controller, the node is brought back."""
    stage.world.deposed = False
    await stage.interrupt(3_000, MOVE.replace("controller}", f"controller, by: {by}}}"))
    assert stage.world.healthy()


async def test_no_other_controller_is_elected(stage: Stage) -> None:
    """If no other controller is elected in time, the step fails, and the node is restarted."""
    stage.world.deposed = False
    await stage.play(MOVE)
    assert "node 3 is still the active controller" in str(stage.line("next", "failed").why)
    assert stage.world.healthy()


@pytest.mark.parametrize("fault", [KILL, MOVE])
async def test_a_rehearsal_affects_no_node(stage: Stage, fault: str) -> None:
    """The controller stays, and no witness passes."""
    await stage.rehearse(fault)
    assert 3 == stage.world.active_controller
    assert not {"kill", "stop", "pause"} & {verb for _, verb, _ in stage.world.calls}
    assert {False} == {witness.ok for witness in stage.journal.witnesses("next")}


async def test_killed_for_a_while(stage: Stage) -> None:
    """Another node is the controller and the victim dead during the fault; the victim is back afterwards."""
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
    assert any("is a broker too, so" in warning for warning in combined)
    assert not any("is a broker too, so" in warning for warning in isolated)


@pytest.mark.parametrize("fault", [KILL, MOVE])
def test_a_single_voter_is_refused(fault: str) -> None:
    with pytest.raises(PlanError, match="the cluster has fewer than 3 controllers"):
        load_plan("cluster: {controllers: 1}\n" + FRAME + f"  - {fault}\n")


def test_losing_the_controller_concerns_clients_of_all_topics() -> None:
    """Clients never send requests to a controller, so its loss affects all topics."""
    assert {"topics"} == {step.met_by for step in timeline_of(KILL).steps}

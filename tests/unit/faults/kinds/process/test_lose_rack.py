"""Losing a rack: all its nodes die at once, stay dead, and are healed when all are in service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.conflicts import conflict_in_force
from aftershock.faults.runtime.undo import perform
from aftershock.tests.unit.faults.conftest import FRAME, timeline_of
from aftershock.tests.unit.faults.fake_world import RACKS

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


LOSE = "{id: lost, at: 1s, for: 6s, kind: lose_rack, rack: b}"


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers 2 and 3 share rack b."""
    monkeypatch.setitem(RACKS, 3, "b")  # type: ignore[misc]


@pytest.mark.usefixtures("crowded")
async def test_all_its_nodes_at_once(stage: Stage) -> None:
    """Both nodes die at the same moment and stay dead, neither answers, and one undo starts both."""
    await stage.play(LOSE)
    assert [(1_000_000, 2), (1_000_000, 3)] == [
        (t_us // 1_000_000 * 1_000_000, args) for t_us, verb, args in stage.world.calls if verb == "kill"
    ]
    assert (2, 3) == stage.line("lost", "intended").targets.brokers
    assert ["start", "start"] == [each["verb"] for each in stage.line("lost", "intended").undo.args["undos"]]
    assert stage.all_ok("lost")
    reads = [witness for witness in stage.journal.witnesses("lost") if witness.unit == "nodes"]
    assert {(2, 2)} == {(witness.asked, witness.observed) for witness in reads}
    assert 5 <= len(reads) <= 8
    assert 10_000_000 <= stage.line("lost", "healed").t_us <= 10_400_000
    assert stage.world.healthy()


async def test_roles_of_its_nodes_are_recorded(stage: Stage) -> None:
    """The journal has the leaderships, and the controller if it was in the rack."""
    await stage.play(LOSE)
    assert stage.line("lost", "intended").targets.roles["nodes"] == {
        "2": {"leads": {"orders": 2}, "controller": False, "rack": "b"}
    }


async def test_started_from_outside(stage: Stage) -> None:
    """A container that starts during the fault fails the read-back."""
    await stage.play_with(3_500, lambda: stage.world._regain(2), LOSE)  # type: ignore[arg-type]
    assert ["nodes"] == sorted({witness.unit for witness in stage.journal.witnesses("lost") if not witness.ok})


async def test_a_kill_that_does_not_take(stage: Stage) -> None:
    """A container still running after SIGKILL fails the injection, with a message."""

    async def ignored(_broker: object) -> None:
        return

    stage.world.kill = ignored  # type: ignore[method-assign, assignment]
    await stage.play(LOSE)
    assert ["intended", "failed", "healing", "healed"] == stage.journal.states("lost")


async def test_a_rehearsal_fails_its_witnesses(stage: Stage) -> None:
    await stage.rehearse(LOSE)
    assert not any(witness.ok for witness in stage.journal.witnesses("lost"))


@pytest.mark.usefixtures("crowded")
@pytest.mark.parametrize("at_ms", [1_001, 1_500, 7_001])
async def test_interrupted(stage: Stage, at_ms: int) -> None:
    """An interruption at any time leaves all nodes running, and another process may repeat the undo."""
    await stage.interrupt(at_ms, LOSE)
    assert stage.world.healthy()
    await perform(stage.line("lost", "intended").undo, stage.world, stage.clock)
    assert stage.world.healthy()


async def test_a_node_that_is_down_already(stage: Stage) -> None:
    """The rack can't be lost as a whole, so the step is refused before any change."""
    stage.world._lose(2, "paused")  # type: ignore[arg-type]
    await stage.play(LOSE)
    assert "node 2 is paused already" in str(stage.line("lost", "failed").why)
    assert [] == stage.world.called("kill")


def test_faults_on_nodes_of_a_lost_rack_conflict() -> None:
    """A pause of a node in the lost rack is refused; a pause in another rack is allowed."""
    with pytest.raises(PlanError, match=r"this pause conflicts with `lost`.* on node 2"):
        timeline_of(LOSE, "{at: 2s, for: 8s, kind: pause, broker: 2}")
    assert 2 == len(timeline_of(LOSE, "{at: 2s, for: 8s, kind: pause, broker: 3}").steps)


def test_manual_faults_conflict_by_node() -> None:
    """For manual injections the resolved nodes are compared."""
    both, one = {"brokers": [2, 12]}, {"brokers": [12]}
    assert "node 12" == conflict_in_force("lose_rack", both, "kill", one)


def test_an_unknown_rack_is_refused() -> None:
    with pytest.raises(PlanError, match="the cluster has no rack `z`"):
        timeline_of(LOSE.replace("rack: b", "rack: z"))


def test_grey_failure() -> None:
    """A fault shorter than the session timeout is allowed, with a warning."""
    warnings = load_plan(f"{FRAME}  - {LOSE.replace('6s', '2s')}\n").warnings
    assert any("is a grey failure" in warning for warning in warnings)

"""Losing a rack: every node of it dies at once, stays dead, and is back only when it is in service."""

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
    """Both die at the same moment and stay dead, none answers, and one undo starts both."""
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


async def test_what_its_nodes_did_is_recorded(stage: Stage) -> None:
    """Leaderships and the controller's office go with the rack."""
    await stage.play(LOSE)
    assert stage.line("lost", "intended").targets.roles["nodes"] == {
        "2": {"leads": {"orders": 2}, "controller": False, "rack": "b"}
    }


async def test_raised_from_the_dead(stage: Stage) -> None:
    """One container that comes up during the fault fails the read-back."""
    await stage.play_with(3_500, lambda: stage.world._regain(2), LOSE)  # type: ignore[arg-type]
    assert ["nodes"] == sorted({witness.unit for witness in stage.journal.witnesses("lost") if not witness.ok})


async def test_a_kill_that_does_not_take(stage: Stage) -> None:
    """Still running after SIGKILL: a failed injection, in words."""

    async def ignored(_broker: object) -> None:
        return

    stage.world.kill = ignored  # type: ignore[method-assign, assignment]
    await stage.play(LOSE)
    assert ["intended", "failed", "healing", "healed"] == stage.journal.states("lost")


async def test_nothing_done_is_no_proof(stage: Stage) -> None:
    """In a rehearsal none of the witnesses speaks."""
    await stage.rehearse(LOSE)
    assert not any(witness.ok for witness in stage.journal.witnesses("lost"))


@pytest.mark.usefixtures("crowded")
@pytest.mark.parametrize("at_ms", [1_001, 1_500, 7_001])
async def test_interrupted(stage: Stage, at_ms: int) -> None:
    """Whenever it is broken off, all of its nodes run again; and another process may do it twice."""
    await stage.interrupt(at_ms, LOSE)
    assert stage.world.healthy()
    await perform(stage.line("lost", "intended").undo, stage.world, stage.clock)
    assert stage.world.healthy()


async def test_a_node_that_is_down_already(stage: Stage) -> None:
    """The rack can't be lost as a whole any more: refused before anything is touched."""
    stage.world._lose(2, "paused")  # type: ignore[arg-type]
    await stage.play(LOSE)
    assert "node 2 is paused already" in str(stage.line("lost", "failed").why)
    assert [] == stage.world.called("kill")


def test_its_nodes_are_known_from_the_plan() -> None:
    """A pause of a node in a rack that is lost is refused; one in another rack is welcome."""
    with pytest.raises(PlanError, match=r"this pause conflicts with `lost`.* on node 2"):
        timeline_of(LOSE, "{at: 2s, for: 8s, kind: pause, broker: 2}")
    assert 2 == len(timeline_of(LOSE, "{at: 2s, for: 8s, kind: pause, broker: 3}").steps)


def test_it_clashes_with_what_is_in_force() -> None:
    """By hand, the nodes themselves are compared."""
    both, one = {"brokers": [2, 12]}, {"brokers": [12]}
    assert "node 12" == conflict_in_force("lose_rack", both, "kill", one)


def test_unknown_rack() -> None:
    """Refused by the check."""
    with pytest.raises(PlanError, match="the cluster has no rack `z`"):
        timeline_of(LOSE.replace("rack: b", "rack: z"))


def test_grey_failure() -> None:
    """Shorter than the session timeout: allowed, with a warning."""
    warnings = load_plan(f"{FRAME}  - {LOSE.replace('6s', '2s')}\n").warnings
    assert any("is a grey failure" in warning for warning in warnings)

"""Rolling restart: one broker at a time, each in every ISR before the next; interrupted, all run."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.runtime.record import Undo
from aftershock.faults.runtime.undo import perform
from aftershock.tests.unit.faults.conftest import FRAME, timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


ROLL = "{id: roll, at: 1s, kind: rolling_restart}"


def turns(stage: Stage) -> list[tuple[str, object]]:
    return [(verb, args) for _, verb, args in stage.world.calls if verb in ("stop", "start")]


async def test_one_after_the_other_and_the_controller_last(stage: Stage) -> None:
    """Broker 3 is the active controller and last. Each boots for three seconds before the next one's turn."""
    await stage.play(ROLL)
    assert turns(stage) == [(verb, broker) for broker in (1, 2, 3) for verb in ("stop", "start")]
    stops = [t_us for t_us, verb, _ in stage.world.calls if verb == "stop"]
    assert [3, 3] == [(later - earlier) // 1_000_000 for earlier, later in pairwise(stops)]
    assert stage.journal.states("roll") == ["intended", "injected", "witnessed", "healed"]
    assert stage.all_ok("roll")
    assert stage.world.healthy()


async def test_what_is_witnessed(stage: Stage) -> None:
    """Three turns, one node down at a time, all leaderships at a higher epoch."""
    await stage.play(ROLL)
    witnesses = {witness.what.partition(",")[0]: witness for witness in stage.journal.witnesses("roll")}
    returned = witnesses[
        "nodes that exited and came back into the ISR of all their partitions before the next node was stopped"
    ]
    assert (3, 3) == (returned.asked, returned.observed)
    assert witnesses["largest number of nodes that were down at one time"].observed == 1
    moved = witnesses["partitions whose leader epoch grew when the node that led them restarted"]
    assert moved.asked == moved.observed > 3


async def test_the_pause_between(stage: Stage) -> None:
    """Two pauses for three brokers."""
    await stage.play(ROLL)
    quick_us = stage.line("roll", "injected").t_us
    again = type(stage)()
    await again.play("{id: roll, at: 1s, kind: rolling_restart, pause: 4s}")
    assert 8_000_000 == again.line("roll", "injected").t_us - quick_us


async def test_a_rehearsal_fails_its_witnesses(stage: Stage) -> None:
    await stage.rehearse(ROLL)
    assert not any(witness.ok for witness in stage.journal.witnesses("roll"))


async def test_two_down_at_once(stage: Stage) -> None:
    """A second node down during a turn fails the witness of one at a time."""
    stop = stage.world.stop

    async def and_another(broker: object) -> None:
        await stop(broker)  # type: ignore[arg-type]
        if broker == 1:
            stage.world._lose(2, "exited")  # type: ignore[arg-type]
            stage.world.broken["stop"] = AssertionError("nobody's turn comes while a node is out of an ISR")

    stage.world.stop = and_another  # type: ignore[method-assign]
    start = stage.world.start

    async def both(broker: object) -> None:
        await start(broker)  # type: ignore[arg-type]
        stage.world._regain(2)  # type: ignore[arg-type]
        stage.world.broken.clear()

    stage.world.start = both  # type: ignore[method-assign]
    await stage.play(ROLL)
    failed = [witness for witness in stage.journal.witnesses("roll") if not witness.ok]
    assert [("largest number of nodes that were down at one time", 2)] == [
        (witness.what, witness.observed) for witness in failed
    ]


async def test_leaders_that_never_moved(stage: Stage) -> None:
    """Restarts without a trace in Kafka's metadata fail the witness of epochs."""
    stage.world._lead = lambda _where, _leader: None  # type: ignore[method-assign]
    await stage.play(ROLL)
    assert ["partitions"] == [witness.unit for witness in stage.journal.witnesses("roll") if not witness.ok]


@pytest.mark.parametrize("at_ms", [1_001, 1_500, 4_400, 5_000, 9_000])
async def test_interrupted(stage: Stage, at_ms: int) -> None:
    """Interrupted in any turn or between two, every broker runs at the end."""
    await stage.interrupt(at_ms, ROLL)
    assert stage.world.healthy()
    assert "healed" == stage.journal.states("roll")[-1]


async def test_healed_by_another_process(stage: Stage) -> None:
    """The journalled undo starts all nodes that are down, and a second undo changes nothing."""
    await stage.play(ROLL)
    undo: Undo = stage.line("roll", "intended").undo
    stage.world._lose(2, "exited")  # type: ignore[arg-type]
    for _ in range(2):
        await perform(undo, stage.world, stage.clock)
        assert stage.world.healthy()


async def test_a_broker_that_is_down_has_no_turn(stage: Stage) -> None:
    """The step is refused with a message before any change."""
    stage.world._lose(2, "exited")  # type: ignore[arg-type]
    await stage.play(ROLL)
    assert "node 2 is exited already" in str(stage.line("roll", "failed").why)
    assert [] == turns(stage)


def test_for_is_refused() -> None:
    """The restarts are the action and can't have `for`."""
    with pytest.raises(PlanError, match="rolling_restart can't have `for`"):
        timeline_of("{at: 0s, for: 8s, kind: rolling_restart}")


def test_it_needs_every_process_to_itself() -> None:
    """A broker that another fault keeps down would block the rolling restart, so the plan is refused."""
    with pytest.raises(PlanError, match="conflicts with"):
        timeline_of(ROLL, "{at: 5s, for: 8s, kind: kill, broker: 2}")


@pytest.mark.parametrize(("min_isr", "warned"), [(2, False), (3, True)])
def test_isr_rules_that_cannot_hold(min_isr: int, *, warned: bool) -> None:
    """A min.insync.replicas equal to the replication is warned of."""
    text = FRAME.replace("min.insync.replicas: 2", f"min.insync.replicas: {min_isr}")
    warnings = load_plan(f"{text}  - {ROLL}\n").warnings
    assert warned == any("it has 3 replicas and min.insync.replicas is 3" in warning for warning in warnings)

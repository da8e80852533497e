"""Restart: down, up, in service, with another leader in between; nothing is left to undo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError, PlanError
from aftershock.faults.timeline.timeline import Marks, phases
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


RESTART = "{id: again, at: 1s, kind: restart, broker: leader of orders/0}"


async def test_down_and_back(stage: Stage) -> None:
    """Seen exited and back in service, both partitions it led at a higher epoch; in force until it is back."""
    await stage.play(RESTART)
    assert stage.journal.states("again") == ["intended", "injected", "witnessed", "healed"]
    witnesses = stage.journal.witnesses("again")
    assert [(witness.unit, witness.observed, witness.asked) for witness in witnesses] == [
        ("restarts", 1, 1),
        ("partitions", 2, 2),
    ]
    assert stage.all_ok("again")
    assert stage.line("again", "intended").undo.verb == "start"
    assert stage.line("again", "injected").undo.verb == "nothing"
    assert [verb for _, verb, _ in stage.world.calls if verb in ("stop", "start")] == ["stop", "start"]
    assert 4_000_000 <= stage.line("again", "injected").t_us <= 4_400_000
    assert stage.world.healthy()


async def test_its_window_is_the_action_and_the_plans_fault_time(stage: Stage) -> None:
    """From the intent to `timing.fault` (5 s) after it was back in service."""
    await stage.play(RESTART)
    rows = phases(stage.journal.as_json(), Marks(0, 0, 0, 60_000_000), timeline_of(RESTART))
    window = next(row for row in rows if row.fault == "again")
    done_us = stage.line("again", "injected").t_us
    assert (window.start_us, window.end_us) == (1_000_000, done_us + 5_000_000)


async def test_leaders_that_never_moved(stage: Stage) -> None:
    """A restart without a trace in Kafka's metadata fails the second witness."""
    stage.world._lead = lambda _where, _leader: None  # type: ignore[method-assign]
    await stage.play(RESTART)
    failed = [witness for witness in stage.journal.witnesses("again") if not witness.ok]
    assert [(witness.unit, witness.observed) for witness in failed] == [("partitions", 0)]


async def test_container_that_does_not_stop(stage: Stage) -> None:
    """A node that never stopped was not restarted, so the injection fails."""

    async def ignored(_broker: object) -> None:
        return

    stage.world.stop = ignored  # type: ignore[method-assign, assignment]
    await stage.play(RESTART)
    assert stage.journal.states("again") == ["intended", "failed", "healing", "healed"]


async def test_node_that_does_not_come_back(stage: Stage) -> None:
    """A node that dies after its start fails the step; the undo starts it once more."""
    start = stage.world.start

    async def dying(broker: object) -> None:
        await start(broker)  # type: ignore[arg-type]
        stage.world.states[broker] = "exited"  # type: ignore[index]

    stage.world.start = dying  # type: ignore[method-assign]
    with pytest.raises(FaultError, match=r"again could not be healed: node 1 did not come back"):
        await stage.play(RESTART)
    assert "the node's container is exited" in str(stage.line("again", "failed").why)
    assert len(stage.world.called("start")) == 2


@pytest.mark.parametrize("at_ms", [1_001, 1_500, 2_500, 3_000, 4_000])
async def test_cancelled_in_flight(stage: Stage, at_ms: int) -> None:
    """Interrupted at any point of the restart, the node runs at the end."""
    stop = stage.world.stop

    async def slow(broker: object) -> None:
        await stage.clock.sleep_until_us(stage.clock.now_us() + 1_500_000)
        await stop(broker)  # type: ignore[arg-type]

    stage.world.stop = slow  # type: ignore[method-assign]
    await stage.interrupt(at_ms, RESTART)
    assert stage.world.healthy()
    assert stage.journal.states("again")[-1] == "healed"


def test_for_is_refused() -> None:
    """A restart is an action and can't have `for`."""
    with pytest.raises(PlanError, match="restart can't have `for`"):
        timeline_of("{at: 0s, for: 8s, kind: restart, broker: 1}")

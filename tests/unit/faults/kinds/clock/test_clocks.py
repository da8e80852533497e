"""Clocks: moved, fast, slow and jumping; the append time of a record shows it, and the heal sets them right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.runtime.undo import perform
from aftershock.faults.targets.values import BrokerId, ClockShift
from aftershock.tests.unit.faults.conftest import FRAME

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage

BUMP = "{id: moved, at: 1s, for: 6s, kind: clock_bump, broker: leader of orders/0, by: -1h}"
SKEW = "{id: moved, at: 1s, for: 6s, kind: clock_skew, broker: 1, rate: 1.5}"
STROBE = "{id: moved, at: 1s, for: 6s, kind: clock_strobe, broker: 1, by: 5s, every: 100ms}"
FAULTS = (BUMP, SKEW, STROBE)


@pytest.mark.parametrize(
    ("fault", "shift"),
    [
        (BUMP, ClockShift(offset_ms=-3_600_000)),
        (SKEW, ClockShift(rate=1.5)),
        (STROBE, ClockShift(strobe_ms=5_000, every_ms=100)),
    ],
)
async def test_the_clock_is_moved_and_set_right(stage: Stage, fault: str, shift: ClockShift) -> None:
    await stage.play(fault)
    assert [(BrokerId(1), shift), (BrokerId(1), ClockShift())] == stage.world.called("set_clock")
    assert stage.all_ok("moved")
    assert len(stage.journal.witnesses("moved")) >= 3
    assert ["intended", "injected", "witnessed", "healing", "healed"] == stage.journal.states("moved")
    assert 0 == await stage.world.clock_error_ms(BrokerId(1))


async def test_what_is_asked_grows_with_the_time_of_a_fast_clock(stage: Stage) -> None:
    await stage.play(SKEW)
    asked = [witness.asked for witness in stage.journal.witnesses("moved")]
    assert asked == sorted(asked)
    assert 400 <= asked[0] <= 800
    assert asked[-1] >= 2_500


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_broker_that_does_not_see_it_fails_the_witness(stage: Stage, fault: str) -> None:
    stage.world.deaf_clocks = True
    await stage.play(fault)
    assert not any(witness.ok for witness in stage.journal.witnesses("moved"))


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_rehearsal_fails_its_witnesses(stage: Stage, fault: str) -> None:
    await stage.rehearse(fault)
    assert stage.journal.witnesses("moved")
    assert not any(witness.ok for witness in stage.journal.witnesses("moved"))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at_ms", [1_001, 3_500, 6_999])
async def test_interrupted(stage: Stage, fault: str, at_ms: int) -> None:
    """An interruption leaves the clock right, and another process may repeat the undo."""
    await stage.interrupt(at_ms, fault)
    await perform(stage.line("moved", "intended").undo, stage.world, stage.clock)
    assert 0 == await stage.world.clock_error_ms(BrokerId(1))


@pytest.mark.parametrize(
    ("by", "topics"),
    [("191h", ()), ("-191h", ()), ("169h", ("orders",))],
)
async def test_a_clock_ahead_of_the_retention_permits_losses(stage: Stage, by: str, topics: tuple[str, ...]) -> None:
    """The topic keeps records for seven days, which are 168 h."""
    retention_ms = {"191h": 8 * 86_400_000}.get(by, 7 * 86_400_000)
    await stage.world.alter_config("topic", "orders", {"retention.ms": str(retention_ms)})
    await stage.play(f"{{id: moved, at: 1s, for: 6s, kind: clock_bump, broker: 1, by: {by}}}")
    targets = stage.line("moved", "intended").targets
    assert topics == targets.topics
    assert bool(topics) == ("lost" in targets.roles.get("permits", ()))


async def test_a_cluster_without_clocks_is_refused(stage: Stage) -> None:
    stage.world.clocks = False
    await stage.play(BUMP)
    assert "the clocks of this cluster can't be moved" in str(stage.line("moved", "failed").why)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("{kind: clock_bump, broker: 1, for: 5s, by: 50ms}", "can't be told from a busy host"),
        ("{kind: clock_bump, broker: 1, for: 5s, by: 999h}", "give 720h at most"),
        ("{kind: clock_bump, broker: 1, for: 5s, by: fast}", "fast is not a duration"),
        ("{kind: clock_bump, broker: 1, by: 5s}", "for"),
        ("{kind: clock_skew, broker: 1, for: 5s, rate: 1.05}", "can't be told from a busy host"),
        ("{kind: clock_strobe, broker: 1, for: 5s, by: -5s}", "-5s is not a duration"),
    ],
)
def test_refused(fault: str, expected: str) -> None:
    with pytest.raises(PlanError, match=expected):
        load_plan(f"{FRAME}  - {fault}\n")


def test_the_only_controller_is_warned_of() -> None:
    frame = FRAME.replace("name: test\n", "name: test\ncluster: {racks: {a: 1}}\n").replace(
        "replication: 3", "replication: 1"
    )
    frame = frame.replace("min.insync.replicas: 2", "min.insync.replicas: 1")
    checked = load_plan(f"{frame}  - {{kind: clock_bump, broker: 1, for: 5s, by: 1h}}\n")
    assert any("the only broker is the only controller too" in str(warning) for warning in checked.warnings)

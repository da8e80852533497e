"""Slow and faulty disks: a write through the same mount and the layer's counters show it; the heal clears errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.runtime.undo import perform
from aftershock.faults.targets.values import BrokerId, DiskDefects
from aftershock.tests.unit.faults.conftest import FRAME

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage

SLOW = "{id: disk, at: 1s, for: 6s, kind: slow_disk, broker: 1, delay: 50ms, jitter: 10ms}"
ERRORS = "{id: disk, at: 1s, for: 6s, kind: disk_errors, broker: 1}"


async def test_a_slow_disk(stage: Stage) -> None:
    await stage.play(SLOW)
    slow = DiskDefects(("fsync",), delay_ms=50, jitter_ms=10)
    assert [(BrokerId(1), slow), (BrokerId(1), DiskDefects())] == stage.world.called("set_disk_defects")
    assert stage.all_ok("disk")
    witnesses = stage.journal.witnesses("disk")
    assert {(40, 50.5)} == {(each.asked, each.observed) for each in witnesses if each.unit == "ms"}
    assert "operations" == witnesses[-1].unit
    assert [] == stage.world.settled
    assert stage.world.healthy()


async def test_a_faulty_disk_halts_the_broker(stage: Stage) -> None:
    """The heal clears write errors that the kernel has yet to report, and only then starts the broker."""
    await stage.play(ERRORS)
    assert stage.all_ok("disk")
    assert {"operations", "halts"} == {each.unit for each in stage.journal.witnesses("disk")}
    assert [BrokerId(1)] == stage.world.settled
    verbs = [verb for _, verb, _ in stage.world.calls if verb in ("set_disk_defects", "settle_disk", "start")]
    assert ["set_disk_defects", "set_disk_defects", "settle_disk", "start"] == verbs
    assert stage.world.healthy()


@pytest.mark.parametrize("fault", [SLOW, ERRORS])
async def test_a_disk_that_stays_sound_fails_the_witness(stage: Stage, fault: str) -> None:
    stage.world.sound_disks = True
    await stage.play(fault)
    assert not any(witness.ok for witness in stage.journal.witnesses("disk"))


@pytest.mark.parametrize("fault", [SLOW, ERRORS])
async def test_a_rehearsal_fails_its_witnesses(stage: Stage, fault: str) -> None:
    await stage.rehearse(fault)
    assert stage.journal.witnesses("disk")
    assert not any(witness.ok for witness in stage.journal.witnesses("disk"))


@pytest.mark.parametrize("fault", [SLOW, ERRORS])
@pytest.mark.parametrize("at_ms", [1_001, 3_500, 6_999])
async def test_interrupted(stage: Stage, fault: str, at_ms: int) -> None:
    await stage.interrupt(at_ms, fault)
    assert stage.world.healthy()
    await perform(stage.line("disk", "intended").undo, stage.world, stage.clock)
    assert DiskDefects() == stage.world.defects[BrokerId(1)]
    assert stage.world.healthy()


async def test_a_node_without_a_disk_of_its_own_is_refused(stage: Stage) -> None:
    stage.world.devices[BrokerId(1)] = None
    await stage.play(SLOW)
    assert "node 1 has no disk of its own" in str(stage.line("disk", "failed").why)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (SLOW.replace("jitter: 10ms", "jitter: 60ms"), "no operation can take less time than none"),
        (SLOW.replace("delay: 50ms", "delay: 1ms"), "delay"),
        (ERRORS.replace("broker: 1", "broker: 1, share: 0%"), "is not a percentage"),
        (ERRORS.replace("broker: 1", "broker: 1, operations: []"), "operations"),
    ],
)
def test_refused(fault: str, expected: str) -> None:
    with pytest.raises(PlanError, match=expected):
        load_plan(f"{FRAME}  - {fault}\n")


def test_logs_in_memory_are_refused() -> None:
    frame = FRAME.replace("name: test\n", "name: test\ncluster: {disks: {count: 1}}\n")
    with pytest.raises(PlanError, match="the brokers' logs are in memory"):
        load_plan(f"{frame}  - {SLOW}\n")

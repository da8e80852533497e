"""Power loss: nodes lose power at the same moment, and only what no flushed replica holds may be lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.runtime.undo import perform
from aftershock.faults.sections.cluster import BlockDevice
from aftershock.faults.targets.values import BrokerId
from aftershock.tests.unit.faults.conftest import FRAME

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


NODE = "{id: dark, at: 1s, for: 6s, kind: power_loss, broker: leader of orders/0}"
RACK = "{id: dark, at: 1s, for: 6s, kind: power_loss, rack: b}"
ALL = "{id: dark, at: 1s, for: 6s, kind: power_loss, everywhere: true}"


@pytest.mark.parametrize(("fault", "victims"), [(NODE, (1,)), (RACK, (2,)), (ALL, (1, 2, 3))])
async def test_all_victims_lose_power_in_one_step(stage: Stage, fault: str, victims: tuple[int, ...]) -> None:
    await stage.play(fault)
    assert [victims] == [args for _, verb, args in stage.world.calls if verb == "cut_power"]
    assert victims == stage.line("dark", "intended").targets.brokers
    assert stage.all_ok("dark")
    assert {"file systems", "nodes"} == {witness.unit for witness in stage.journal.witnesses("dark")}
    assert stage.world.healthy()


@pytest.mark.parametrize(("fault", "topics"), [(NODE, ()), (RACK, ()), (ALL, ("orders",))])
async def test_only_a_cut_of_all_replicas_in_sync_permits_losses(
    stage: Stage, fault: str, topics: tuple[str, ...]
) -> None:
    await stage.play(fault)
    targets = stage.line("dark", "intended").targets
    assert topics == targets.topics
    assert bool(topics) == ("lost" in targets.roles.get("permits", ()))
    partitions = sorted(state.partition for state in await stage.world.partitions(["orders"]))
    assert dict.fromkeys(topics, partitions) == targets.roles.get("exposed", {})


async def test_flushed_topics_may_lose_nothing(stage: Stage) -> None:
    await stage.world.alter_config("topic", "orders", {"flush.messages": "1"})
    await stage.play(ALL)
    assert () == stage.line("dark", "intended").targets.topics


async def test_synchronous_file_systems_may_lose_nothing(stage: Stage) -> None:
    stage.world.devices = dict.fromkeys(stage.world.devices, BlockDevice(sync=True))
    await stage.play(ALL)
    assert () == stage.line("dark", "intended").targets.topics


async def test_one_replica_that_flushes_protects_all(stage: Stage) -> None:
    """All replicas lose power; a record is safe if any replica had flushed it, so one that flushes protects all."""
    stage.world.devices[BrokerId(1)] = BlockDevice(sync=True)
    await stage.play(ALL)
    assert () == stage.line("dark", "intended").targets.topics


async def test_a_file_system_that_is_not_shut_down_fails_the_witness(stage: Stage) -> None:
    stage.world.still_mounted = frozenset({BrokerId(3)})
    await stage.play(ALL)
    (witness,) = [each for each in stage.journal.witnesses("dark") if not each.ok]
    assert (3, 2, "file systems") == (witness.asked, witness.observed, witness.unit)


async def test_a_node_without_a_block_device_is_refused(stage: Stage) -> None:
    stage.world.devices[BrokerId(2)] = None
    await stage.play(RACK)
    assert "node 2 has no block device whose power could be cut" in str(stage.line("dark", "failed").why)
    assert [] == [verb for _, verb, _ in stage.world.calls if verb == "cut_power"]


async def test_a_rehearsal_fails_its_witnesses(stage: Stage) -> None:
    await stage.rehearse(ALL)
    assert not any(witness.ok for witness in stage.journal.witnesses("dark"))


@pytest.mark.parametrize("at_ms", [1_001, 1_500, 7_001])
async def test_interrupted(stage: Stage, at_ms: int) -> None:
    """An interruption at any time leaves all nodes running, and another process may repeat the undo."""
    await stage.interrupt(at_ms, ALL)
    assert stage.world.healthy()
    await perform(stage.line("dark", "intended").undo, stage.world, stage.clock)
    assert stage.world.healthy()


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("{kind: power_loss, for: 5s}", "a power loss has one place"),
        ("{kind: power_loss, for: 5s, rack: a, everywhere: true}", "a power loss has one place"),
        ("{kind: power_loss, for: 5s, rack: z}", "rack"),
        ("{kind: power_loss, everywhere: true}", "for"),
    ],
)
def test_refused(fault: str, expected: str) -> None:
    with pytest.raises(PlanError, match=expected):
        load_plan(f"{FRAME}  - {fault}\n")


def test_logs_in_memory_are_refused() -> None:
    frame = FRAME.replace("name: test\n", "name: test\ncluster: {disks: {count: 1}}\n")
    with pytest.raises(PlanError, match="the brokers' logs are in memory"):
        load_plan(f"{frame}  - {RACK}\n")

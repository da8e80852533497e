"""The coordinator of a group moves and returns; committed offsets are deleted while the group has no members."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.faults.targets.values import BrokerId, PartitionState

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


MOVE = "{id: away, at: 1s, for: 5s, kind: move_coordinator, group: readers-baseline}"
DELETE = "{id: gone, at: 1s, kind: delete_group_offsets, group: readers-baseline, topic: orders}"


def offsets_topic(stage: Stage, *replicas: int) -> None:
    """Create the topic of committed offsets with one partition, which all groups then use."""
    ids = tuple(map(BrokerId, replicas))
    stage.world._partitions["__consumer_offsets", 0] = PartitionState("__consumer_offsets", 0, ids[0], 3, ids, ids)


async def test_the_coordinator_moves_and_returns(stage: Stage) -> None:
    """The next replica leads the group's partition while the fault lasts; both ends are witnessed."""
    offsets_topic(stage, 2, 3, 1)
    seen: list[int] = []

    async def look() -> None:
        seen.append(await stage.world.coordinator("readers-baseline"))

    def then() -> None:
        seen.append(stage.world._partitions["__consumer_offsets", 0].leader or 0)

    await stage.play_with(3_000, then, MOVE)
    await look()
    assert [3, 2] == seen
    assert stage.all_ok("away")
    assert [1, 1] == [witness.observed for witness in stage.journal.witnesses("away")]


async def test_a_coordinator_that_stays(stage: Stage) -> None:
    """A client that is still sent to the earlier broker fails the fault."""
    offsets_topic(stage, 2, 3, 1)

    async def stubborn(_group: str) -> BrokerId:
        return BrokerId(2)

    stage.world.coordinator = stubborn  # type: ignore[method-assign, assignment]
    await stage.play(MOVE)
    assert "broker 2 coordinates the group readers-baseline still" in str(stage.line("away", "failed").why)


async def test_one_replica(stage: Stage) -> None:
    """No other broker can take over."""
    offsets_topic(stage, 2)
    await stage.play(MOVE)
    assert "has one replica, so the coordinator can't move" in str(stage.line("away", "failed").why)


async def test_offsets_are_deleted(stage: Stage) -> None:
    """Only those of the topic; the journal keeps them."""
    stage.world.offsets = {"readers-baseline": {("orders", 0): 7, ("orders", 1): 9, ("audit", 0): 3}}
    await stage.play(DELETE)
    assert {("audit", 0): 3} == stage.world.offsets["readers-baseline"]
    assert stage.all_ok("gone")
    assert {"0": 7, "1": 9} == stage.line("gone", "injected").targets.roles["offsets"]


@pytest.mark.parametrize(
    ("offsets", "active", "said"),
    [({}, set(), "has committed no offset of orders"), ({("orders", 0): 7}, {"readers-baseline"}, "GROUP_SUBSCRIBED")],
)
async def test_offsets_that_cannot_be_deleted(
    stage: Stage, offsets: dict[tuple[str, int], int], active: set[str], said: str
) -> None:
    """The group has committed nothing, or has members."""
    stage.world.offsets, stage.world.active_groups = {"readers-baseline": offsets}, active
    await stage.play(DELETE)
    assert said in str(stage.line("gone", "failed").why)

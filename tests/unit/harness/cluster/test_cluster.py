"""Sentences about partitions that are not in sync."""

import pytest

from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.harness.cluster.cluster import out_of_sync

ONE, TWO = BrokerId(1), BrokerId(2)


def partition(number: int, leader: BrokerId | None, *in_sync: BrokerId) -> PartitionState:
    return PartitionState("orders", number, leader, 1, (ONE, TWO), in_sync)


@pytest.mark.parametrize(
    ("partitions", "sentence"),
    [
        ([partition(0, ONE, TWO, ONE)], ""),
        (
            [partition(0, ONE, ONE), partition(1, TWO, ONE, TWO)],
            "1 partition lacks in-sync replicas on k2: orders/0 (in sync: [1] of [1, 2])",
        ),
        (
            [partition(0, None, ONE, TWO)],
            "1 partition lacks a leader: orders/0 (in sync: [1, 2] of [1, 2], no leader)",
        ),
        (
            [partition(0, None, ONE), partition(1, ONE, ONE)],
            (
                "2 partitions lack in-sync replicas on k2 or a leader: orders/0 (in sync: [1] of [1, 2], no leader), "
                "orders/1 (in sync: [1] of [1, 2])"
            ),
        ),
    ],
)
def test_partitions_without_a_leader_or_a_replica(partitions: list[PartitionState], sentence: str) -> None:
    assert sentence == out_of_sync(partitions)

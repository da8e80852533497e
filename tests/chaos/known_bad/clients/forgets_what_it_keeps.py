"""Replaces its partitions by those that a cooperative rebalance adds.

The partitions that it keeps are never read again, and the group does not learn of it (KAFKA-12984 is of that family).
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.consumer.assigned_partitions import AssignedPartitions


def plant() -> None:
    add = AssignedPartitions.add

    def replace(self, partitions):
        if partitions:
            self._remove(list(self._shared.positions))
        add(self, partitions)

    put(AssignedPartitions, "add", replace)


# what waits for a member that stands still is lost
BAD = KnownBad(
    "a member joins and leaves", "obligation/consume", "the longest stall", plant, also=frozenset({"integrity/lost"})
)

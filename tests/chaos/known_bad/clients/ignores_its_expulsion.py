"""Keeps its partitions when its group has excluded it, and joins again.

Neither the fetcher nor the application is told, so both go on with partitions that other members have taken over.
"""

from aftershock.tests.chaos.known_bad.catalogue import OF_TWO_OWNERS, KnownBad, put
from aftershock.workloads.kafka.consumer.assigned_partitions import AssignedPartitions


def plant() -> None:
    put(AssignedPartitions, "lose", lambda _self, _member_id: None)


BAD = KnownBad(
    "a member does not poll for longer than max.poll.interval.ms",
    "integrity/fenced",
    "commits",
    plant,
    OF_TWO_OWNERS,
)

"""KIP-392, fetch from the closest replica (choice of the broker to fetch from, and handling of fetch errors).

1. The leader names a preferred replica in a Fetch response without records; the consumer then fetches the partition
   from that replica for ``metadata.max.age.ms`` (the *lease*). A lease isn't extended if the leader names the same
   replica again.
2. When a lease expires, the consumer fetches from the leader once, and the leader names a replica again.
3. If metadata doesn't list the replica, or lists it as offline, the consumer returns to the leader and refreshes the
   metadata.
4. A failed Fetch request to a replica ends the leases of all partitions in the broker's fetch session; a new leader or
   leader epoch ends the partition's lease on a replica.
5. Most fetch errors of a partition end its lease on a replica and request metadata; OFFSET_OUT_OF_RANGE from a replica
   ends the lease without a metadata request. After UNKNOWN_LEADER_EPOCH the consumer fetches from the same replica
   again at once, until the replica has caught up; this hot loop of Kafka's client is intended here, because the harness
   must show it.
6. A lease on a replica ends when the partition is no longer assigned, which isn't counted as a fail-back.

Four cases of a fetch offset that is out of range in KIP-392 and in Kafka:

====  ============================  ============================  ==========================  =======================
case  offset                        broker's response in the KIP  broker's response in Kafka  Kafka's client, and ours
====  ============================  ============================  ==========================  =======================
1     in the log, uncommitted       OFFSET_NOT_AVAILABLE          no error, no records        fetches there again
2     committed, not yet here       OFFSET_NOT_AVAILABLE          OFFSET_OUT_OF_RANGE         asks the leader
3     before the log's start        OUT_OF_RANGE, reset at once   OFFSET_OUT_OF_RANGE         asks the leader
4     after the log's end           OUT_OF_RANGE, validate first  OFFSET_OUT_OF_RANGE         asks the leader
====  ============================  ============================  ==========================  =======================

When the *leader* responds OFFSET_OUT_OF_RANGE, the consumer applies ``auto.offset.reset``; "earliest" is the leader's
earliest offset, where KIP-392 has the replica's. Consumers send replica id -1 in Fetch requests, not KIP-392's -2.

Modelled on ``AbstractFetch``, ``FetchCollector``, ``SubscriptionState`` and ``FetchUtils`` of Kafka 4.3.
"""

from collections import Counter
from collections.abc import Container, Iterable
from enum import Enum
from typing import NamedTuple

from aftershock.workloads.kafka.rules.values import PartitionMetadata, TopicPartition
from aftershock.workloads.kafka.wire.codes import OFFSET_OUT_OF_RANGE

HARMLESS = frozenset({-1, 75})
"""UNKNOWN_SERVER_ERROR, UNKNOWN_LEADER_EPOCH: errors after which the consumer fetches again from the same broker."""
FAIL_BACK = frozenset({3, 6, 9, 56, 74, 78, 100, 103})
"""UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, REPLICA_NOT_AVAILABLE, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH,
OFFSET_NOT_AVAILABLE, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID: fetch errors after which the consumer returns to the
leader and refreshes the metadata."""


class AfterError(Enum):
    FETCH_AGAIN = "fetch again from the same broker at once"
    REFRESH = "refresh the metadata, then fetch from the leader"
    ASK_LEADER = "fetch the same offset from the leader"
    IGNORE = "ignore the Fetch response, which is for an old position"
    RESET = "look up the offset that auto.offset.reset names"
    OUT_OF_RANGE = "raise an error, because the offset is out of range and auto.offset.reset is none"
    FATAL = "raise an error, because another fetch would fail too"


class ReadFrom(NamedTuple):
    """Broker to fetch a partition from; ``refresh_metadata`` is True if the choice requires new metadata."""

    node_id: int
    refresh_metadata: bool = False


class Lease(NamedTuple):
    """Lease of a partition on the follower replica to fetch the partition from until ``expires_ms``."""

    node_id: int
    expires_ms: float


class ReadReplicas:
    """Read replicas of one consumer's partitions; with ``enabled=False`` every fetch goes to the leader.

    Counters of fetches from replicas: ``replica_switched`` (switches to a replica), ``lease_expired`` (returns to the
    leader at the end of the lease), ``replica_failed_back`` (returns to the leader for another reason).
    """

    def __init__(self, lease_ms: float, *, enabled: bool = True) -> None:
        self.counts: Counter[str] = Counter()
        self._lease_ms = lease_ms
        self._enabled = enabled
        self._leases: dict[TopicPartition, Lease] = {}

    def grant(self, tp: TopicPartition, node_id: int, now_ms: float) -> bool:
        """Store the preferred replica that the leader named; return True if it is a new replica."""
        lease = self._leases.get(tp)
        if not self._enabled or (lease and lease.node_id == node_id):
            return False
        self._leases[tp] = Lease(node_id, now_ms + self._lease_ms)
        self.counts["replica_switched"] += 1
        return True

    def replica(self, tp: TopicPartition) -> int | None:
        """Return the replica that a partition is fetched from, even if its lease has expired; None without a lease."""
        lease = self._leases.get(tp)
        return lease.node_id if lease else None

    def node_for(
        self, tp: TopicPartition, partition: PartitionMetadata, nodes: Container[int], now_ms: float
    ) -> ReadFrom:
        """Return the broker to fetch partition ``tp`` from, an online replica or the leader."""
        lease = self._leases.get(tp)
        if lease is None:
            return ReadFrom(partition.leader.node_id)
        if now_ms > lease.expires_ms:
            del self._leases[tp]
            self.counts["lease_expired"] += 1
            return ReadFrom(partition.leader.node_id)
        node_id = lease.node_id
        if node_id in nodes and node_id in partition.replicas and node_id not in partition.offline:
            return ReadFrom(node_id)
        self.clear(tp)
        return ReadFrom(partition.leader.node_id, refresh_metadata=True)

    def clear(self, tp: TopicPartition) -> int | None:
        """Stop fetching a partition from a replica, for example after a leader change; return that replica or None."""
        lease = self._leases.pop(tp, None)
        if lease is None:
            return None
        self.counts["replica_failed_back"] += 1
        return lease.node_id

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._leases.pop(tp, None)

    def on_error(self, tp: TopicPartition, error: int, *, current: bool, resets: bool) -> AfterError:
        """Return a consumer's action after a partition's fetch error, and end the lease on a replica if necessary.

        ``current`` is True if the fetch was for the consumer's present position, ``resets`` if ``auto.offset.reset`` is
        not ``none``.
        """
        if error in FAIL_BACK:
            self.clear(tp)
            return AfterError.REFRESH
        if error in HARMLESS:
            return AfterError.FETCH_AGAIN
        if error != OFFSET_OUT_OF_RANGE:
            return AfterError.FATAL
        if tp in self._leases:
            self.clear(tp)
            return AfterError.ASK_LEADER
        if not current:
            return AfterError.IGNORE
        return AfterError.RESET if resets else AfterError.OUT_OF_RANGE

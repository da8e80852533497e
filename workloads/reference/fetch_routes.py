"""Where each partition is fetched from: its leader, or the replica that it is leased to; told whenever that changes.

The rule is ``read_replica.py``'s (KIP-392). This joins it to the metadata and the positions, and tells the events
``replica_switched`` and ``replica_failed_back``, the latter with the reason. ``tell`` should be a sparing one
(``sparing.py``): a replica that keeps erring is left and taken again with every fetch.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from aftershock.workloads.reference.tell import Tell
from aftershock.workloads.rules.metadata import Metadata
from aftershock.workloads.rules.positions import Positions
from aftershock.workloads.rules.read_replica import AfterError, ReadReplicas
from aftershock.workloads.rules.values import UNKNOWN, PartitionMetadata, TopicPartition
from aftershock.workloads.wire import codes


class FetchRoutes:
    """The routes of one consumer's partitions."""

    def __init__(self, replicas: ReadReplicas, metadata: Metadata, positions: Positions, tell: Tell) -> None:
        self._replicas, self._metadata, self._positions, self._tell = replicas, metadata, positions, tell
        self._metadata_version = UNKNOWN

    def follow_metadata(self) -> None:
        """Let the positions know who leads now, if anything is new; one whose leader changed goes to the new one."""
        if self._metadata_version == self._metadata.version:
            return
        self._metadata_version = self._metadata.version
        for tp in self._positions.follow(self._metadata.leader):
            with self._told(tp, "leader changed"):
                self._replicas.clear(tp)

    def node_for(self, tp: TopicPartition, now_ms: float) -> int:
        """The node to fetch from next; UNKNOWN when there is none that we know, and then metadata is asked for.

        While metadata knows no leader the position keeps the one it had, as in Kafka.
        """
        position, partition = self._positions.position(tp), self._metadata.partition(tp)
        if position is None or partition is None:
            self._metadata.request_update((tp,))
            return UNKNOWN
        node_id = position.leader.node_id
        if self._replicas.replica(tp) is not None:
            node_id = self._leased_to(tp, partition._replace(leader=position.leader), now_ms)
        if node_id not in self._metadata.nodes:
            self._metadata.request_update((tp,))
            return UNKNOWN
        return node_id

    def _leased_to(self, tp: TopicPartition, partition: PartitionMetadata, now_ms: float) -> int:
        leased = self._replicas.replica(tp)
        chosen = self._replicas.node_for(tp, partition, self._metadata.nodes, now_ms)
        if self._replicas.replica(tp) is None:
            reason = "replica offline" if chosen.refresh_metadata else "lease over"
            self._say("replica_failed_back", tp, leased, reason=reason)
        if chosen.refresh_metadata:
            self._metadata.request_update()
        return chosen.node_id

    def redirected(self, tp: TopicPartition, node_id: int, now_ms: float) -> None:
        """The leader named a replica to read from; UNKNOWN for none."""
        if node_id != UNKNOWN and self._replicas.grant(tp, node_id, now_ms):
            self._say("replica_switched", tp, node_id)

    def on_error(self, tp: TopicPartition, error: int, *, current: bool) -> AfterError:
        """What to do about a partition's error. ``current``: the request was for the position that we have now."""
        with self._told(tp, codes.name(error)):
            return self._replicas.on_error(tp, error, current=current, resets=self._positions.policy != "none")

    def failed(self, partitions: Iterable[TopicPartition]) -> None:
        """A request that these were part of got no answer."""
        for tp in partitions:
            with self._told(tp, "request failed"):
                self._replicas.clear(tp)

    @contextmanager
    def _told(self, tp: TopicPartition, reason: str) -> Iterator[None]:
        """Tell if what is done inside ends the lease of ``tp``."""
        before = self._replicas.replica(tp)
        yield
        if before is not None and self._replicas.replica(tp) is None:
            self._say("replica_failed_back", tp, before, reason=reason)

    def _say(self, event: str, tp: TopicPartition, node_id: int | None, **details: object) -> None:
        self._tell(event, topic=tp.topic, partition=tp.partition, node_id=node_id, **details)

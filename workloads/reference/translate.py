"""From kio's responses to the values that the rules speak of."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from aftershock.errors import ProtocolError
from aftershock.workloads.rules.values import Leader, MetadataResponse, Node, PartitionMetadata, TopicMetadata
from aftershock.workloads.wire.connection import Address


def metadata_response(response: Any) -> MetadataResponse:
    """A Metadata response of any version since 9. Topics without a name, as ids that are gone have, are left out.

    ProtocolError for a broker at an address that nobody can dial.
    """
    return MetadataResponse(
        nodes=tuple(map(dialled, response.brokers)),
        topics=tuple(_topic(topic) for topic in response.topics if topic.name is not None),
    )


def _topic(topic: Any) -> TopicMetadata:
    topic_id = getattr(topic, "topic_id", None)
    partitions = tuple(_partition(partition) for partition in topic.partitions)
    return TopicMetadata(topic.name, topic_id, partitions, int(topic.error_code))


def _partition(partition: Any) -> PartitionMetadata:
    return PartitionMetadata(
        partition.partition_index,
        Leader(partition.leader_id, partition.leader_epoch),
        tuple(partition.replica_nodes),
        tuple(partition.offline_replicas),
        int(partition.error_code),
    )


def leader_hint(partition: Any) -> Leader:
    """``CurrentLeader`` of one partition of a Produce (10+) or Fetch response; unknown in versions without it."""
    current = getattr(partition, "current_leader", None)
    return Leader() if current is None else Leader(current.leader_id, current.leader_epoch)


def endpoints(response: Any) -> tuple[Node, ...]:
    """``NodeEndpoints`` of a Produce (10+) or Fetch (16+) response; empty in versions without them.

    One that can't be dialled is left out: an answer's outcomes aren't to be lost for what stands beside them.
    """
    return tuple(_endpoints(response))


def _endpoints(response: Any) -> Iterator[Node]:
    for entry in getattr(response, "node_endpoints", ()):
        with suppress(ProtocolError):
            yield dialled(entry)


def dialled(entry: Any) -> Node:
    """A node as any response names it; ProtocolError for an address that nobody can dial."""
    try:
        host, port = Address.checked(entry.host, entry.port)
    except ValueError as error:
        raise ProtocolError(f"node {entry.node_id} has an impossible address: {error}") from error
    return Node(entry.node_id, host, port, getattr(entry, "rack", None))

"""From kio's responses to the values that the rules speak of."""

from collections.abc import Iterable
from typing import Any

from aftershock.workloads.rules.values import Leader, MetadataResponse, Node, PartitionMetadata, TopicMetadata


def metadata_response(response: Any) -> MetadataResponse:
    """A Metadata response of any version since 9. Topics without a name, as ids that are gone have, are left out."""
    return MetadataResponse(
        nodes=tuple(Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers),
        topics=tuple(_topic(topic) for topic in response.topics if topic.name is not None),
        cluster_id=response.cluster_id,
        controller_id=response.controller_id,
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
        tuple(partition.isr_nodes),
        tuple(partition.offline_replicas),
        int(partition.error_code),
    )


def leader_hint(partition: Any) -> Leader:
    """``CurrentLeader`` of one partition of a Produce (10+) or Fetch response; unknown in versions without it."""
    current = getattr(partition, "current_leader", None)
    return Leader() if current is None else Leader(current.leader_id, current.leader_epoch)


def endpoints(response: Any) -> tuple[Node, ...]:
    """``NodeEndpoints`` of a Produce (10+) or Fetch (16+) response; empty in versions without them."""
    offered: Iterable[Any] = getattr(response, "node_endpoints", ())
    return tuple(Node(node.node_id, node.host, node.port, node.rack) for node in offered)

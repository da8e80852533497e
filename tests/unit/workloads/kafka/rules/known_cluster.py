"""Metadata for the tests of the rules: topic t on nodes 0, 1 and 2."""

from collections.abc import Iterable, Mapping
from random import Random
from uuid import UUID

from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.values import (
    Backoff,
    Leader,
    MetadataResponse,
    Node,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
ID, OTHER_ID = UUID(int=1), UUID(int=2)


def node(node_id: int, port: int = 9092) -> Node:
    return Node(node_id, f"k{node_id}", port, f"rack-{node_id}")


def answer(
    leaders: Mapping[TopicPartition, Leader],
    *,
    nodes: Iterable[int] = (0, 1, 2),
    topic_id: UUID | None = ID,
    error: int = 0,
    partition_error: int = 0,
) -> MetadataResponse:
    """Return a Metadata response for topic t."""
    partitions = tuple(
        PartitionMetadata(tp.partition, leader, (0, 1, 2), (2,), partition_error) for tp, leader in leaders.items()
    )
    topic = TopicMetadata("t", topic_id, partitions, error)
    return MetadataResponse(tuple(node(node_id) for node_id in nodes), (topic,))


def backoff(seed: int = 7) -> Backoff:
    return Backoff(100, 1000, Random(seed))  # noqa: S311  # repeatable, not secret


def learn(metadata: Metadata, response: MetadataResponse, now_ms: float = 0) -> None:
    """Request metadata and apply the response."""
    metadata.request_sent()
    metadata.update(response, now_ms)


def knowing(leaders: Mapping[TopicPartition, Leader], **said: object) -> Metadata:
    """Return metadata that has had one response, at 0 ms."""
    metadata = Metadata(backoff=backoff())
    metadata.want(["t"])
    learn(metadata, answer(leaders, **said))  # type: ignore[arg-type]  # passed on unchanged
    return metadata

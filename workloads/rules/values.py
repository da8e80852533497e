"""What the rules speak of: values without behaviour, in Kafka's words."""

from typing import NamedTuple
from uuid import UUID

UNKNOWN = -1
"""Kafka's own mark for a leader, an epoch or an offset that isn't known."""


class TopicPartition(NamedTuple):
    """A partition, by its topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Node(NamedTuple):
    """A broker and the address of it that the answering listener gave."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Leader(NamedTuple):
    """Who leads a partition, since when: node id and leader epoch, each UNKNOWN where Kafka doesn't say."""

    node_id: int = UNKNOWN
    epoch: int = UNKNOWN


class PartitionMetadata(NamedTuple):
    """One partition in a Metadata response. ``leader`` is UNKNOWN while there is none; ``error`` is Kafka's code."""

    partition: int
    leader: Leader
    replicas: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error: int = 0


class TopicMetadata(NamedTuple):
    """One topic in a Metadata response; ``topic_id`` is None where the broker gives none."""

    name: str
    topic_id: UUID | None
    partitions: tuple[PartitionMetadata, ...]
    error: int = 0


class MetadataResponse(NamedTuple):
    """What the rules want of a Metadata response, freed from its version."""

    nodes: tuple[Node, ...]
    topics: tuple[TopicMetadata, ...]

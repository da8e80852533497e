"""Values for Kafka's terms such as partition, leader and metadata, and Kafka's exponential back-off.

Rules of the back-off for retries, metadata refreshes and reconnects:

1. Retry ``n`` (counted from 0) waits ``initial_ms * 2**n`` milliseconds, at most ``max_ms``.
2. The back-off is multiplied by a random factor between 0.8 and 1.2, so that clients that failed together don't retry
   together; the product is at most ``max_ms``.
3. With ``max_ms`` at or below ``initial_ms`` the back-off is always ``max_ms``.

Source: KIP-580; ``common/utils/ExponentialBackoff.java``.
"""

from dataclasses import dataclass
from math import log2
from random import Random
from typing import NamedTuple
from uuid import UUID

UNKNOWN = -1
"""Kafka's number for an unknown leader, epoch or offset."""


class TopicPartition(NamedTuple):
    """Partition of a topic, identified by the topic's name and the partition's number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Node(NamedTuple):
    """Broker, with the address of the listener that the client uses."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Leader(NamedTuple):
    """Leader of a partition; a missing node id or leader epoch is UNKNOWN."""

    node_id: int = UNKNOWN
    epoch: int = UNKNOWN


class PartitionMetadata(NamedTuple):
    """Partition in a Metadata response, with Kafka's error code ``error``; the leader may be unknown."""

    partition: int
    leader: Leader
    replicas: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error: int = 0


class TopicMetadata(NamedTuple):
    """Topic in a Metadata response; there is no ``topic_id`` if the broker sends no topic ids."""

    name: str
    topic_id: UUID | None
    partitions: tuple[PartitionMetadata, ...]
    error: int = 0
    is_internal: bool = False


class MetadataResponse(NamedTuple):
    """Brokers and topics of a Metadata response, independent of the API version."""

    nodes: tuple[Node, ...]
    topics: tuple[TopicMetadata, ...]


SPREAD = 0.2
"""Largest relative deviation of a back-off: ``RETRY_BACKOFF_JITTER`` of ``CommonClientConfigs``."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off from ``initial_ms`` to ``max_ms``, with random deviations from ``random``."""

    initial_ms: float
    max_ms: float
    random: Random

    def ms(self, attempt: int) -> float:
        """Draw a random back-off in milliseconds after the failed attempt number ``attempt``, counted from 0."""
        if self.max_ms <= self.initial_ms:
            return self.max_ms
        # Limit the exponent instead of the product, so that a large attempt number can't overflow.
        doublings = min(attempt, log2(self.max_ms / max(self.initial_ms, 1.0)))
        spread = self.random.uniform(1 - SPREAD, 1 + SPREAD)
        return min(self.initial_ms * 2**doublings * spread, self.max_ms)

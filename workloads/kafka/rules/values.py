"""What the rules speak of: values without behaviour, in Kafka's words.

How long to wait before trying again: Kafka's exponential back-off, for retries, refreshes and reconnects alike.

1. Attempt ``n``, from 0, waits ``initial_ms * 2**n``, and never more than ``max_ms``.
2. The wait is spread by a factor between 0.8 and 1.2, so that clients which failed together don't come back together.
   What the spread brings above ``max_ms`` is cut off.
3. With ``max_ms`` at or below ``initial_ms`` the wait is ``max_ms``, always the same.

Every call draws anew, as Kafka's clients do: who asks twice gets two answers. Source: KIP-580;
``common/utils/ExponentialBackoff.java``.
"""

from dataclasses import dataclass
from math import log2
from random import Random
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


SPREAD = 0.2
"""``RETRY_BACKOFF_JITTER`` of ``CommonClientConfigs``: the share of the wait by which a draw may differ."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from ``initial_ms`` to ``max_ms``; ``random`` is the only source of their spread."""

    initial_ms: float
    max_ms: float
    random: Random

    def ms(self, attempt: int) -> float:
        """Milliseconds to wait before attempt ``attempt`` + 1; a new draw each time."""
        if self.max_ms <= self.initial_ms:
            return self.max_ms
        # in doublings and not in milliseconds, so that a large attempt can't overflow
        doublings = min(attempt, log2(self.max_ms / max(self.initial_ms, 1.0)))
        spread = self.random.uniform(1 - SPREAD, 1 + SPREAD)
        return min(self.initial_ms * 2**doublings * spread, self.max_ms)

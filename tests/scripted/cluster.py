"""A cluster: nodes, topics, leaders, and each node's own view of them."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from aftershock.tests.scripted.log import Log

UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75
UNKNOWN_TOPIC_ID = 100


class Leader(NamedTuple):
    node: int
    epoch: int


@dataclass
class Partition:
    """The truth about a partition, and what single nodes hold for true."""

    leader: Leader
    replicas: list[int]
    log: Log = field(default_factory=Log)
    views: dict[int, Leader] = field(default_factory=dict)
    preferred: dict[str | None, int] = field(default_factory=dict)

    def seen_by(self, node: int) -> Leader:
        return self.views.get(node, self.leader)

    def is_led_by(self, node: int) -> bool:
        return self.leader.node == node == self.seen_by(node).node

    def refusal(self, node: int, epoch: int = -1, *, leader_only: bool = True) -> int:
        """The error code for one who takes ``node`` for the leader (or a replica) since ``epoch``; 0: rightly."""
        own = self.seen_by(node).epoch
        if epoch >= 0 and epoch != own:
            return FENCED_LEADER_EPOCH if epoch < own else UNKNOWN_LEADER_EPOCH
        fits = self.is_led_by(node) if leader_only else node in self.replicas
        return 0 if fits else NOT_LEADER_OR_FOLLOWER

    def preferred_by(self, rack: str) -> int:
        return self.preferred.get(rack, self.preferred.get(None, -1))


@dataclass
class Topic:
    name: str
    topic_id: UUID
    partitions: list[Partition]


@dataclass
class Cluster:
    """``ports`` is node id → port; ``racks`` node id → rack; ``advertised`` where clients are sent instead."""

    ports: dict[int, int]
    racks: dict[int, str | None]
    hints: bool
    auto_create: int
    transaction_version: int = 1
    topics: dict[str, Topic] = field(default_factory=dict)
    producer_ids: int = 1000
    coordinators: dict[str, int] = field(default_factory=dict)
    transactions: dict[str, Any] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)
    advertised: dict[int, int] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def create(
        self, name: str, partitions: int, leaders: list[int] | None = None, replicas: list[list[int]] | None = None
    ) -> UUID:
        nodes = list(self.ports)
        led_by = leaders or [nodes[number % len(nodes)] for number in range(partitions)]
        held_by = replicas or [nodes] * partitions
        made = [Partition(Leader(led_by[number], 0), list(held_by[number])) for number in range(partitions)]
        self.topics[name] = Topic(name, uuid4(), made)
        return self.topics[name].topic_id

    def topic(self, name_or_id: str | UUID) -> Topic | None:
        if isinstance(name_or_id, str):
            return self.topics.get(name_or_id)
        return next((topic for topic in self.topics.values() if topic.topic_id == name_or_id), None)

    def partition(self, name_or_id: str | UUID, number: int) -> Partition | None:
        topic = self.topic(name_or_id)
        return topic.partitions[number] if topic and 0 <= number < len(topic.partitions) else None

    def move_leader(self, partition: Partition, to: int, epoch: int | None, unaware: list[int]) -> int:
        for node in unaware:
            partition.views.setdefault(node, partition.leader)
        for node in set(partition.views) - set(unaware):
            del partition.views[node]
        partition.leader = Leader(to, partition.leader.epoch + 1 if epoch is None else epoch)
        partition.log.begin_epoch(partition.leader.epoch)
        self.wake()
        return partition.leader.epoch

    def publish(self, nodes: list[int]) -> None:
        for topic in self.topics.values():
            for partition in topic.partitions:
                for node in nodes or list(self.ports):
                    partition.views.pop(node, None)

    def coordinator(self, key: str) -> int:
        return self.coordinators.get(key) or min(set(self.ports) - self.down, default=1)

    def wake(self) -> None:
        """Let waiting fetches look again."""
        self.news.set()
        self.news = asyncio.Event()


def unknown(name_or_id: str | UUID) -> int:
    """The error code for a topic that isn't there."""
    return UNKNOWN_TOPIC_OR_PARTITION if isinstance(name_or_id, str) else UNKNOWN_TOPIC_ID

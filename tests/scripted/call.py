"""One request in progress: everything that its handler may read."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from aftershock.tests.scripted.cluster import Cluster, Leader, Partition
from aftershock.tests.scripted.groups import Group
from aftershock.tests.scripted.messages import Request
from aftershock.tests.scripted.script import Script
from aftershock.tests.session_cache import SessionCache

Answer = dict[str, Any]


@dataclass
class Node:
    """A broker's own memory."""

    node_id: int
    sessions: SessionCache
    versions: dict[int, tuple[int, int]]

    @classmethod
    def fresh(cls, node_id: int, versions: dict[int, tuple[int, int]], *, sessions: bool) -> "Node":
        return cls(node_id, SessionCache(node_id, 1000 if sessions else 0), versions)


@dataclass
class Call:
    cluster: Cluster
    groups: dict[str, Group]
    node: Node
    request: Request
    script: Script

    @property
    def body(self) -> Any:
        return self.request.body

    def error_of(self, topic: str | UUID, number: int) -> int | None:
        """The scripted error of a partition."""
        return self.script.error_of((self.name_of(topic), number))

    def name_of(self, name_or_id: str | UUID) -> str:
        topic = self.cluster.topic(name_or_id)
        return topic.name if topic else str(name_or_id)

    def hint(self, partition: Partition | None) -> Leader | None:
        """CurrentLeader as the script, else as this node knows it."""
        if self.script.hint:
            return Leader(*self.script.hint)
        return partition.seen_by(self.node.node_id) if partition and self.cluster.hints else None

    def endpoints(self, hints: list[Leader]) -> list[Answer]:
        """NodeEndpoints of those who are hinted at and alive."""
        named = sorted({hint.node for hint in hints} & (set(self.cluster.ports) - self.cluster.down))
        return [self.address(node) for node in named] if self.script.endpoints else []

    def address(self, node: int) -> Answer:
        return {
            "node_id": node,
            "host": "127.0.0.1",
            "port": self.cluster.advertised.get(node, self.cluster.ports[node]),
            "rack": self.cluster.racks.get(node),
        }


def named(entry: Any) -> str | UUID:
    """A request's topic: by id in the versions that have ids, else by name."""
    for field in ("topic_id", "name", "topic"):
        if getattr(entry, field, None) is not None:
            name: str | UUID = getattr(entry, field)
            return name
    return ""


def naming(entry: Any) -> Answer:
    """The same in a response, under any version's name."""
    return {field: getattr(entry, field) for field in ("topic_id", "name", "topic") if hasattr(entry, field)}


def partitions_of(body: Any) -> Iterator[tuple[str | UUID, int, Any]]:
    """All partitions that a request names: topic, number, and what it says of it."""
    lists = ("topic_data", "topics", "v3_and_below_topics")
    for topic in next((found for name in lists if (found := getattr(body, name, None))), ()):
        entries = next((getattr(topic, name) for name in _LISTS if getattr(topic, name, None) is not None), ())
        for entry in entries:
            number = next((getattr(entry, name) for name in _NUMBERS if hasattr(entry, name)), entry)
            yield named(topic), number, entry


_LISTS = ("partition_data", "partitions", "partition_indexes")
_NUMBERS = ("index", "partition_index", "partition")

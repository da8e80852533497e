"""Requests and responses that several reference clients use, in API versions that the broker supports.

The functions build Kafka requests, and translate kio's responses into values of ``rules/values.py``.
"""

import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from kio.static.protocol import RequestPayload

from aftershock.errors import ProtocolError, UnsupportedError
from aftershock.workloads.kafka.rules.values import (
    Leader,
    MetadataResponse,
    Node,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from aftershock.workloads.kafka.wire.codec import Api, Versions, request_type
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.kafka.wire.schema import uvarint


class ApiVersionRange(NamedTuple):
    """Range of versions of a Kafka API in which all fields that the client sets are the same."""

    api: Api
    least: int
    most: int

    def messages(self, versions: Versions, cap: int | None = None) -> Any:
        """Return kio's module with an API's classes, in the highest version that client, broker and ``cap`` allow.

        Raises UnsupportedError if client and broker have no version of the API in common.
        """
        most = self.most if cap is None else min(cap, self.most)
        version = versions.pick(self.api, most)
        if version < self.least:
            lowest, highest = versions.offered[self.api]
            raise UnsupportedError(
                f"{self.api.name}: the broker offers versions {lowest} to {highest}, this client needs {self.least} to "
                f"{most}; use a newer broker"
            )
        return sys.modules[request_type(self.api, version).__module__]


def group_by_topic(partitions: Collection[TopicPartition]) -> Iterator[tuple[str, Iterator[TopicPartition]]]:
    """Yield each topic once with an iterator of its partitions; consume that iterator before the next topic."""
    return groupby(sorted(partitions), key=lambda tp: tp.topic)


METADATA = ApiVersionRange(Api.METADATA, 10, 12)
"""Version 10 of Metadata adds topic ids (leader epochs are unreliable before 9); version 13 adds no useful field."""

PRODUCE = ApiVersionRange(Api.PRODUCE, 3, 12)
"""Version 3 of Produce is the first with record batches of format v2; version 13 identifies topics by id only."""

INIT_PRODUCER_ID = ApiVersionRange(Api.INIT_PRODUCER_ID, 0, 5)
"""Version 6 of InitProducerId is not stable in Kafka 4.3."""

_NO_TRANSACTION = timedelta(milliseconds=2**31 - 1)
_COMPACT_SINCE = 9  # the first version of Produce with compact lengths and tagged fields
_SHORT, _INT = struct.Struct(">h").pack, struct.Struct(">i").pack
_ACKS_AND_TIMEOUT = struct.Struct(">hi").pack


def metadata_request(messages: Any, topics: Iterable[str]) -> Any:
    """Return a Metadata request for topics and all nodes that, unlike Kafka's clients, disallows topic creation."""
    old = {} if messages.MetadataRequest.__version__ > 10 else {"include_cluster_authorized_operations": False}  # noqa: PLR2004  # the last version that had it
    return messages.MetadataRequest(
        topics=tuple(messages.MetadataRequestTopic(topic_id=None, name=name) for name in topics),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
        **old,
    )


class ProduceWriter:
    """Writer of the bodies of Produce requests in one API version, without kio's dataclasses, which are too slow."""

    def __init__(self, kind: type[RequestPayload], acks: int, timeout_ms: int) -> None:
        self.kind = kind
        compact = kind.__version__ >= _COMPACT_SINCE
        self._length = _compact_length if compact else _INT
        self._name_length = _compact_length if compact else _SHORT
        self._tags = bytes(compact)
        no_transaction = _compact_length(-1) if compact else _SHORT(-1)
        self._head = no_transaction + _ACKS_AND_TIMEOUT(acks, timeout_ms)

    def body(self, topics: Mapping[str, Sequence[tuple[int, bytes]]]) -> list[bytes]:
        """Return a Produce body as byte strings; ``topics`` maps a name to its partitions, each with a record batch."""
        parts = [self._head, self._length(len(topics))]
        for name, batches in topics.items():
            text = name.encode()
            parts += (self._name_length(len(text)), text, self._length(len(batches)))
            for index, records in batches:
                parts += (_INT(index), self._length(len(records)), records, self._tags)
            parts.append(self._tags)
        parts.append(self._tags)
        return parts


@lru_cache(maxsize=1024)
def _compact_length(length: int) -> bytes:
    return uvarint(length + 1)


def init_producer_id_request(messages: Any) -> Any:
    return messages.InitProducerIdRequest(transactional_id=None, transaction_timeout=_NO_TRANSACTION)


def metadata_response(response: Any) -> MetadataResponse:
    """Convert a Metadata response (version 9 or later), without topics that have no name, such as deleted topics.

    Raises ProtocolError if a broker in the response has an invalid address.
    """
    topics = []
    for topic in response.topics:
        if topic.name is None:
            continue
        partitions = tuple(
            PartitionMetadata(
                partition.partition_index,
                Leader(partition.leader_id, partition.leader_epoch),
                tuple(partition.replica_nodes),
                tuple(partition.offline_replicas),
                int(partition.error_code),
            )
            for partition in topic.partitions
        )
        topics.append(TopicMetadata(topic.name, getattr(topic, "topic_id", None), partitions, int(topic.error_code)))
    return MetadataResponse(tuple(map(to_node, response.brokers)), tuple(topics))


def leader_hint(partition: Any) -> Leader:
    """Return ``CurrentLeader`` of a partition in a Produce or Fetch response; unknown in Produce before version 10."""
    current = getattr(partition, "current_leader", None)
    return Leader() if current is None else Leader(current.leader_id, current.leader_epoch)


def endpoints(response: Any) -> tuple[Node, ...]:
    """Return ``NodeEndpoints`` of a Produce (10+) or Fetch (16+) response, without invalid addresses."""
    nodes = []
    for entry in getattr(response, "node_endpoints", ()):
        with suppress(ProtocolError):
            nodes.append(to_node(entry))
    return tuple(nodes)


def to_node(entry: Any) -> Node:
    """Convert a broker in kio's form to a ``Node``; raise ProtocolError if the broker's address is invalid."""
    try:
        host, port = Address.checked(entry.host, entry.port)
    except ValueError as error:
        raise ProtocolError(f"node {entry.node_id} has an invalid address: {error}") from error
    return Node(entry.node_id, host, port, getattr(entry, "rack", None))

"""Kafka requests and responses that several reference clients use, in API versions that the broker supports."""

import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

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
    """Range of versions of a Kafka API in which the client sets the same fields."""

    api: Api
    least: int
    most: int

    def messages(self, versions: Versions, cap: int | None = None) -> Any:
        """Return kio's module for the API, in the highest version that client, broker and ``cap`` allow.

        Raises UnsupportedError if client and broker have no version of the Kafka API in common.
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
    """Yield each topic with an iterator of its partitions, which must be consumed before the next topic."""
    return groupby(sorted(partitions), key=lambda tp: tp.topic)


METADATA = ApiVersionRange(Api.METADATA, 10, 13)
"""Version 10 of the Metadata API adds topic ids; version 13 an error of the whole response (KIP-1102)."""
METADATA_BY_ID_SINCE = 12
"""Version of the Metadata API in which a request may name topics by id."""

PRODUCE = ApiVersionRange(Api.PRODUCE, 3, 13)
"""Version 3 of the Produce API adds record batches of format v2; version 13 identifies topics by id only (KIP-516)."""

OFFSET_COMMIT = ApiVersionRange(Api.OFFSET_COMMIT, 8, 10)
"""Version 9 of the OffsetCommit API has the member epoch (KIP-848); version 10 identifies topics by id only."""


def offset_commit_versions(topic_ids: Iterable[UUID | None]) -> ApiVersionRange:
    """Return the versions of a commit for these topics, without version 10 if the id of a topic is unknown.

    Kafka: ``CommitRequestManager.OffsetCommitRequestState.toUnsentRequest``.
    """
    return OFFSET_COMMIT if all(topic_ids) else OFFSET_COMMIT._replace(most=9)


def topic_reference(kind: Any, name: str, topic_id: UUID | None) -> dict[str, Any]:
    """Return the field by which kio's class ``kind`` identifies a topic."""
    return {"topic_id": topic_id} if "topic_id" in kind.__dataclass_fields__ else {"name": name}


INIT_PRODUCER_ID = ApiVersionRange(Api.INIT_PRODUCER_ID, 0, 5)
"""Version 6 of the InitProducerId API is not stable in Kafka 4.3."""

INIT_TRANSACTIONS = ApiVersionRange(Api.INIT_PRODUCER_ID, 3, 5)
ADD_PARTITIONS_TO_TXN = ApiVersionRange(Api.ADD_PARTITIONS_TO_TXN, 3, 3)
"""Clients send version 3 at most; the later versions are requests of brokers to the coordinator."""
END_TXN = ApiVersionRange(Api.END_TXN, 3, 5)
TXN_OFFSET_COMMIT = ApiVersionRange(Api.TXN_OFFSET_COMMIT, 3, 5)
"""Version 3 of the TxnOffsetCommit API has the metadata of the group's member (KIP-447)."""
ADD_OFFSETS_TO_TXN = ApiVersionRange(Api.ADD_OFFSETS_TO_TXN, 3, 4)
END_TXN_1_MOST, PRODUCE_1_MOST, TXN_OFFSET_COMMIT_1_MOST = 4, 11, 4
"""EndTxn 5, Produce 12 and TxnOffsetCommit 5 belong to version 2 of the transactions (KIP-890); version 1 uses those
before."""


class TransactionVersion:
    """Version of the transactions that a client uses, by the finalized features in its brokers' ApiVersions responses.

    A broker may offer less than the features imply, for example behind a proxy that caps an API; then version 1 is used
    (``apis`` with the highest version of each that belongs to version 1).
    """

    def __init__(self, apis: Mapping[Api, int]) -> None:
        self._apis, self._epoch, self._level = apis, -1, 0

    def is_2(self, known: Iterable[Versions]) -> bool:
        brokers = list(known)
        for versions in brokers:
            if versions.features_epoch > self._epoch:
                self._epoch, self._level = versions.features_epoch, versions.features.get("transaction.version", 0)
        capable = all(
            versions.offered.get(api, (0, 0))[1] > most for versions in brokers for api, most in self._apis.items()
        )
        return capable and self._level > 1


_COMPACT_SINCE = 9  # the first version of Produce with compact lengths and tagged fields
TOPIC_IDS_SINCE = 13
_NO_TOPIC_ID = bytes(16)
_SHORT, _INT = struct.Struct(">h").pack, struct.Struct(">i").pack
_ACKS_AND_TIMEOUT = struct.Struct(">hi").pack


def metadata_request(messages: Any, topics: Iterable[str | UUID] | None) -> Any:
    """Return a Metadata request for topics by name or by id, None for all topics.

    Unlike the requests of Kafka's clients, it never creates topics. Raises UnsupportedError if the request's version
    has no topic ids.
    """
    version = messages.MetadataRequest.__version__
    old = {} if version > 10 else {"include_cluster_authorized_operations": False}  # noqa: PLR2004  # the last version that had it
    entries = None if topics is None else tuple(_metadata_request_topic(messages, version, topic) for topic in topics)
    return messages.MetadataRequest(
        topics=entries,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
        **old,
    )


def _metadata_request_topic(messages: Any, version: int, topic: str | UUID) -> Any:
    if isinstance(topic, str):
        return messages.MetadataRequestTopic(topic_id=None, name=topic)
    if version < METADATA_BY_ID_SINCE:
        raise UnsupportedError(
            f"METADATA: the broker offers no version from {METADATA_BY_ID_SINCE} on, which regular expressions need; "
            "use a newer broker, or subscribe to topics"
        )
    return messages.MetadataRequestTopic(topic_id=topic, name=None)


class ProduceWriter:
    """Encoder of Produce requests in one API version, because kio's dataclasses are too slow for them."""

    def __init__(
        self, kind: type[RequestPayload], acks: int, timeout_ms: int, transactional_id: str | None = None
    ) -> None:
        self.kind = kind
        compact = kind.__version__ >= _COMPACT_SINCE
        self._length = _compact_length if compact else _INT
        self._name_length = _compact_length if compact else _SHORT
        self._by_id = kind.__version__ >= TOPIC_IDS_SINCE
        self._tags = bytes(compact)
        encoded = (transactional_id or "").encode()
        length = -1 if transactional_id is None else len(encoded)
        transaction = (_compact_length(length) if compact else _SHORT(length)) + encoded
        self._head = transaction + _ACKS_AND_TIMEOUT(acks, timeout_ms)

    def body(self, topics: Mapping[tuple[str, UUID | None], Sequence[tuple[int, bytes]]]) -> list[bytes]:
        """Return the parts of a Produce request; ``topics`` maps a topic's name and id to (partition, record batch)."""
        parts = [self._head, self._length(len(topics))]
        for (name, topic_id), batches in topics.items():
            if self._by_id:
                parts.append(topic_id.bytes if topic_id else _NO_TOPIC_ID)
            else:
                text = name.encode()
                parts += (self._name_length(len(text)), text)
            parts.append(self._length(len(batches)))
            for index, records in batches:
                parts += (_INT(index), self._length(len(records)), records, self._tags)
            parts.append(self._tags)
        parts.append(self._tags)
        return parts


@lru_cache(maxsize=1024)
def _compact_length(length: int) -> bytes:
    return uvarint(length + 1)


def metadata_response(response: Any) -> MetadataResponse:
    """Convert kio's form of a Metadata response; raise ProtocolError if a broker's address is invalid."""
    topics = []
    for topic in response.topics:
        if topic.name is None:  # for example a deleted topic
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
        topic_id = getattr(topic, "topic_id", None)
        topics.append(TopicMetadata(topic.name, topic_id, partitions, int(topic.error_code), topic.is_internal))
    return MetadataResponse(tuple(map(to_node, response.brokers)), tuple(topics))


def leader_hint(partition: Any) -> Leader:
    """Return the leader hint (KIP-951) of a partition in a Produce or Fetch response; UNKNOWN if it has none."""
    current = getattr(partition, "current_leader", None)
    return Leader() if current is None else Leader(current.leader_id, current.leader_epoch)


def endpoints(response: Any) -> tuple[Node, ...]:
    """Return the new leaders' addresses (KIP-951) in a Produce or Fetch response, without invalid addresses."""
    nodes = []
    for entry in getattr(response, "node_endpoints", ()):
        with suppress(ProtocolError):
            nodes.append(to_node(entry))
    return tuple(nodes)


def to_node(entry: Any) -> Node:
    """Convert kio's form of a broker; raise ProtocolError if the broker's address is invalid."""
    try:
        host, port = Address.checked(entry.host, entry.port)
    except ValueError as error:
        raise ProtocolError(f"node {entry.node_id} has an invalid address: {error}") from error
    return Node(entry.node_id, host, port, getattr(entry, "rack", None))

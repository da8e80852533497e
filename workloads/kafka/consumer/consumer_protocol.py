"""Subscriptions and assignments of classic group members, as bytes in JoinGroup and SyncGroup (``ConsumerProtocol``).

1. The bytes begin with a version. A version above the highest known version is read as the highest known version.
2. A member sends its owned partitions and its generation in fields of their own since versions 1 and 2. The eager
   assignor ``sticky`` revokes all partitions before it joins, so it sends its previous partitions as user data.
   ``cooperative-sticky`` sends its generation as user data too, for leaders that don't know version 2.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kio.schema.consumer_protocol_assignment import v3 as assignment_v3
from kio.schema.consumer_protocol_subscription import v0, v1, v2, v3
from kio.schema.types import TopicName
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.client.requests import group_by_topic
from aftershock.workloads.kafka.rules.assignors import COOPERATIVE_STICKY, Subscription
from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition
from aftershock.workloads.kafka.wire.decoder import decode
from aftershock.workloads.kafka.wire.encoder import encode

PROTOCOL_TYPE = "consumer"
SUBSCRIPTIONS = (v0, v1, v2, v3)
_VERSION = struct.Struct(">h")
_GENERATION = struct.Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class StickyTopic:
    """Partitions of one topic in the user data of ``sticky``, in the form of kio's classes."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = False
    topic: TopicName = field(metadata={"kafka_type": "string"})
    partitions: tuple[i32, ...] = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StickyUserData:
    """User data of ``sticky``: ``STICKY_ASSIGNOR_USER_DATA_V1`` of Kafka's ``StickyAssignor``."""

    __type__: ClassVar = EntityType.data
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = False
    previous_assignment: tuple[StickyTopic, ...]
    generation: i32 = field(metadata={"kafka_type": "int32"})


def encode_subscription(
    assignor: str, subscription: Subscription, previous: Sequence[TopicPartition], previous_generation: int
) -> bytes:
    """Encode a member's subscription for one assignor; ``previous`` is the member's last assignment."""
    user_data = None
    if assignor == "sticky" and previous_generation != UNKNOWN:
        user_data = encode(
            StickyUserData(previous_assignment=_by_topic(StickyTopic, previous), generation=i32(previous_generation))
        )
    elif assignor == COOPERATIVE_STICKY:
        user_data = _GENERATION.pack(previous_generation)
    message = v3.ConsumerProtocolSubscription(
        topics=tuple(sorted(subscription.topics)),
        user_data=user_data,
        owned_partitions=_by_topic(v3.data.TopicPartition, subscription.owned),
        generation_id=i32(subscription.generation),
        rack_id=subscription.rack,
    )
    return _VERSION.pack(message.__version__) + encode(message)


def decode_subscription(assignor: str, data: bytes, instance_id: str | None) -> Subscription:
    """Decode a member's subscription for one assignor; raise ProtocolError if it is invalid."""
    kind = SUBSCRIPTIONS[min(_version_of(data), len(SUBSCRIPTIONS) - 1)].ConsumerProtocolSubscription
    message: Any = decode(kind, data, _VERSION.size)[0]
    owned, generation = _flat(getattr(message, "owned_partitions", ())), getattr(message, "generation_id", UNKNOWN)
    if assignor == "sticky":
        owned, generation = _sticky_user_data(message.user_data)
    elif assignor == COOPERATIVE_STICKY and not hasattr(message, "generation_id"):
        user_data = message.user_data or b""
        generation = _GENERATION.unpack_from(user_data)[0] if len(user_data) >= _GENERATION.size else UNKNOWN
    rack = getattr(message, "rack_id", None) or None
    return Subscription(tuple(message.topics), owned, generation, instance_id, rack)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    message = assignment_v3.ConsumerProtocolAssignment(
        assigned_partitions=_by_topic(assignment_v3.data.TopicPartition, partitions)
    )
    return _VERSION.pack(message.__version__) + encode(message)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Decode a member's assignment; raise ProtocolError if it is invalid."""
    _version_of(data)  # all known versions are alike
    return _flat(decode(assignment_v3.ConsumerProtocolAssignment, data, _VERSION.size)[0].assigned_partitions)


def _version_of(data: bytes) -> int:
    version: int = _VERSION.unpack_from(data)[0] if len(data) >= _VERSION.size else UNKNOWN
    if version < 0:
        raise ProtocolError(f"{len(data)} bytes are no subscription or assignment of Kafka's consumer protocol")
    return version


def _sticky_user_data(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int]:
    if not data:
        return (), UNKNOWN
    try:
        user_data = decode(StickyUserData, data)[0]
    except ProtocolError:  # as in Kafka, unreadable user data counts as no previous assignment
        return (), UNKNOWN
    return _flat(user_data.previous_assignment), user_data.generation


def _by_topic(kind: Any, partitions: Iterable[TopicPartition]) -> tuple[Any, ...]:
    return tuple(
        kind(topic=name, partitions=tuple(tp.partition for tp in of_topic))
        for name, of_topic in group_by_topic(list(partitions))
    )


def _flat(topics: Iterable[Any]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions)

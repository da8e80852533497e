"""Requests of a classic group member (JoinGroup, SyncGroup, Heartbeat, LeaveGroup), with Kafka's ``ConsumerProtocol``.

1. Subscriptions in JoinGroup and assignments in SyncGroup are bytes for the broker, which begin with a version. A
   version above the highest known version is read as the highest known version.
2. A member sends its owned partitions and its generation in fields of their own since versions 1 and 2. The eager
   assignor ``sticky`` revokes all partitions before it joins, so it sends its previous partitions as user data.
   ``cooperative-sticky`` sends its generation as user data too, for leaders that don't know version 2.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple

from kio.schema.consumer_protocol_assignment import v3 as assignment_v3
from kio.schema.consumer_protocol_subscription import v0, v1, v2, v3
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.client.coordinator import Coordinator
from aftershock.workloads.kafka.client.requests import ApiVersionRange, group_by_topic
from aftershock.workloads.kafka.consumer.shared import ConsumerSettings
from aftershock.workloads.kafka.rules.assignors import COOPERATIVE_STICKY, GroupAssignment, Members, Subscription
from aftershock.workloads.kafka.rules.classic_group import Generation, PendingRequest
from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition
from aftershock.workloads.kafka.wire.codec import Api
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


JOIN_GROUP = ApiVersionRange(Api.JOIN_GROUP, 9, 9)
"""Version 8 of JoinGroup adds the reason (KIP-800), version 9 that a returning leader need not assign (KIP-814)."""
SYNC_GROUP = ApiVersionRange(Api.SYNC_GROUP, 5, 5)
HEARTBEAT = ApiVersionRange(Api.HEARTBEAT, 4, 4)
LEAVE_GROUP = ApiVersionRange(Api.LEAVE_GROUP, 5, 5)
"""Version 5 of LeaveGroup adds the reason (KIP-800)."""
JOIN_GROUP_LAPSE_MS = 5_000
"""Time for a late response to JoinGroup, beyond ``max.poll.interval.ms`` (Kafka: ``JOIN_GROUP_TIMEOUT_LAPSE``)."""


class PreviousAssignment(NamedTuple):
    """Last assignment that a member has taken over, and its generation."""

    partitions: Sequence[TopicPartition] = ()
    generation: int = UNKNOWN


class JoinAnswer(NamedTuple):
    """Content of a JoinGroup response; only the leader's has ``members``.

    ``skips_assignment`` tells a static leader that returns to a stable group to assign nothing (KIP-814).
    """

    error: int
    generation: Generation
    leader: str
    members: Members
    skips_assignment: bool


class GroupRequests:
    def __init__(self, group_id: str, settings: ConsumerSettings, coordinator: Coordinator) -> None:
        self._group_id, self._settings, self._coordinator = group_id, settings, coordinator
        self._instance_id = settings.group_instance_id

    async def join(
        self, pending: PendingRequest, subscription: Subscription, previous: PreviousAssignment
    ) -> JoinAnswer:
        """Join the group, which takes until all members have joined, at most ``max.poll.interval.ms``."""
        settings, assignors = self._settings, self._settings.partition_assignment_strategy

        def request(messages: Any) -> Any:
            return messages.JoinGroupRequest(
                group_id=self._group_id,
                session_timeout=timedelta(milliseconds=settings.session_timeout_ms),
                rebalance_timeout=timedelta(milliseconds=settings.max_poll_interval_ms),
                member_id=pending.generation.member_id,
                group_instance_id=self._instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=tuple(
                    messages.JoinGroupRequestProtocol(
                        name=name, metadata=encode_subscription(name, subscription, *previous)
                    )
                    for name in assignors
                ),
                reason=pending.reason,
            )

        timeout_ms = max(settings.request_timeout_ms, settings.max_poll_interval_ms + JOIN_GROUP_LAPSE_MS)
        response = await self._coordinator.ask(JOIN_GROUP, request, timeout_ms=timeout_ms)
        error, assignor = int(response.error_code), response.protocol_name
        if not error and (response.protocol_type not in {None, PROTOCOL_TYPE} or assignor not in assignors):
            error = int(ErrorCode.inconsistent_group_protocol)
        members: Members = {}
        if not error and response.leader == response.member_id:
            members = {
                member.member_id: decode_subscription(assignor, bytes(member.metadata), member.group_instance_id)
                for member in response.members
            }
        generation = Generation(response.generation_id, response.member_id, assignor)
        return JoinAnswer(error, generation, response.leader, members, response.skip_assignment)

    async def sync(self, pending: PendingRequest, assignments: GroupAssignment, timeout_ms: float) -> tuple[int, bytes]:
        """Return an error code and the member's encoded assignment; only the leader gives ``assignments``."""
        generation = pending.generation

        def request(messages: Any) -> Any:
            return messages.SyncGroupRequest(
                group_id=self._group_id,
                generation_id=generation.number,
                member_id=generation.member_id,
                group_instance_id=self._instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=generation.assignor,
                assignments=tuple(
                    messages.SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(partitions))
                    for member_id, partitions in assignments.items()
                ),
            )

        response = await self._coordinator.ask(SYNC_GROUP, request, timeout_ms=timeout_ms)
        error = int(response.error_code)
        expected: Mapping[str, Any] = {"protocol_type": PROTOCOL_TYPE, "protocol_name": generation.assignor}
        if not error and any(getattr(response, name) not in {None, value} for name, value in expected.items()):
            error = int(ErrorCode.inconsistent_group_protocol)
        return error, bytes(response.assignment)

    async def heartbeat(self, pending: PendingRequest, timeout_ms: float) -> int:
        def request(messages: Any) -> Any:
            return messages.HeartbeatRequest(
                group_id=self._group_id,
                generation_id=pending.generation.number,
                member_id=pending.generation.member_id,
                group_instance_id=self._instance_id,
            )

        return int((await self._coordinator.ask(HEARTBEAT, request, timeout_ms=timeout_ms)).error_code)

    async def leave(self, pending: PendingRequest) -> int:
        def request(messages: Any) -> Any:
            member = messages.MemberIdentity(
                member_id=pending.generation.member_id, group_instance_id=None, reason=pending.reason
            )
            return messages.LeaveGroupRequest(group_id=self._group_id, members=(member,))

        return int((await self._coordinator.ask(LEAVE_GROUP, request)).error_code)

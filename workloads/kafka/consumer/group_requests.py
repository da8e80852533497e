"""Requests of a classic group member: JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from aftershock.workloads.kafka.client.coordinator import Coordinator
from aftershock.workloads.kafka.client.requests import ApiVersionRange
from aftershock.workloads.kafka.consumer.consumer_protocol import (
    PROTOCOL_TYPE,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from aftershock.workloads.kafka.consumer.shared import ConsumerSettings
from aftershock.workloads.kafka.rules.assignors import GroupAssignment, Members, Subscription
from aftershock.workloads.kafka.rules.classic_group import Generation, PendingRequest
from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition
from aftershock.workloads.kafka.wire.codec import Api

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

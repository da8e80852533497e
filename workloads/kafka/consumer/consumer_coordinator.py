"""Consumer coordinator, which manages a consumer's membership of a KIP-848 group, its heartbeats and its assignment.

Modelled on Kafka's ``AsyncKafkaConsumer`` and ``ConsumerMembershipManager``; the state machine of a group member is in
``rules/consumer_group.py``. A consumer that calls ``assign`` commits offsets without being a member of the group.
"""

import uuid
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from itertools import groupby
from re import Pattern
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ClientError, ProtocolError
from aftershock.workloads.kafka.client.coordinator import Coordinator
from aftershock.workloads.kafka.client.requests import ApiVersionRange
from aftershock.workloads.kafka.client.tasks import Wake
from aftershock.workloads.kafka.consumer.assigned_partitions import AssignedPartitions, RebalanceListener
from aftershock.workloads.kafka.consumer.commit_request_manager import CommittedOffsets, Membership
from aftershock.workloads.kafka.consumer.shared import ConsumerContext, Topics
from aftershock.workloads.kafka.rules.consumer_group import (
    LOST,
    AssignedPartition,
    GroupMember,
    HeartbeatAnswer,
    MemberState,
    Step,
    Verdict,
)
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.codec import Api
from aftershock.workloads.kafka.wire.schema import MILLISECOND

HEARTBEAT = ApiVersionRange(Api.CONSUMER_GROUP_HEARTBEAT, 0, 1)
"""Version 1 of the ConsumerGroupHeartbeat API lets the client choose its member id, and has regular expressions."""
HEARTBEAT_WITH_PATTERN = HEARTBEAT._replace(least=1)
UNCHANGED_MS = -1


class ConsumerCoordinator:
    """Group membership of a consumer under KIP-848, with heartbeats and the reconciliation of assignments."""

    def __init__(self, group_id: str, shared: ConsumerContext) -> None:
        settings = shared.settings
        self._group_id, self._shared = group_id, shared
        self._coordinator = Coordinator(group_id, shared.brokers, shared.backoff)
        self._instance_id = settings.group_instance_id
        self._member = GroupMember(
            str(uuid.uuid4()),
            backoff=shared.backoff,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            rack=settings.client_rack,
            assignor=settings.group_remote_assignor,
            is_static=self._instance_id is not None,
        )
        self.store = CommittedOffsets(
            group_id, self._coordinator, shared.backoff, settings.default_api_timeout_ms, self.membership
        )
        self._partitions = AssignedPartitions(shared, self.store)
        self._wake = Wake()  # the member has something to send
        self._has_pattern = False
        self._step: Step | None = None
        self._topic_names: dict[UUID, str] = {}

    @property
    def counts(self) -> Counter[str]:
        return self._member.counts

    @property
    def member_id(self) -> str:
        return self.membership().member_id

    @property
    def member_epoch(self) -> int:
        return self._member.membership_epoch

    def membership(self) -> Membership:
        if self._member.state is MemberState.UNSUBSCRIBED:
            return Membership()
        return Membership(self._member.member_id, self._member.membership_epoch, self._instance_id)

    def join(self, topics: Topics, listener: RebalanceListener) -> None:
        self._partitions.listener = listener
        self._member.polled(self._shared.clock_ms())
        if isinstance(topics, Pattern):
            self._has_pattern = True
            self._member.subscribe((), topics.pattern)
        else:
            self._shared.metadata.want(topics)
            self._member.subscribe(tuple(topics))
        self._wake()

    async def run(self) -> None:
        """Send heartbeats to the group's coordinator until the membership ends.

        Raises BrokerError if the coordinator ended the membership, UnsupportedError if the broker lacks KIP-848.
        """
        while True:
            wait_ms = self._member.wait_ms(self._shared.clock_ms())
            if wait_ms > 0:
                await self._wake.wait(wait_ms)
            else:
                await self._send_heartbeat()
                self._shared.on_change()

    async def _send_heartbeat(self) -> None:
        member, shared = self._member, self._shared
        epoch, heartbeat = member.membership_epoch, member.heartbeat(shared.clock_ms())
        if member.state is MemberState.STALE:
            shared.on_event("poll_timeout", member_id=member.member_id, epoch=epoch)
        timeout_ms = UNCHANGED_MS if heartbeat.rebalance_timeout_ms is None else heartbeat.rebalance_timeout_ms

        def request(messages: Any) -> Any:
            owned = None
            if heartbeat.owned is not None:
                owned = tuple(
                    messages.TopicPartitions(topic_id=topic_id, partitions=tuple(item.partition for item in of_topic))
                    for topic_id, of_topic in groupby(sorted(heartbeat.owned), key=lambda item: item.topic_id)
                )
            pattern = {} if heartbeat.pattern is None else {"subscribed_topic_regex": heartbeat.pattern}
            return messages.ConsumerGroupHeartbeatRequest(
                group_id=self._group_id,
                member_id=heartbeat.member_id,
                member_epoch=heartbeat.member_epoch,
                instance_id=self._instance_id,
                rack_id=heartbeat.rack,
                rebalance_timeout=timedelta(milliseconds=timeout_ms),
                subscribed_topic_names=heartbeat.topics,
                server_assignor=heartbeat.server_assignor,
                topic_partitions=owned,
                **pattern,
            )

        try:
            versions = HEARTBEAT_WITH_PATTERN if self._has_pattern else HEARTBEAT
            response = await self._coordinator.ask(versions, request)
        except (OSError, ProtocolError) as error:
            member.on_failure(shared.clock_ms())
            shared.on_event("heartbeat_failed", reason=str(error) or type(error).__name__)
            return
        error_code = int(response.error_code)
        assignment = response.assignment and frozenset(
            AssignedPartition(topic.topic_id, partition)
            for topic in response.assignment.topic_partitions
            for partition in topic.partitions
        )
        interval_ms = response.heartbeat_interval / MILLISECOND
        answer = HeartbeatAnswer(error_code, response.member_epoch, interval_ms, assignment)
        was_joining = member.state is MemberState.JOINING
        verdict = member.on_response(answer, shared.clock_ms())
        error_name = codes.name(error_code)
        if verdict is not Verdict.CONTINUE:
            shared.on_event("group_error", error=error_name, verdict=verdict.name.lower())
        elif was_joining and member.membership_epoch == member.epoch:
            assignor = shared.settings.group_remote_assignor
            shared.on_event("group_joined", epoch=member.epoch, leader=False, protocol="consumer", assignor=assignor)
        if verdict is Verdict.RELEASE or error_code == ErrorCode.fenced_instance_id:
            shared.on_event("member_fenced", error=error_name, member_id=member.member_id, epoch=heartbeat.member_epoch)
        if verdict is Verdict.FIND_COORDINATOR:
            self._coordinator.forget()
        elif verdict is Verdict.FAIL:
            raise BrokerError(
                f"the group {self._group_id} rejects this consumer: {error_name}; "
                "see the broker's log, or use another group",
                error_code,
            )

    def polled(self) -> None:
        """Commit the offsets of records from earlier polls if an automatic commit is due."""
        self._partitions.commits.polled(self._shared.clock_ms())

    def settle(self) -> None:
        """Revoke and add partitions as the group coordinator demands, as far as possible without waiting."""
        member, shared, partitions = self._member, self._shared, self._partitions
        member.polled(shared.clock_ms())
        if member.state in LOST:
            partitions.lose(member.member_id)
            self._step = None
            member.rejoin()
            self._wake()
        if self._has_pattern:
            shared.metadata.want_ids(member.target_topics)
        for topic_id in member.unresolved - self._topic_names.keys():
            name = shared.metadata.name_of(topic_id)
            if name is None:
                shared.metadata.request_update()
            else:
                self._topic_names[topic_id] = name
        if self._step is None:
            self._step = member.reconcile(self._topic_names)
            self._wake()  # an acknowledgement may be due
            if self._step is not None:
                shared.on_event("rebalance_started", epoch=member.epoch, reason="a new assignment")
            if self._step is not None and self._step.revoke:
                partitions.begin_revocation(self._topic_partitions(self._step.revoke))
        if self._step is not None and partitions.is_committed:
            partitions.revoke(self._topic_partitions(self._step.revoke))
            partitions.add(self._topic_partitions(self._step.take))
            member.finish_step()
            self._wake()
            self._step = None
        partitions.restore_positions()

    def _topic_partitions(self, partitions: Iterable[AssignedPartition]) -> list[TopicPartition]:
        return sorted(TopicPartition(self._topic_names[item.topic_id], item.partition) for item in partitions)

    async def leave(self) -> None:
        """Commit the positions (if commits are automatic), release all partitions and leave the group."""
        if self._member.state in LOST:
            self._partitions.lose(self._member.member_id)
        else:
            await self._partitions.commits.finish()
            self._partitions.revoke(sorted(self._shared.positions))
        if self._member.leave():
            with suppress(ClientError):  # a group that could not be joined cannot be left either
                await self._send_heartbeat()

    async def close(self) -> None:
        await self._partitions.close()

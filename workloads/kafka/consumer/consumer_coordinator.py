"""Consumer coordinator, which manages a consumer's membership of a group (KIP-848), assigned partitions and heartbeats.

Modelled on Kafka's ``AsyncKafkaConsumer`` and ``ConsumerMembershipManager``; the state machine of a group member is in
``rules/consumer_group.py``. A consumer that calls ``assign`` commits offsets without being a member of the group.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

from aftershock.errors import BrokerError, ClientError, ProtocolError
from aftershock.workloads.kafka.client.coordinator import Coordinator
from aftershock.workloads.kafka.client.requests import ApiVersionRange
from aftershock.workloads.kafka.client.tasks import Wake
from aftershock.workloads.kafka.consumer.commit_request_manager import AutoCommit, CommittedOffsets, Membership
from aftershock.workloads.kafka.consumer.shared import ConsumerContext
from aftershock.workloads.kafka.rules.consumer_group import (
    FENCED_CODES,
    AssignedPartition,
    GroupMember,
    HeartbeatAnswer,
    MemberState,
    Step,
    Verdict,
)
from aftershock.workloads.kafka.rules.subscription_state import FetchPosition, State
from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.codec import Api
from aftershock.workloads.kafka.wire.schema import MILLISECOND

HEARTBEAT = ApiVersionRange(Api.CONSUMER_GROUP_HEARTBEAT, 0, 1)
"""Version 1 of the ConsumerGroupHeartbeat API lets the client choose its member id."""
UNCHANGED_MS = -1

OnPartitions = Callable[[Sequence[TopicPartition]], None]
"""Callback of the application for assigned or revoked partitions, called from ``poll`` and ``close``."""


class ConsumerCoordinator:
    """Group membership of a consumer, with heartbeats, assigned partitions and commits."""

    def __init__(self, group_id: str, shared: ConsumerContext) -> None:
        settings = shared.settings
        self._group_id, self._shared = group_id, shared
        self._coordinator = Coordinator(group_id, shared.brokers, shared.backoff)
        self._member = GroupMember(
            str(uuid.uuid4()),
            backoff=shared.backoff,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            rack=settings.client_rack,
            assignor=settings.group_remote_assignor,
        )
        self.store = CommittedOffsets(
            group_id, self._coordinator, shared.backoff, settings.default_api_timeout_ms, self._membership
        )
        self._commits = AutoCommit(self.store, shared.positions, settings, shared.on_event)
        self._wake = Wake()  # the member has something to send
        self._on_assigned: OnPartitions = lambda _: None
        self._on_revoked: OnPartitions = lambda _: None
        self._step: Step | None = None
        self._revocation_commit: asyncio.Task[None] | None = None
        self._topic_names: dict[UUID, str] = {}
        self._restoring: asyncio.Task[None] | None = None

    @property
    def counts(self) -> Counter[str]:
        return self._member.counts

    @property
    def member_id(self) -> str:
        """Member id of the consumer in its group; empty until the consumer joins."""
        return self._membership().member_id

    def _membership(self) -> Membership:
        unsubscribed = self._member.state is MemberState.UNSUBSCRIBED
        return Membership() if unsubscribed else Membership(self._member.member_id, self._member.epoch)

    def join(self, topics: Sequence[str], on_assigned: OnPartitions, on_revoked: OnPartitions) -> None:
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
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
        heartbeat = self._member.heartbeat(self._shared.clock_ms())
        timeout_ms = UNCHANGED_MS if heartbeat.rebalance_timeout_ms is None else heartbeat.rebalance_timeout_ms

        def request(messages: Any) -> Any:
            owned = None
            if heartbeat.owned is not None:
                owned = tuple(
                    messages.TopicPartitions(topic_id=topic_id, partitions=tuple(item.partition for item in of_topic))
                    for topic_id, of_topic in groupby(sorted(heartbeat.owned), key=lambda item: item.topic_id)
                )
            return messages.ConsumerGroupHeartbeatRequest(
                group_id=self._group_id,
                member_id=heartbeat.member_id,
                member_epoch=heartbeat.member_epoch,
                rack_id=heartbeat.rack,
                rebalance_timeout=timedelta(milliseconds=timeout_ms),
                subscribed_topic_names=heartbeat.topics,
                server_assignor=heartbeat.server_assignor,
                topic_partitions=owned,
            )

        try:
            response = await self._coordinator.ask(HEARTBEAT, request)
        except (OSError, ProtocolError) as error:
            self._member.on_failure(self._shared.clock_ms())
            self._shared.on_event("heartbeat_failed", reason=str(error) or type(error).__name__)
            return
        error_code = int(response.error_code)
        assignment = response.assignment and frozenset(
            AssignedPartition(topic.topic_id, partition)
            for topic in response.assignment.topic_partitions
            for partition in topic.partitions
        )
        interval_ms = response.heartbeat_interval / MILLISECOND
        answer = HeartbeatAnswer(error_code, response.member_epoch, interval_ms, assignment)
        verdict = self._member.on_response(answer, self._shared.clock_ms())
        if verdict is not Verdict.CONTINUE:
            self._shared.on_event("group_error", error=codes.name(error_code), verdict=verdict.name.lower())
        if verdict is Verdict.FIND_COORDINATOR:
            self._coordinator.forget()
        elif verdict is Verdict.FAIL:
            raise BrokerError(
                f"the group {self._group_id} rejects this consumer: {codes.name(error_code)}; "
                "see the broker's log, or use another group",
                error_code,
            )

    def polled(self) -> None:
        """Commit the offsets of records from earlier polls if an automatic commit is due."""
        self._commits.polled(self._shared.clock_ms())

    def settle(self) -> None:
        """Revoke and add partitions as the group coordinator demands, as far as possible without waiting.

        The position of a revoked partition is committed (if commits are automatic) before ``on_revoked`` is called;
        meanwhile ``poll`` delivers records of the remaining partitions. Then ``on_assigned`` is called for new
        partitions.
        """
        member, shared = self._member, self._shared
        if member.state is MemberState.FENCED:  # the member has lost its partitions
            self._commits.cancel()
            lost = sorted(shared.positions)
            self._release(lost)
            listed = [[tp.topic, tp.partition] for tp in lost]
            shared.on_event("partitions_lost", partitions=listed, member_id=member.member_id)
            self._step = None
            member.rejoin()
            self._wake()
        for topic_id in member.unresolved - self._topic_names.keys():
            name = shared.metadata.name_of(topic_id)
            if name is None:
                shared.metadata.request_update()
            else:
                self._topic_names[topic_id] = name
        if self._step is None:
            self._step, self._revocation_commit = member.reconcile(self._topic_names), None
            if self._step is not None and self._step.revoke:
                self._revocation_commit = self._commits.begin()
                if self._revocation_commit is not None:
                    self._revocation_commit.add_done_callback(lambda _: shared.on_change())
                shared.positions.revoking(self._topic_partitions(self._step.revoke))
        if self._step is not None and (self._revocation_commit is None or self._revocation_commit.done()):
            added = self._topic_partitions(self._step.take)
            self._release(self._topic_partitions(self._step.revoke))
            shared.positions.assign([*shared.positions, *added])
            if added:
                self._on_assigned(added)
            member.finish_step()
            self._wake()
            self._step = None
        if self._without_position() and (self._restoring is None or self._restoring.done()):
            self._restoring = asyncio.create_task(self._restore_positions())

    def _topic_partitions(self, partitions: Iterable[AssignedPartition]) -> list[TopicPartition]:
        return sorted(TopicPartition(self._topic_names[item.topic_id], item.partition) for item in partitions)

    def _release(self, partitions: Sequence[TopicPartition]) -> None:
        removed = set(partitions)
        self._shared.assign([tp for tp in self._shared.positions if tp not in removed])
        if partitions:
            self._on_revoked(partitions)

    def _without_position(self) -> list[TopicPartition]:
        return [tp for tp in self._shared.positions.initializing() if tp not in self._shared.buffer]

    async def _restore_positions(self) -> None:
        positions, metadata, buffer = self._shared.positions, self._shared.metadata, self._shared.buffer
        while missing := self._without_position():
            try:
                committed = await self.store.committed(missing)
            except TimeoutError:
                continue
            except ClientError as error:
                if isinstance(error, BrokerError) and error.code in FENCED_CODES:
                    # The response to the next heartbeat excludes the member.
                    await asyncio.sleep(self._shared.backoff.ms(0) / 1000)
                    continue
                for tp in missing:
                    buffer.fail(tp, error)
                self._shared.on_change()
                continue
            for tp in missing:
                if positions.state(tp) is not State.INITIALIZING:
                    continue
                if (commit := committed.get(tp)) is not None:
                    if commit.epoch != UNKNOWN:
                        metadata.update_epoch(tp, commit.epoch)
                    positions.seek(tp, FetchPosition(commit.offset, commit.epoch, metadata.leader(tp)))
                elif positions.policy != "none":
                    positions.reset(tp)
                else:
                    problem = f"the consumer group has no committed offset of {tp}, and auto.offset.reset is none"
                    advice = "commit an offset, or set auto.offset.reset to earliest or latest"
                    buffer.fail(tp, BrokerError(f"{problem}; {advice}", codes.OFFSET_OUT_OF_RANGE))
            self._shared.on_change()

    async def leave(self) -> None:
        """Commit the positions (if commits are automatic), release all partitions and leave the group."""
        if self._member.state is MemberState.FENCED:
            self._commits.cancel()
        else:
            await self._commits.finish()
        self._release(sorted(self._shared.positions))
        if self._member.leave():
            with suppress(ClientError):  # a group that could not be joined cannot be left either
                await self._send_heartbeat()

    async def close(self) -> None:
        await self._commits.close()
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.wait([self._restoring])

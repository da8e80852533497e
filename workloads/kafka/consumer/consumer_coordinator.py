"""Consumer coordinator: membership of a group (KIP-848), assigned partitions and heartbeats.

Without ``group.id`` there is no coordinator. A consumer with a group that assigns its partitions itself commits without
being a member; a subscribing consumer is a member, with heartbeats in the background while ``run`` runs.

Rebalance (the state machine is in ``consumer_group.py``; Kafka's ``AsyncKafkaConsumer``,
``ConsumerMembershipManager``):

1. Everything that concerns the application happens in ``settle``, which ``poll`` calls: revoked partitions are no
   longer fetched and delivered, then committed (if that is automatic), then released with ``on_revoked``; only then are
   new ones taken with ``on_assigned``. The commit does not block: remaining partitions are read in the meantime.
2. An excluded member has lost its partitions: ``on_revoked`` is called, and pending commits are cancelled.
3. A new partition continues from the group's committed offset; without one, the reset policy decides.

Heartbeats: ConsumerGroupHeartbeat in versions 0 and 1; of the additions in version 1, only the member id that the
client chooses is used.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from aftershock.errors import BrokerError, ClientError, ProtocolError
from aftershock.workloads.kafka.client.coordinator import Coordinator
from aftershock.workloads.kafka.client.requests import ApiVersionRange
from aftershock.workloads.kafka.client.tasks import Wake
from aftershock.workloads.kafka.consumer.commit_request_manager import (
    AutoCommit,
    Committed,
    CommittedOffsets,
    Membership,
)
from aftershock.workloads.kafka.consumer.shared import ConsumerContext
from aftershock.workloads.kafka.rules.consumer_group import (
    FENCED_CODES,
    AssignedPartition,
    Assignment,
    GroupMember,
    Heartbeat,
    HeartbeatAnswer,
    MemberState,
    Step,
    Verdict,
)
from aftershock.workloads.kafka.rules.subscription_state import FetchPosition, State
from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.codec import Api
from aftershock.workloads.kafka.wire.codes import OFFSET_OUT_OF_RANGE
from aftershock.workloads.kafka.wire.schema import MILLISECOND

OnPartitions = Callable[[Sequence[TopicPartition]], None]


class Callbacks(NamedTuple):
    """The application's callbacks. They are called from ``poll`` and ``close`` only, and must not block."""

    on_assigned: OnPartitions
    on_revoked: OnPartitions


class Rebalance:
    """Assignment of one member: ``settle`` from poll, ``release_all`` at the end. Empty until the member joins."""

    def __init__(
        self,
        shared: ConsumerContext,
        member: GroupMember,
        store: CommittedOffsets,
        commits: AutoCommit,
        acknowledge: Wake,
    ) -> None:
        self.callbacks = Callbacks(_ignore, _ignore)
        self._shared, self._member, self._store, self._commits = shared, member, store, commits
        self._acknowledge = acknowledge
        self._step: Step | None = None
        self._committing: asyncio.Task[None] | None = None
        self._topic_names: dict[UUID, str] = {}
        self._restoring: asyncio.Task[None] | None = None

    # ---- the assignment

    def settle(self) -> None:
        """Apply the group's changes as far as possible now (rule 1)."""
        if self._member.state is MemberState.FENCED:
            self._on_fenced()
        self._resolve_topic_ids()
        if self._step is None:
            self._begin(self._member.reconcile(self._topic_names))
        if self._step is not None and (self._committing is None or self._committing.done()):
            self._finish(self._step)
            self._step = None
        if self._without_position() and (self._restoring is None or self._restoring.done()):
            self._restoring = asyncio.create_task(self._restore())

    def _resolve_topic_ids(self) -> None:
        for topic_id in self._member.unresolved - self._topic_names.keys():
            name = self._shared.metadata.name_of(topic_id)
            if name is None:
                self._shared.metadata.request_update()
            else:
                self._topic_names[topic_id] = name

    def _begin(self, step: Step | None) -> None:
        """Stop delivering revoked partitions, and commit what was delivered."""
        self._step, self._committing = step, None
        if step is None or not step.revoke:
            return
        self._committing = self._commits.begin()
        if self._committing is not None:
            self._committing.add_done_callback(lambda _: self._shared.on_change())
        self._shared.positions.revoking(self._topic_partitions(step.revoke))

    def _finish(self, step: Step) -> None:
        added = self._topic_partitions(step.take)
        self._release(self._topic_partitions(step.revoke))
        self._shared.positions.assign([*self._shared.positions, *added])
        if added:
            self.callbacks.on_assigned(added)
        self._member.reconciled()
        self._acknowledge()

    def _topic_partitions(self, partitions: Iterable[AssignedPartition]) -> list[TopicPartition]:
        return sorted(
            TopicPartition(self._topic_names[partition.topic_id], partition.partition) for partition in partitions
        )

    def _on_fenced(self) -> None:
        """Rule 2."""
        self._commits.cancel()
        lost = sorted(self._shared.positions)
        self._release(lost)
        listed = [[tp.topic, tp.partition] for tp in lost]
        self._shared.on_event("partitions_lost", partitions=listed, member_id=self._member.member_id)
        self._step = None
        self._member.released()
        self._acknowledge()

    def _release(self, partitions: Sequence[TopicPartition]) -> None:
        removed = set(partitions)
        self._shared.assign([tp for tp in self._shared.positions if tp not in removed])
        if partitions:
            self.callbacks.on_revoked(partitions)

    # ---- where new partitions begin

    def _without_position(self) -> list[TopicPartition]:
        return [tp for tp in self._shared.positions.initializing() if tp not in self._shared.buffer]

    async def _restore(self) -> None:
        """Apply rule 3 to all partitions without a position."""
        while missing := self._without_position():
            try:
                committed = await self._store.committed(missing)
            except TimeoutError:
                continue
            except ClientError as error:
                await self._on_restore_error(missing, error)
                continue
            for tp in missing:
                self._set_position(tp, committed.get(tp))
            self._shared.on_change()

    async def _on_restore_error(self, partitions: Sequence[TopicPartition], error: ClientError) -> None:
        """Handle an error. An excluded member learns of it by heartbeat; other errors go to the application."""
        if isinstance(error, BrokerError) and error.code in FENCED_CODES:
            await asyncio.sleep(self._shared.backoff.ms(0) / 1000)
            return
        for tp in partitions:
            self._shared.buffer.fail(tp, error)
        self._shared.on_change()

    def _set_position(self, tp: TopicPartition, committed: Committed | None) -> None:
        positions, metadata = self._shared.positions, self._shared.metadata
        if positions.state(tp) is not State.INITIALIZING:
            return
        if committed is not None:
            if committed.epoch != UNKNOWN:
                metadata.saw_epoch(tp, committed.epoch)
            positions.seek(tp, FetchPosition(committed.offset, committed.epoch, metadata.leader(tp)))
        elif positions.policy != "none":
            positions.reset(tp)
        else:
            error = (
                f"the group has no offset of {tp} and auto.offset.reset is none; commit an offset, or set the policy"
            )
            self._shared.buffer.fail(tp, BrokerError(error, OFFSET_OUT_OF_RANGE))

    # ---- the end

    async def release_all(self) -> None:
        """Commit if that is automatic, then release all partitions."""
        if self._member.state is MemberState.FENCED:
            self._commits.cancel()
        else:
            await self._commits.finish()
        self._release(sorted(self._shared.positions))

    async def close(self) -> None:
        """Cancel the running task."""
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.wait([self._restoring])


def _ignore(_partitions: Sequence[TopicPartition]) -> None:
    """Do nothing."""


HEARTBEAT = ApiVersionRange(Api.CONSUMER_GROUP_HEARTBEAT, 0, 1)
UNCHANGED_MS = -1


class HeartbeatSender:
    """Keeps a member in its group while ``run`` runs; call ``wake`` when the member has something to send."""

    def __init__(self, group_id: str, member: GroupMember, coordinator: Coordinator, shared: ConsumerContext) -> None:
        self.wake = Wake()
        self._group_id, self._member, self._coordinator, self._shared = group_id, member, coordinator, shared

    async def run(self) -> None:
        """Run until it raises: BrokerError when the membership ended, UnsupportedError if the broker lacks KIP-848."""
        while True:
            wait_ms = self._member.wait_ms(self._shared.clock_ms())
            if wait_ms > 0:
                await self.wake.wait(wait_ms)
            else:
                await self.send()
                self._shared.on_change()

    async def send(self) -> None:
        """Send one heartbeat now and handle the response."""
        heartbeat = self._member.heartbeat(self._shared.clock_ms())
        try:
            response = await self._coordinator.ask(HEARTBEAT, partial(self._request, heartbeat))
        except (OSError, ProtocolError) as error:
            self._member.failed(self._shared.clock_ms())
            self._shared.on_event("heartbeat_failed", reason=str(error) or type(error).__name__)
            return
        self._act(self._member.answered(_answer(response), self._shared.clock_ms()), int(response.error_code))

    def _request(self, heartbeat: Heartbeat, messages: Any) -> Any:
        timeout_ms = UNCHANGED_MS if heartbeat.rebalance_timeout_ms is None else heartbeat.rebalance_timeout_ms
        return messages.ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=heartbeat.member_id,
            member_epoch=heartbeat.member_epoch,
            rack_id=heartbeat.rack,
            rebalance_timeout=timedelta(milliseconds=timeout_ms),
            subscribed_topic_names=heartbeat.topics,
            server_assignor=heartbeat.server_assignor,
            topic_partitions=None if heartbeat.owned is None else tuple(_by_id(messages, heartbeat.owned)),
        )

    def _act(self, verdict: Verdict, error: int) -> None:
        if verdict is not Verdict.GO_ON:
            self._shared.on_event("group_error", error=codes.name(error), verdict=verdict.name.lower())
        if verdict is Verdict.FIND_COORDINATOR:
            self._coordinator.forget()
        elif verdict is Verdict.FAIL:
            advice = "see the broker's log, or use another group"
            raise BrokerError(f"the group {self._group_id} rejects this consumer: {codes.name(error)}; {advice}", error)


def _by_id(messages: Any, owned: Assignment) -> list[Any]:
    topics = groupby(sorted(owned), key=lambda partition: partition.topic_id)
    return [
        messages.TopicPartitions(topic_id=topic_id, partitions=tuple(item.partition for item in partitions))
        for topic_id, partitions in topics
    ]


def _answer(response: Any) -> HeartbeatAnswer:
    assignment = response.assignment and frozenset(
        AssignedPartition(topic.topic_id, partition)
        for topic in response.assignment.topic_partitions
        for partition in topic.partitions
    )
    interval_ms = response.heartbeat_interval / MILLISECOND
    return HeartbeatAnswer(int(response.error_code), response.member_epoch, interval_ms, assignment)


class ConsumerCoordinator:
    """One consumer and its group. ``run`` in the background once it has joined; ``polled`` and ``settle`` from poll."""

    def __init__(self, group_id: str, shared: ConsumerContext) -> None:
        settings = shared.settings
        coordinator = Coordinator(group_id, shared)
        self._shared = shared
        self._member = GroupMember(
            str(uuid.uuid4()),
            backoff=shared.backoff,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            rack=settings.client_rack,
            assignor=settings.group_remote_assignor,
        )
        self.store = CommittedOffsets(
            group_id, coordinator, shared.backoff, settings.default_api_timeout_ms, self._membership
        )
        self._commits = AutoCommit(self.store, shared.positions, shared.settings, shared.on_event)
        self._heartbeats = HeartbeatSender(group_id, self._member, coordinator, shared)
        self._rebalance = Rebalance(shared, self._member, self.store, self._commits, self._heartbeats.wake)

    @property
    def counts(self) -> Counter[str]:
        """Counters of the member."""
        return self._member.counts

    @property
    def member_id(self) -> str:
        """Member id in the group, once the consumer has joined."""
        return self._membership().member_id

    def _membership(self) -> Membership:
        unsubscribed = self._member.state is MemberState.UNSUBSCRIBED
        return Membership() if unsubscribed else Membership(self._member.member_id, self._member.epoch)

    def join(self, topics: Sequence[str], callbacks: Callbacks) -> None:
        """Become a member for these topics."""
        self._rebalance.callbacks = callbacks
        self._member.subscribe(tuple(topics))
        self._heartbeats.wake()

    async def run(self) -> None:
        """Send heartbeats forever; raise a ``ClientError`` when the membership cannot continue."""
        await self._heartbeats.run()

    def polled(self) -> None:
        """Note that a poll starts: records of earlier polls may be committed."""
        self._commits.polled(self._shared.clock_ms())

    def settle(self) -> None:
        """Apply the group's changes."""
        self._rebalance.settle()

    async def leave(self) -> None:
        """Commit if that is automatic, release all partitions and leave the group; ``run`` must have ended."""
        await self._rebalance.release_all()
        if self._member.leave():
            with suppress(ClientError):  # a group that could not be joined cannot be left either
                await self._heartbeats.send()

    async def close(self) -> None:
        """Cancel all tasks."""
        await self._commits.close()
        await self._rebalance.close()

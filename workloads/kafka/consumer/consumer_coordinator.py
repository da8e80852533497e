"""Offsets that a group has committed: written and read at its coordinator.

Rules (Kafka's ``CommitRequestManager``):

1. One commit under way at a time, so that a later one can't be overtaken by an earlier one.
2. A coordinator that moved, is loading, or doesn't answer is asked again after a back-off, until the deadline.
3. STALE_MEMBER_EPOCH (113): the member's epoch rose meanwhile; ask again with the new one.
4. Anything else is the caller's to hear of: UNKNOWN_MEMBER_ID (25), say, of a member that was thrown out.

OffsetCommit and OffsetFetch are spoken in version 9, which has the member's epoch (KIP-848) and names topics. A commit
that an application asks for fails in Kafka when its epoch is stale; ours asks again, as Kafka does for its own commits.

``enable.auto.commit``: positions are committed by ``poll``, before partitions are given up, and at the end.

A position is behind what earlier polls handed over, and nothing else, so what is committed has reached the application
(Kafka's ``CommitRequestManager.AutoCommitState``). A commit that fails is told and left: the next one says it again.

What a consumer does when its group gives it partitions or takes them away (KIP-848).

Rules (the state machine is ``consumer_group.py``'s; Kafka's ``AsyncKafkaConsumer``, ``ConsumerMembershipManager``):

1. Whatever concerns the application happens in ``settle``, which ``poll`` calls: partitions that are taken away are
   fetched and handed over no more, then committed (if that is automatic), then given up with ``on_revoked``; only then
   are new ones taken with ``on_assigned``. Nobody waits for the commit: partitions that stay are read meanwhile.
2. A member that was thrown out has lost its partitions: ``on_revoked``, and nothing is committed, be it under way.
3. A new partition goes on from what the group has committed; without that, the reset policy says where.

The heartbeats of one group member, in the background: what ``consumer_group.py`` wants said, to the coordinator.

ConsumerGroupHeartbeat is spoken in versions 0 and 1; of 1's additions only the client's own member id is used.

A consumer's side of its group: committed offsets, and membership if it subscribes.

Without ``group.id`` there is no ``Group``. With one, a consumer that assigns commits as nobody in particular; one that
subscribes is a member, with heartbeats in the background for as long as ``run`` runs.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from aftershock.errors import BrokerError, ClientError, ProtocolError
from aftershock.workloads.kafka.client.coordinator import Coordinator
from aftershock.workloads.kafka.client.requests import Dialect, by_topic
from aftershock.workloads.kafka.client.tasks import Tell, Wake, until_answered
from aftershock.workloads.kafka.consumer.shared import ConsumerSettings, Shared
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
from aftershock.workloads.kafka.rules.subscription_state import FetchPosition, Positions, State
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff, TopicPartition
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.codec import Api
from aftershock.workloads.kafka.wire.codes import OFFSET_OUT_OF_RANGE
from aftershock.workloads.kafka.wire.schema import MILLISECOND

OFFSET_COMMIT = Dialect(Api.OFFSET_COMMIT, 9, 9)
OFFSET_FETCH = Dialect(Api.OFFSET_FETCH, 9, 9)
ASKED_AGAIN = frozenset({3, 7, 14, 88, 113}) | codes.COORDINATOR_MOVED
"""UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT, COORDINATOR_LOAD_IN_PROGRESS, UNSTABLE_OFFSET_COMMIT,
STALE_MEMBER_EPOCH, and a coordinator that moved."""
A = TypeVar("A")


class Membership(NamedTuple):
    """As whom to commit. Without a member: a consumer that assigns."""

    member_id: str = ""
    epoch: int = UNKNOWN


class Committed(NamedTuple):
    """A committed offset, and the leader epoch of the record before it."""

    offset: int
    epoch: int = UNKNOWN


class OffsetStore:
    """What one group has committed. ``timeout_ms`` is the deadline of each call."""

    def __init__(
        self,
        group_id: str,
        coordinator: Coordinator,
        backoff: Backoff,
        timeout_ms: float,
        membership: Callable[[], Membership],
    ) -> None:
        self._group_id, self._coordinator, self._backoff = group_id, coordinator, backoff
        self._timeout_ms, self._membership = timeout_ms, membership
        self._turn = asyncio.Lock()

    async def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit ``offsets``; TimeoutError at the deadline, BrokerError when the group refuses."""
        if offsets:
            async with self._turn:
                await self._until_done(lambda: self._commit(offsets))

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Committed]:
        """What is committed of ``partitions``; errors as ``commit``. Those without a commit are left out."""
        found = await self._until_done(lambda: self._fetch(partitions))
        return {tp: committed for tp, committed in found.items() if committed.offset >= 0}

    async def _until_done(self, attempt: Callable[[], Coroutine[Any, Any, A]]) -> A:
        """Rules 2 and 3."""
        async with asyncio.timeout(self._timeout_ms / 1000):
            return await until_answered(attempt, self._backoff)

    async def _commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        response = await self._coordinator.ask(OFFSET_COMMIT, partial(self._commit_request, offsets))
        self._check(int(each.error_code) for topic in response.topics for each in topic.partitions)

    def _commit_request(self, offsets: Mapping[TopicPartition, Committed], messages: Any) -> Any:
        def partition(tp: TopicPartition) -> Any:
            return messages.OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=offsets[tp].offset,
                committed_leader_epoch=offsets[tp].epoch,
                committed_metadata="",
            )

        member = self._membership()
        return messages.OffsetCommitRequest(
            group_id=self._group_id,
            generation_id_or_member_epoch=member.epoch,
            member_id=member.member_id,
            topics=tuple(
                messages.OffsetCommitRequestTopic(name=name, partitions=tuple(map(partition, of_topic)))
                for name, of_topic in by_topic(offsets)
            ),
        )

    async def _fetch(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Committed]:
        response = await self._coordinator.ask(OFFSET_FETCH, partial(self._fetch_request, partitions))
        group = response.groups[0]
        self._check([int(group.error_code)])
        self._check(int(each.error_code) for topic in group.topics for each in topic.partitions)
        return {
            TopicPartition(topic.name, each.partition_index): Committed(
                each.committed_offset, each.committed_leader_epoch
            )
            for topic in group.topics
            for each in topic.partitions
        }

    def _fetch_request(self, partitions: Collection[TopicPartition], messages: Any) -> Any:
        member = self._membership()
        topics = tuple(
            messages.OffsetFetchRequestTopics(name=name, partition_indexes=tuple(tp.partition for tp in of_topic))
            for name, of_topic in by_topic(partitions)
        )
        group = messages.OffsetFetchRequestGroup(
            group_id=self._group_id, member_id=member.member_id or None, member_epoch=member.epoch, topics=topics
        )
        return messages.OffsetFetchRequest(groups=(group,), require_stable=True)

    def _check(self, errors: Iterable[int]) -> None:
        """ConnectionError for what is to be asked again, BrokerError for what isn't."""
        for error in filter(None, errors):
            if error in codes.COORDINATOR_MOVED:
                self._coordinator.forget()
            if error in ASKED_AGAIN:
                raise ConnectionError(f"the coordinator of {self._group_id} answered {codes.name(error)}")
            raise BrokerError(
                f"the group {self._group_id} refuses this consumer's offsets: {codes.name(error)}; "
                f"has it been thrown out, or may it not read them?",
                error,
            )


def consumed(positions: Positions) -> dict[TopicPartition, Committed]:
    """What may be committed now."""
    valid = {tp: positions.valid_position(tp) for tp in positions}
    return {tp: Committed(at.offset, at.offset_epoch) for tp, at in valid.items() if at is not None}


class AutoCommit:
    """The automatic commits of one consumer; none where they are switched off."""

    def __init__(self, store: OffsetStore, positions: Positions, settings: ConsumerSettings, tell: Tell) -> None:
        self._store, self._positions, self._tell = store, positions, tell
        self._enabled, self._interval_ms = settings.enable_auto_commit, settings.auto_commit_interval_ms
        self._due_ms: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def polled(self, now_ms: float) -> None:
        """A poll begins: everything handed over so far has been dealt with. Commit it if it is time."""
        if not self._enabled:
            return
        if self._due_ms is None:
            self._due_ms = now_ms + self._interval_ms
        if now_ms >= self._due_ms and not self._tasks:
            self._due_ms = now_ms + self._interval_ms
            self.begin()

    def begin(self) -> asyncio.Task[None] | None:
        """Start to commit everything consumed up to now; None where commits aren't automatic."""
        if not self._enabled:
            return None
        task = asyncio.create_task(self._commit(consumed(self._positions)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        try:
            await self._store.commit(offsets)
        except (OSError, ClientError) as error:
            self._tell("commit_failed", reason=str(error) or type(error).__name__)
        else:
            if offsets:
                self._tell("committed", offsets=[[tp.topic, tp.partition, at.offset] for tp, at in offsets.items()])

    async def finish(self) -> None:
        """Commit everything consumed, and wait for all that is under way."""
        self.begin()
        await asyncio.gather(*self._tasks)

    def cancel(self) -> None:
        """Nothing that is under way may be committed any more: the partitions are lost."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """End what is under way."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


OnPartitions = Callable[[Sequence[TopicPartition]], None]


class Callbacks(NamedTuple):
    """The application's. They are called from ``poll`` and ``close`` only, and must not wait."""

    on_assigned: OnPartitions
    on_revoked: OnPartitions


class Rebalance:
    """The assignment of one member: ``settle`` from poll, ``give_all_up`` at the end. Until it joins there is none."""

    def __init__(
        self, shared: Shared, member: GroupMember, store: OffsetStore, commits: AutoCommit, acknowledge: Wake
    ) -> None:
        self.callbacks = Callbacks(_ignore, _ignore)
        self._shared, self._member, self._store, self._commits = shared, member, store, commits
        self._acknowledge = acknowledge
        self._step: Step | None = None
        self._committing: asyncio.Task[None] | None = None
        self._names: dict[UUID, str] = {}
        self._restoring: asyncio.Task[None] | None = None

    # ---- the assignment

    def settle(self) -> None:
        """Carry out what the group wants changed, if anything, as far as that can be done now (rule 1)."""
        if self._member.state is MemberState.FENCED:
            self._lose()
        self._learn_names()
        if self._step is None:
            self._begin(self._member.reconcile(self._names))
        if self._step is not None and (self._committing is None or self._committing.done()):
            self._finish(self._step)
            self._step = None
        if self._unplaced() and (self._restoring is None or self._restoring.done()):
            self._restoring = asyncio.create_task(self._restore())

    def _learn_names(self) -> None:
        for topic_id in self._member.unresolved - self._names.keys():
            name = self._shared.metadata.name_of(topic_id)
            if name is None:
                self._shared.metadata.request_update()
            else:
                self._names[topic_id] = name

    def _begin(self, step: Step | None) -> None:
        """Nothing more is handed over of what goes; what was is committed."""
        self._step, self._committing = step, None
        if step is None or not step.revoke:
            return
        self._committing = self._commits.begin()
        if self._committing is not None:
            self._committing.add_done_callback(lambda _: self._shared.on_change())
        self._shared.positions.revoking(self._named(step.revoke))

    def _finish(self, step: Step) -> None:
        taken = self._named(step.take)
        self._drop(self._named(step.revoke))
        self._shared.positions.assign([*self._shared.positions, *taken])
        if taken:
            self.callbacks.on_assigned(taken)
        self._member.reconciled()
        self._acknowledge()

    def _named(self, partitions: Iterable[AssignedPartition]) -> list[TopicPartition]:
        return sorted(TopicPartition(self._names[each.topic_id], each.partition) for each in partitions)

    def _lose(self) -> None:
        """Rule 2."""
        self._commits.cancel()
        lost = sorted(self._shared.positions)
        self._drop(lost)
        listed = [[tp.topic, tp.partition] for tp in lost]
        self._shared.tell("partitions_lost", partitions=listed, member_id=self._member.member_id)
        self._step = None
        self._member.released()
        self._acknowledge()

    def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        gone = set(partitions)
        self._shared.assign([tp for tp in self._shared.positions if tp not in gone])
        if partitions:
            self.callbacks.on_revoked(partitions)

    # ---- where new partitions begin

    def _unplaced(self) -> list[TopicPartition]:
        return [tp for tp in self._shared.positions.initializing() if tp not in self._shared.buffer]

    async def _restore(self) -> None:
        """Rule 3, for whatever has no position; until nothing is left without one."""
        while asked := self._unplaced():
            try:
                committed = await self._store.committed(asked)
            except TimeoutError:
                continue
            except ClientError as error:
                await self._not_restored(asked, error)
                continue
            for tp in asked:
                self._place(tp, committed.get(tp))
            self._shared.on_change()

    async def _not_restored(self, partitions: Sequence[TopicPartition], error: ClientError) -> None:
        """A member that was thrown out will hear of it by heartbeat; all else is for the application to hear."""
        if isinstance(error, BrokerError) and error.code in FENCED_CODES:
            await asyncio.sleep(self._shared.backoff.ms(0) / 1000)
            return
        for tp in partitions:
            self._shared.buffer.fail(tp, error)
        self._shared.on_change()

    def _place(self, tp: TopicPartition, committed: Committed | None) -> None:
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
            self._shared.buffer.fail(tp, _nothing_committed(tp))

    # ---- the end

    async def give_all_up(self) -> None:
        """Commit if that is automatic, then have nothing any more."""
        if self._member.state is MemberState.FENCED:
            self._commits.cancel()
        else:
            await self._commits.finish()
        self._drop(sorted(self._shared.positions))

    async def close(self) -> None:
        """End what is under way."""
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.wait([self._restoring])


def _ignore(_partitions: Sequence[TopicPartition]) -> None:
    """Nobody asked to be called."""


def _nothing_committed(tp: TopicPartition) -> BrokerError:
    return BrokerError(
        f"the group has no offset of {tp} and auto.offset.reset is none: commit one, or set the policy",
        OFFSET_OUT_OF_RANGE,
    )


HEARTBEAT = Dialect(Api.CONSUMER_GROUP_HEARTBEAT, 0, 1)
UNCHANGED_MS = -1


class Heartbeats:
    """Keeps a member in its group for as long as ``run`` runs; ``wake`` when the member has something to say."""

    def __init__(self, group_id: str, member: GroupMember, coordinator: Coordinator, shared: Shared) -> None:
        self.wake = Wake()
        self._group_id, self._member, self._coordinator, self._shared = group_id, member, coordinator, shared

    async def run(self) -> None:
        """For ever; BrokerError when the membership has ended, UnsupportedError when the broker has no KIP-848."""
        while True:
            wait_ms = self._member.wait_ms(self._shared.clock_ms())
            if wait_ms > 0:
                await self.wake.wait(wait_ms)
            else:
                await self.beat()
                self._shared.on_change()

    async def beat(self) -> None:
        """One exchange, now."""
        said = self._member.heartbeat(self._shared.clock_ms())
        try:
            response = await self._coordinator.ask(HEARTBEAT, partial(self._request, said))
        except (OSError, ProtocolError) as error:
            self._member.failed(self._shared.clock_ms())
            self._shared.tell("heartbeat_failed", reason=str(error) or type(error).__name__)
            return
        self._act(self._member.answered(_answer(response), self._shared.clock_ms()), int(response.error_code))

    def _request(self, said: Heartbeat, messages: Any) -> Any:
        timeout_ms = UNCHANGED_MS if said.rebalance_timeout_ms is None else said.rebalance_timeout_ms
        return messages.ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=said.member_id,
            member_epoch=said.member_epoch,
            rack_id=said.rack,
            rebalance_timeout=timedelta(milliseconds=timeout_ms),
            subscribed_topic_names=said.topics,
            server_assignor=said.server_assignor,
            topic_partitions=None if said.owned is None else tuple(_by_id(messages, said.owned)),
        )

    def _act(self, verdict: Verdict, error: int) -> None:
        if verdict is not Verdict.GO_ON:
            self._shared.tell("group_error", error=codes.name(error), verdict=verdict.name.lower())
        if verdict is Verdict.FIND_COORDINATOR:
            self._coordinator.forget()
        elif verdict is Verdict.FAIL:
            advice = "see the broker's log, or use another group"
            raise BrokerError(f"the group {self._group_id} refuses this consumer: {codes.name(error)}; {advice}", error)


def _by_id(messages: Any, owned: Assignment) -> list[Any]:
    topics = groupby(sorted(owned), key=lambda partition: partition.topic_id)
    return [
        messages.TopicPartitions(topic_id=topic_id, partitions=tuple(each.partition for each in partitions))
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


class Group:
    """One consumer and its group. ``run`` in the background once it has joined; ``polled`` and ``settle`` from poll."""

    def __init__(self, group_id: str, shared: Shared) -> None:
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
        self.store = OffsetStore(
            group_id, coordinator, shared.backoff, settings.default_api_timeout_ms, self._membership
        )
        self._commits = AutoCommit(self.store, shared.positions, shared.settings, shared.tell)
        self._heartbeats = Heartbeats(group_id, self._member, coordinator, shared)
        self._rebalance = Rebalance(shared, self._member, self.store, self._commits, self._heartbeats.wake)

    @property
    def counts(self) -> Counter[str]:
        """The member's counters."""
        return self._member.counts

    @property
    def member_id(self) -> str:
        """What the group knows this consumer by, once it has joined."""
        return self._membership().member_id

    def _membership(self) -> Membership:
        unsubscribed = self._member.state is MemberState.UNSUBSCRIBED
        return Membership() if unsubscribed else Membership(self._member.member_id, self._member.epoch)

    def join(self, topics: Sequence[str], callbacks: Callbacks) -> None:
        """Want to be a member for these topics."""
        self._rebalance.callbacks = callbacks
        self._member.subscribe(tuple(topics))
        self._heartbeats.wake()

    async def run(self) -> None:
        """The heartbeats, for ever; a ``ClientError`` when the membership can't go on."""
        await self._heartbeats.run()

    def polled(self) -> None:
        """A poll begins: what earlier ones handed over may be committed."""
        self._commits.polled(self._shared.clock_ms())

    def settle(self) -> None:
        """Carry out what the group wants changed."""
        self._rebalance.settle()

    async def leave(self) -> None:
        """Commit if that is automatic, give everything up and tell the group; ``run`` must have ended."""
        await self._rebalance.give_all_up()
        if self._member.leave():
            with suppress(ClientError):  # a group that couldn't be joined can't be left either
                await self._heartbeats.beat()

    async def close(self) -> None:
        """End what is under way."""
        await self._commits.close()
        await self._rebalance.close()

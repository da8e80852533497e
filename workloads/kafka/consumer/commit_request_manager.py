"""Committed offsets of a consumer group, and automatic commits.

Rules of commits (``CommitRequestManager``, and ``ConsumerCoordinator`` for classic groups, of Kafka 4.3):

1. Each attempt is sent with the member id and the epoch (in a classic group, the generation) of that moment.
2. An attempt with an error in ``RETRIED_CODES``, or without a response, is repeated until the commit's deadline.
3. STALE_MEMBER_EPOCH (113) means that the member's epoch has changed, and that the partition may belong to another
   member. It ends every commit, so that an explicit commit raises it. Only the commit before a revocation is repeated
   with the new epoch, while the client is a member of the group, because it still owns the partitions. In turn
   UNKNOWN_TOPIC_OR_PARTITION (3) ends the commit before a revocation, because after the deletion of a topic the
   rebalance would not end in time (``maybeAutoCommitSyncBeforeRebalance``); a classic group's member repeats it
   (``ConsumerCoordinator.onJoinPrepare``).
4. All other errors end the commit, for example UNKNOWN_MEMBER_ID (25), ILLEGAL_GENERATION (22),
   REBALANCE_IN_PROGRESS (27) and FENCED_INSTANCE_ID (82). They are told to the member of a classic group.
5. A fetch of committed offsets is repeated after STALE_MEMBER_EPOCH too, while the client is a member of the group.

In Kafka a failed automatic commit is not repeated, but replaced by one with the positions of a later poll, and the
commit before a revocation is repeated with the positions of that moment; here each is repeated as it is (rule 2).
"""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from aftershock.errors import BrokerError, ClientError
from aftershock.workloads.kafka.client.coordinator import Coordinator
from aftershock.workloads.kafka.client.requests import (
    ApiVersionRange,
    group_by_topic,
    offset_commit_versions,
    topic_reference,
)
from aftershock.workloads.kafka.client.tasks import EventListener, retry_until_answered
from aftershock.workloads.kafka.consumer.shared import ConsumerSettings
from aftershock.workloads.kafka.rules.subscription_state import SubscriptionState
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff, TopicPartition
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.codec import Api

OFFSET_FETCH = ApiVersionRange(Api.OFFSET_FETCH, 9, 9)
"""Version 9 of OffsetFetch has the member epoch (KIP-848) and identifies topics by name."""
UNKNOWN_TOPIC_OR_PARTITION = 3
RETRIED_CODES = frozenset({UNKNOWN_TOPIC_OR_PARTITION, 7, 14, 88, 100}) | codes.COORDINATOR_MOVED
"""Error codes of commits that are retried: UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT,
COORDINATOR_LOAD_IN_PROGRESS, UNSTABLE_OFFSET_COMMIT, UNKNOWN_TOPIC_ID, and those of a coordinator that moved."""
STALE_MEMBER_EPOCH = 113
A = TypeVar("A")


class Membership(NamedTuple):
    """Member id, epoch (or generation) and instance id that are sent with an offset commit.

    The defaults are those of a consumer that is no member of a group.
    """

    member_id: str = ""
    epoch: int = UNKNOWN
    instance_id: str | None = None


class Receipt(NamedTuple):
    """Epoch that a successful commit was sent with, and the microseconds from its sending until its response."""

    epoch: int
    took_us: int


class Committed(NamedTuple):
    """Committed offset of a partition, and the leader epoch of the last record before the committed offset."""

    offset: int
    epoch: int = UNKNOWN


class CommittedOffsets:
    """Committed offsets of one consumer group; ``timeout_ms`` limits each commit and each fetch of the offsets.

    ``membership`` may raise the error of a commit that must not be sent. ``on_rejected`` is called with the error code
    of a rejected commit and the epoch that it was sent with. Members of classic groups (``is_classic``) don't name
    themselves when they fetch offsets, and identify topics by name.
    """

    def __init__(
        self,
        group_id: str,
        coordinator: Coordinator,
        backoff: Backoff,
        timeout_ms: float,
        membership: Callable[[], Membership],
        *,
        on_rejected: Callable[[int, int], None] = lambda _error, _epoch: None,
        is_classic: bool = False,
    ) -> None:
        self._group_id, self._coordinator, self._backoff = group_id, coordinator, backoff
        self._timeout_ms, self._membership, self._on_rejected = timeout_ms, membership, on_rejected
        self._is_classic = is_classic
        self._turn = asyncio.Lock()  # one commit at a time, so that no earlier commit overtakes a later commit

    async def commit(
        self,
        offsets: Mapping[TopicPartition, Committed],
        *,
        before_revocation: bool = False,
        timeout_ms: float | None = None,
    ) -> Receipt | None:
        """Commit offsets for the group; return None if there are none. ``before_revocation`` selects rule 3.

        Raises TimeoutError, or BrokerError if the coordinator rejects the commit.
        """
        if not offsets:
            return None
        retried = RETRIED_CODES
        if before_revocation and not self._is_classic:
            retried = RETRIED_CODES - {UNKNOWN_TOPIC_OR_PARTITION} | {STALE_MEMBER_EPOCH}
        async with self._turn:
            return await self._until_done(lambda: self._commit(offsets, retried), timeout_ms)

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Return the offsets that the group has committed; raises the same errors as ``commit``."""
        member = Membership()

        def request(messages: Any) -> Any:
            nonlocal member
            if not self._is_classic and (known := self._membership()).epoch != UNKNOWN:
                member = known
            topics = tuple(
                messages.OffsetFetchRequestTopics(name=name, partition_indexes=tuple(tp.partition for tp in of_topic))
                for name, of_topic in group_by_topic(partitions)
            )
            group = messages.OffsetFetchRequestGroup(
                group_id=self._group_id, member_id=member.member_id or None, member_epoch=member.epoch, topics=topics
            )
            return messages.OffsetFetchRequest(groups=(group,), require_stable=True)

        async def attempt() -> dict[TopicPartition, Committed]:
            group = (await self._coordinator.ask(OFFSET_FETCH, request)).groups[0]
            errors = [group.error_code, *(part.error_code for topic in group.topics for part in topic.partitions)]
            self._check(errors, RETRIED_CODES | {STALE_MEMBER_EPOCH})
            return {
                TopicPartition(topic.name, part.partition_index): Committed(
                    part.committed_offset, part.committed_leader_epoch
                )
                for topic in group.topics
                for part in topic.partitions
                if part.committed_offset >= 0
            }

        return await self._until_done(attempt)

    async def _until_done(self, attempt: Callable[[], Coroutine[Any, Any, A]], timeout_ms: float | None = None) -> A:
        async with asyncio.timeout((self._timeout_ms if timeout_ms is None else timeout_ms) / 1000):
            return await retry_until_answered(attempt, self._backoff)

    async def _commit(self, offsets: Mapping[TopicPartition, Committed], retried: Collection[int]) -> Receipt:
        metadata = self._coordinator.metadata
        topic_ids = {tp.topic: None if self._is_classic else metadata.topic_id(tp.topic) for tp in offsets}
        member, sent_ns = Membership(), 0

        def request(messages: Any) -> Any:
            nonlocal member, sent_ns
            member, sent_ns = self._membership(), time.monotonic_ns()
            kind = messages.OffsetCommitRequestTopic
            topics = tuple(
                kind(
                    **topic_reference(kind, name, topic_ids[name]),
                    partitions=tuple(
                        messages.OffsetCommitRequestPartition(
                            partition_index=tp.partition,
                            committed_offset=offsets[tp].offset,
                            committed_leader_epoch=offsets[tp].epoch,
                            committed_metadata="",
                        )
                        for tp in of_topic
                    ),
                )
                for name, of_topic in group_by_topic(offsets)
            )
            return messages.OffsetCommitRequest(
                group_id=self._group_id,
                generation_id_or_member_epoch=member.epoch,
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                topics=topics,
            )

        versions = offset_commit_versions(topic_ids.values())
        if not self._is_classic:
            versions = versions._replace(least=9)  # the first version with member epochs
        response = await self._coordinator.ask(versions, request)
        took_us = (time.monotonic_ns() - sent_ns) // 1000
        try:
            self._check([part.error_code for topic in response.topics for part in topic.partitions], retried)
        except BrokerError as error:
            self._on_rejected(error.code, member.epoch)
            raise
        return Receipt(member.epoch, took_us)

    def _check(self, errors: Iterable[int], retried: Collection[int]) -> None:
        """Raise ConnectionError for an error code in ``retried``, BrokerError for another error code except 0."""
        for error in map(int, filter(None, errors)):
            if error in codes.COORDINATOR_MOVED:
                self._coordinator.forget()
            # without an epoch the client is no member any more
            if error in retried and not (error == STALE_MEMBER_EPOCH and self._membership().epoch == UNKNOWN):
                raise ConnectionError(
                    f"the coordinator of the group {self._group_id} answered a commit with {codes.name(error)}"
                )
            raise BrokerError(
                f"the group {self._group_id} rejects this consumer's offsets: {codes.name(error)}; "
                f"check the consumer's authorization, and whether it left the group",
                error,
            )


def offsets_to_commit(positions: SubscriptionState) -> dict[TopicPartition, Committed]:
    """Return the positions of all assigned partitions whose position is known and validated."""
    return {
        tp: Committed(position.offset, position.offset_epoch)
        for tp in positions
        if (position := positions.valid_position(tp)) is not None
    }


class AutoCommit:
    """Automatic commits of one consumer (``enable.auto.commit``), as in Kafka's ``AutoCommitState``.

    The consumer commits its positions in ``poll``, before partitions are revoked, and in ``close``. A commit that fails
    for good (rules 2 to 4) is an event and not raised, because the next automatic commit includes the same offsets.
    """

    def __init__(
        self, store: CommittedOffsets, positions: SubscriptionState, settings: ConsumerSettings, on_event: EventListener
    ) -> None:
        self._store, self._positions, self._on_event = store, positions, on_event
        self._enabled, self._interval_ms = settings.enable_auto_commit, settings.auto_commit_interval_ms
        self._revocation_timeout_ms = settings.max_poll_interval_ms
        self._due_ms: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def polled(self, now_ms: float) -> None:
        """Start to commit the consumer's positions if ``auto.commit.interval.ms`` has passed."""
        if not self._enabled:
            return
        if self._due_ms is None:
            self._due_ms = now_ms + self._interval_ms
        if now_ms >= self._due_ms and not self._tasks:
            self._due_ms = now_ms + self._interval_ms
            self.begin()

    def restart(self, now_ms: float) -> None:
        """Let the next commit in ``poll`` wait for ``auto.commit.interval.ms`` from now on, after a rebalance."""
        self._due_ms = now_ms + self._interval_ms

    def begin(self, *, before_revocation: bool = False) -> asyncio.Task[None] | None:
        """Start to commit the consumer's positions; return None if automatic commits are disabled.

        A commit before a revocation takes ``max.poll.interval.ms`` at most, the time in which a member must revoke.
        """
        if not self._enabled:
            return None
        offsets = offsets_to_commit(self._positions)
        task = asyncio.create_task(self._commit(offsets, before_revocation=before_revocation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _commit(self, offsets: Mapping[TopicPartition, Committed], *, before_revocation: bool) -> None:
        try:
            receipt = await self._store.commit(
                offsets,
                before_revocation=before_revocation,
                timeout_ms=self._revocation_timeout_ms if before_revocation else None,
            )
        except (OSError, ClientError) as error:
            self._on_event("commit_failed", reason=str(error) or type(error).__name__)
        else:
            if receipt is not None:
                rows = [[tp.topic, tp.partition, commit.offset] for tp, commit in offsets.items()]
                self._on_event("committed", offsets=rows, epoch=receipt.epoch, took_us=receipt.took_us)

    async def finish(self) -> None:
        self.begin()
        await asyncio.gather(*self._tasks)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

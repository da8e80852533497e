"""Committed offsets of a consumer group, and automatic commits (Kafka's ``CommitRequestManager``).

In Kafka an explicit commit with a stale member epoch fails; this client retries the commit with the new epoch, as Kafka
does for automatic commits.
"""

import asyncio
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
RETRIED_CODES = frozenset({3, 7, 14, 88, 100, 113}) | codes.COORDINATOR_MOVED
"""Error codes of commits that are retried: UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT,
COORDINATOR_LOAD_IN_PROGRESS, UNSTABLE_OFFSET_COMMIT, UNKNOWN_TOPIC_ID, STALE_MEMBER_EPOCH, and those of a coordinator
that moved."""
A = TypeVar("A")


class Membership(NamedTuple):
    """Member id and epoch that are sent with an offset commit; the defaults are those of a consumer without group."""

    member_id: str = ""
    epoch: int = UNKNOWN


class Committed(NamedTuple):
    """Committed offset of a partition, and the leader epoch of the last record before the committed offset."""

    offset: int
    epoch: int = UNKNOWN


class CommittedOffsets:
    """Committed offsets of one consumer group; ``timeout_ms`` limits each commit and each fetch of the offsets."""

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
        self._turn = asyncio.Lock()  # one commit at a time, so that no earlier commit overtakes a later commit

    async def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit offsets for the group; raise TimeoutError, or BrokerError if the coordinator rejects the commit."""
        if offsets:
            async with self._turn:
                await self._until_done(lambda: self._commit(offsets))

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Return the offsets that the group has committed; raises the same errors as ``commit``."""

        def request(messages: Any) -> Any:
            member = self._membership()
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
            self._check([group.error_code, *(part.error_code for topic in group.topics for part in topic.partitions)])
            return {
                TopicPartition(topic.name, part.partition_index): Committed(
                    part.committed_offset, part.committed_leader_epoch
                )
                for topic in group.topics
                for part in topic.partitions
                if part.committed_offset >= 0
            }

        return await self._until_done(attempt)

    async def _until_done(self, attempt: Callable[[], Coroutine[Any, Any, A]]) -> A:
        async with asyncio.timeout(self._timeout_ms / 1000):
            return await retry_until_answered(attempt, self._backoff)

    async def _commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        topic_ids = {tp.topic: self._coordinator.metadata.topic_id(tp.topic) for tp in offsets}

        def request(messages: Any) -> Any:
            member = self._membership()
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
                topics=topics,
            )

        versions = offset_commit_versions(topic_ids.values())._replace(least=9)
        response = await self._coordinator.ask(versions, request)
        self._check([part.error_code for topic in response.topics for part in topic.partitions])

    def _check(self, errors: Iterable[int]) -> None:
        """Raise ConnectionError for a retriable error code, BrokerError for another error code except 0."""
        for error in map(int, filter(None, errors)):
            if error in codes.COORDINATOR_MOVED:
                self._coordinator.forget()
            if error in RETRIED_CODES:
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

    The consumer commits its positions in ``poll``, before partitions are revoked, and in ``close``. A failed automatic
    commit is reported and not retried, because the next automatic commit includes the same offsets.
    """

    def __init__(
        self, store: CommittedOffsets, positions: SubscriptionState, settings: ConsumerSettings, on_event: EventListener
    ) -> None:
        self._store, self._positions, self._on_event = store, positions, on_event
        self._enabled, self._interval_ms = settings.enable_auto_commit, settings.auto_commit_interval_ms
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

    def begin(self) -> asyncio.Task[None] | None:
        """Start to commit the consumer's positions; return None if automatic commits are disabled."""
        if not self._enabled:
            return None
        task = asyncio.create_task(self._commit(offsets_to_commit(self._positions)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        try:
            await self._store.commit(offsets)
        except (OSError, ClientError) as error:
            self._on_event("commit_failed", reason=str(error) or type(error).__name__)
        else:
            if offsets:
                self._on_event(
                    "committed", offsets=[[tp.topic, tp.partition, commit.offset] for tp, commit in offsets.items()]
                )

    async def finish(self) -> None:
        self.begin()
        await asyncio.gather(*self._tasks)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

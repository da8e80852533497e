"""Offsets that a group has committed: written and read at its coordinator.

Rules (Kafka's ``CommitRequestManager``):

1. One commit under way at a time, so that a later one can't be overtaken by an earlier one.
2. A coordinator that moved, is loading, or doesn't answer is asked again after a back-off, until the deadline.
3. STALE_MEMBER_EPOCH (113): the member's epoch rose meanwhile; ask again with the new one.
4. Anything else is the caller's to hear of: UNKNOWN_MEMBER_ID (25), say, of a member that was thrown out.

OffsetCommit and OffsetFetch are spoken in version 9, which has the member's epoch (KIP-848) and names topics. A commit
that an application asks for fails in Kafka when its epoch is stale; ours asks again, as Kafka does for its own commits.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from aftershock.errors import BrokerError
from aftershock.workloads.reference.coordinator import Coordinator
from aftershock.workloads.reference.retrying import until_answered
from aftershock.workloads.reference.speak import Dialect, by_topic
from aftershock.workloads.rules.backoff import Backoff
from aftershock.workloads.rules.values import UNKNOWN, TopicPartition
from aftershock.workloads.wire import codes
from aftershock.workloads.wire.versions import Api

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

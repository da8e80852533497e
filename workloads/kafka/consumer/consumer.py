"""Reference consumer, with the methods that an application calls and the background loop that fetches.

The consumer buffers one Fetch response per broker; no further fetch is sent to a broker until the records of the
response are polled, so memory is bounded by ``fetch.max.bytes`` per broker. A partition's position advances only when
``poll`` delivers records.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Literal, Protocol

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, SettingError
from aftershock.workloads.kafka.client.network_client import NetworkClient
from aftershock.workloads.kafka.client.tasks import EventListener, RateLimitedListener, Wake, monotonic_ms
from aftershock.workloads.kafka.consumer.assigned_partitions import OnPartitions, RebalanceListener
from aftershock.workloads.kafka.consumer.classic_coordinator import ClassicCoordinator
from aftershock.workloads.kafka.consumer.commit_request_manager import (
    Committed,
    CommittedOffsets,
    Membership,
    offsets_to_commit,
)
from aftershock.workloads.kafka.consumer.consumer_coordinator import ConsumerCoordinator
from aftershock.workloads.kafka.consumer.fetch_buffer import FetchBuffer, Fetched
from aftershock.workloads.kafka.consumer.fetcher import Fetcher, FetchRoutes
from aftershock.workloads.kafka.consumer.offset_fetcher import End, OffsetFetcher
from aftershock.workloads.kafka.consumer.shared import ConsumerContext, ConsumerSettings, Topics
from aftershock.workloads.kafka.rules.leader_discovery import LeaderDiscovery
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.read_replica import ReadReplicas
from aftershock.workloads.kafka.rules.subscription_state import FetchPosition, SubscriptionState
from aftershock.workloads.kafka.rules.transaction_manager import GroupOffsets
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff, TopicPartition
from aftershock.workloads.kafka.wire import codes

Start = int | Literal["earliest", "latest"]
"""Position at which a partition is read first: an offset, or the start or end of the partition's log."""
UNKNOWN_TOPIC_OR_PARTITION = 3


class GroupCoordinator(Protocol):
    """Consumer's side of a group, the same for both group protocols."""

    store: CommittedOffsets

    @property
    def counts(self) -> Counter[str]: ...

    @property
    def member_id(self) -> str: ...

    @property
    def member_epoch(self) -> int: ...

    def membership(self) -> Membership:
        """Return what a commit is sent with; raise BrokerError while a member must not commit."""

    def join(self, topics: Topics, listener: RebalanceListener) -> None: ...

    async def run(self) -> None:
        """Exchange requests with the group's coordinator, also while the application doesn't poll."""

    def polled(self) -> None:
        """Commit the offsets of records from earlier polls if an automatic commit is due."""

    def settle(self) -> None:
        """Do the part of a rebalance that needs the application, in ``poll``, without waiting."""

    async def leave(self) -> None: ...

    async def close(self) -> None: ...


GROUP_COORDINATORS: Mapping[str, Callable[[str, ConsumerContext], GroupCoordinator]] = {
    "consumer": ConsumerCoordinator,
    "classic": ClassicCoordinator,
}


class Consumer:
    """Consumer on one asyncio event loop; an application calls ``start``, ``assign`` or ``subscribe``, and ``poll``."""

    def __init__(self, settings: ConsumerSettings, *, on_event: EventListener) -> None:
        draw = random.Random()  # noqa: S311  # spreads waits; not a secret
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms, draw)
        metadata = Metadata(max_age_ms=settings.metadata_max_age_ms, backoff=backoff)
        positions = SubscriptionState(settings.auto_offset_reset)
        self.brokers = NetworkClient(
            settings, metadata, monotonic_ms, on_event=on_event, draw=draw, on_change=self._on_change
        )
        self._shared = shared = ConsumerContext(
            settings=settings,
            brokers=self.brokers,
            metadata=metadata,
            discovery=LeaderDiscovery(metadata, settings.leader_discovery, backoff),
            positions=positions,
            replicas=ReadReplicas(settings.metadata_max_age_ms, enabled=settings.read_replica),
            buffer=FetchBuffer(positions),
            backoff=backoff,
            clock_ms=monotonic_ms,
            on_event=on_event,
            on_change=self._on_change,
        )
        limited = RateLimitedListener(on_event, monotonic_ms)
        self._fetcher = Fetcher(shared, FetchRoutes(shared.replicas, metadata, positions, limited))
        self._offsets = OffsetFetcher(shared)
        self._group: GroupCoordinator | None = None
        if settings.group_id is not None:
            self._group = GROUP_COORDINATORS[settings.group_protocol](settings.group_id, shared)
        self._wake_loop, self._wake_poll = Wake(), Wake()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def counts(self) -> Counter[str]:
        shared, group = self._shared, self._group.counts if self._group else Counter[str]()
        rules = (shared.replicas, shared.metadata, shared.discovery, shared.positions)
        return sum((rule.counts for rule in rules), self._fetcher.counts) + group

    @property
    def member_id(self) -> str:
        """Member id of the consumer in its group; empty until the consumer joins."""
        return self._group.member_id if self._group else ""

    @property
    def member_epoch(self) -> int:
        """Member epoch of the consumer in its group, or generation of a classic group; -1 without membership."""
        return self._group.member_epoch if self._group else UNKNOWN

    def _on_change(self) -> None:
        self._wake_loop()
        self._wake_poll()

    def _start_task(self, running: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(running)
        task.add_done_callback(lambda _: self._wake_poll())
        self._tasks.append(task)

    async def _run(self) -> None:
        while True:
            now_ms = monotonic_ms()
            wait_ms = min(self._fetcher.step(now_ms), self._offsets.step(now_ms))
            # last, because both steps may make a Metadata request due, for which later requests wait
            await self._wake_loop.wait(min(wait_ms, self.brokers.refresh_if_due()))

    def check(self) -> None:
        """Raise the error that has stopped this consumer, if any."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def start(self, topics: Collection[str]) -> None:
        """Wait until the metadata has the topics; raise ClientError if an error is not retriable.

        Metadata requests are retried without a limit while no broker answers, and for ``default.api.timeout.ms`` while
        a topic is unknown.
        """
        topic_deadline_ms = monotonic_ms() + self._shared.settings.default_api_timeout_ms
        self._shared.metadata.want(topics)
        self._start_task(self._run())
        while not all(self._is_known(topic, topic_deadline_ms) for topic in topics):
            await self._wake_poll.wait(float("inf"))  # each response wakes; a topic with an error is requested again
            self.check()
            if self.brokers.unsupported is not None:
                raise self.brokers.unsupported

    def _is_known(self, name: str, topic_deadline_ms: float) -> bool:
        topic = self._shared.metadata.topic(name)
        if topic is None:
            return False
        if topic.error in codes.HOPELESS:
            raise BrokerError(f"the topic {name} cannot be read: {codes.name(topic.error)}", topic.error)
        if topic.error == UNKNOWN_TOPIC_OR_PARTITION and monotonic_ms() >= topic_deadline_ms:
            raise BrokerError(f"there is no topic {name}; create it first, or correct its name", topic.error)
        return not topic.error and bool(topic.partitions)

    def assign(self, positions: Mapping[TopicPartition, Start]) -> None:
        """Replace the assigned partitions; ``positions`` maps each partition to the position to read from."""
        self._shared.metadata.want({tp.topic for tp in positions})
        self._shared.buffer.drop(positions)
        self._shared.assign(positions)
        for tp, start in positions.items():
            if isinstance(start, int):
                leader = self._shared.metadata.leader(tp)
                self._shared.positions.seek(tp, FetchPosition(start, leader=leader))
            else:
                self._shared.positions.reset(tp, start)
        self._wake_loop()

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read assigned partitions from these offsets on; ignore partitions that are not assigned."""
        self._shared.buffer.drop(offsets)
        for tp, offset in offsets.items():
            if tp in self._shared.positions:
                self._shared.positions.seek(tp, FetchPosition(offset, leader=self._shared.metadata.leader(tp)))
        self._wake_loop()

    def group_offsets(self, offsets: Mapping[TopicPartition, int]) -> GroupOffsets:
        """Return offsets that a transaction can commit, with the metadata of this member (KIP-447).

        Raises BrokerError if the consumer is no member of the group at present, whose offsets nobody would refuse.
        """
        group = self._require_group("commit offsets in a transaction")
        member = group.membership()
        if member.epoch == UNKNOWN:
            raise BrokerError(
                "the consumer is no member of its group at present; poll to join again",
                int(ErrorCode.unknown_member_id),
            )
        group_id = self._shared.settings.group_id or ""
        return GroupOffsets(group_id, {tp: (offset, UNKNOWN) for tp, offset in offsets.items()}, *member)

    async def subscribe(
        self,
        topics: Topics,
        on_assigned: OnPartitions,
        on_revoked: OnPartitions,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Join the consumer group ``group.id``; ``poll`` and ``close`` call the callbacks.

        The names of the topics are given, or a pattern that whole names match. With ``group.protocol=consumer`` the
        coordinator evaluates the pattern, in the syntax of RE2 and without flags; otherwise this client does.
        ``on_lost`` is called instead of ``on_revoked`` if other members may own the partitions already; it is
        ``on_revoked`` by default.
        """
        group = self._require_group("subscribe")
        group.join(topics, RebalanceListener(on_assigned, on_revoked, on_lost or on_revoked))
        self._start_task(group.run())

    def _require_group(self, action: str) -> GroupCoordinator:
        if self._group is None:
            raise SettingError(f"cannot {action} without a group: set group.id")
        return self._group

    async def poll(self, timeout_ms: float) -> list[Fetched]:
        """Return whole record batches with about ``max.poll.records`` records in total; an empty list on time-out.

        Raises BrokerError if the consumer is not authorized, is excluded from the group for good, or has no committed
        offset with ``auto.offset.reset=none``; ProtocolError for a corrupt batch, which the next poll fetches again;
        UnsupportedError for an API version, batch format or codec that this client doesn't support.
        """
        buffer, deadline_ms = self._shared.buffer, monotonic_ms() + timeout_ms
        if self._group:
            self._group.polled()
        await asyncio.sleep(0)  # other tasks get a turn even if data is buffered
        while True:
            if self._group:  # before the check, which may end a membership whose partitions are lost
                self._group.settle()
            self.check()
            entries = len(buffer)
            fetched = buffer.take(self._shared.settings.max_poll_records)
            problem = None if fetched else buffer.problem()
            if len(buffer) < entries:  # a partition may be fetched again
                self._wake_loop()
            if problem is not None:
                raise problem
            remaining_ms = deadline_ms - monotonic_ms()
            if fetched or remaining_ms <= 0:
                return fetched
            # a poll that waits long is not idle: each turn begins max.poll.interval.ms anew
            await self._wake_poll.wait(min(remaining_ms, self._shared.settings.max_poll_interval_ms / 2))

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the partition's next record; None if it is unknown or the partition not assigned."""
        position = self._shared.positions.position(partition)
        return None if position is None else position.offset

    async def offsets_for(self, end: End, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the start or end offset of each partition's log, retrying without a limit."""
        return await self._offsets.find(end, partitions)

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit ``offsets`` for the consumer group, by default the positions of all partitions.

        Raises BrokerError if the coordinator rejects the commit, for example because the member's epoch is outdated
        (``commit_request_manager.py``), TimeoutError after ``default.api.timeout.ms``, SettingError if ``group.id`` is
        not set.
        """
        store = self._require_group("commit").store
        if offsets is None:
            await store.commit(offsets_to_commit(self._shared.positions))
        else:
            await store.commit({tp: Committed(offset) for tp, offset in offsets.items()})

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets that the consumer group has committed; raises the same errors as ``commit``."""
        commits = await self._require_group("read committed offsets").store.committed(partitions)
        return {tp: committed.offset for tp, committed in commits.items()}

    async def close(self, timeout_ms: float) -> None:
        """Make the last automatic commit, leave the group, and close the fetch sessions, within ``timeout_ms``."""
        for task in self._tasks:
            task.cancel()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.gather(*self._tasks, return_exceptions=True)
                if self._group:
                    await self._group.leave()
                self._fetcher.abandon()
                await self._fetcher.end_sessions()
        except TimeoutError:
            self._shared.on_event("close_timed_out", timeout_ms=timeout_ms)
        finally:
            if self._group:
                await self._group.close()
            self._fetcher.abandon()
            await self._offsets.close()
            await self.brokers.close()

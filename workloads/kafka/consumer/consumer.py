"""The loop of a consumer: whatever happens, see what is due now, start it, and sleep until something else is.

The reference consumer, as an application sees it.

It fetches ahead by one answer a node; what is not polled is not fetched again, so memory is bounded by
``fetch.max.bytes`` a node. Positions move only when ``poll`` hands over. Each part has a file of its own: the loop
(``fetch_loop.py``) and what it drives, the group (``group.py``), the rules (``aftershock.workloads.rules``).
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Literal

from aftershock.errors import BrokerError, SettingError
from aftershock.workloads.kafka.client.network_client import Brokers
from aftershock.workloads.kafka.client.tasks import Sparing, Tell, Wake, monotonic_ms
from aftershock.workloads.kafka.consumer.consumer_coordinator import Callbacks, Committed, Group, OnPartitions, consumed
from aftershock.workloads.kafka.consumer.fetch_buffer import FetchBuffer, Fetched
from aftershock.workloads.kafka.consumer.fetcher import Fetcher, FetchRoutes
from aftershock.workloads.kafka.consumer.offset_fetcher import End, Offsets
from aftershock.workloads.kafka.consumer.shared import ConsumerSettings, Shared
from aftershock.workloads.kafka.rules.leader_discovery import LeaderDiscovery
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.read_replica import ReadReplicas
from aftershock.workloads.kafka.rules.subscription_state import FetchPosition, Positions
from aftershock.workloads.kafka.rules.values import Backoff, TopicPartition
from aftershock.workloads.kafka.wire import codes


class FetchLoop:
    """Metadata, lookups, validations and fetches of one consumer. ``wake`` when its positions or its buffer changed."""

    def __init__(self, shared: Shared) -> None:
        self.wake = Wake()
        self.offsets = Offsets(shared)
        self._shared = shared
        tell = Sparing(shared.tell, shared.clock_ms)
        self._fetcher = Fetcher(shared, FetchRoutes(shared.replicas, shared.metadata, shared.positions, tell))

    @property
    def counts(self) -> Counter[str]:
        """The counters of all rules that the loop drives."""
        shared = self._shared
        rules = (shared.replicas, shared.metadata, shared.discovery, shared.positions)
        return sum((rule.counts for rule in rules), self._fetcher.counts)

    async def run(self) -> None:
        """For ever; UnsupportedError when a broker can't be fetched from at all."""
        while True:
            metadata_ms = self._shared.brokers.refresh_if_due()
            now_ms = self._shared.clock_ms()
            fetch_ms = self._fetcher.step(now_ms)
            await self.wake.wait(min(metadata_ms, fetch_ms, self.offsets.step(now_ms)))

    async def end_sessions(self) -> None:
        """Tell the brokers that their sessions are over; ``run`` must have ended."""
        self._fetcher.abandon()
        await self._fetcher.end_sessions()

    async def close(self) -> None:
        """End what is under way."""
        self._fetcher.abandon()
        await self.offsets.close()


__all__ = ["Consumer", "Fetched", "OnPartitions", "Start"]

Start = int | Literal["earliest", "latest"]
"""Where a partition begins: an offset, or an end of its log."""
UNKNOWN_TOPIC_OR_PARTITION = 3


class Consumer:
    """A consumer with a bounded buffer. Belongs to the event loop that it is started on.

    Either ``assign`` or ``subscribe``. Everything that concerns the application happens in ``poll``: it hands over
    batches, calls back about partitions, and commits what earlier polls handed over.
    """

    def __init__(self, settings: ConsumerSettings, *, tell: Tell) -> None:
        self._shared = _share(settings, tell, self._changed)
        self.brokers = self._shared.brokers
        self._loop = FetchLoop(self._shared)
        self._group = None if settings.group_id is None else Group(settings.group_id, self._shared)
        self._wake = Wake()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def counts(self) -> Counter[str]:
        """Every rule's counters."""
        return self._loop.counts + (self._group.counts if self._group else Counter())

    @property
    def member_id(self) -> str:
        """What the group knows this consumer by; empty unless it has subscribed."""
        return self._group.member_id if self._group else ""

    def _changed(self) -> None:
        """Something happened that the loop or a poll may wait for."""
        self._loop.wake()
        self._wake()

    def _begin(self, running: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(running)
        task.add_done_callback(lambda _: self._wake())
        self._tasks.append(task)

    def check(self) -> None:
        """Raise what has ended this consumer for good, if anything has: every ``poll`` would raise it from now on."""
        for task in self._tasks:
            if task.done():
                task.result()

    # ---- what to read

    async def start(self, topics: Sequence[str]) -> None:
        """Come to where partitions can be taken: the metadata of ``topics`` known.

        Keeps trying while nobody answers: the caller has the deadline. A topic that brokers don't know may be made any
        moment, within ``default.api.timeout.ms``. A ``ClientError`` for what can't be mended.
        """
        made_until_ms = self._shared.clock_ms() + self._shared.settings.default_api_timeout_ms
        self._shared.metadata.want(topics)
        self._begin(self._loop.run())
        while not all(self._is_known(topic, made_until_ms) for topic in topics):
            await self._wake.wait(float("inf"))  # each answer wakes; while a topic has an error, another is asked for
            self.check()
            if self.brokers.unsupported is not None:
                raise self.brokers.unsupported

    def _is_known(self, name: str, made_until_ms: float) -> bool:
        topic = self._shared.metadata.topic(name)
        if topic is None:
            return False
        if topic.error in codes.HOPELESS:
            raise BrokerError(f"the topic {name} can't be read: {codes.name(topic.error)}", topic.error)
        if topic.error == UNKNOWN_TOPIC_OR_PARTITION and self._shared.clock_ms() >= made_until_ms:
            raise BrokerError(f"there is no topic {name}: make it first, or mend its name", topic.error)
        return not topic.error and bool(topic.partitions)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic that ``start`` was told of."""
        known = self._shared.metadata.topic(topic)
        return [TopicPartition(topic, each.partition) for each in known.partitions] if known else []

    def assign(self, positions: Mapping[TopicPartition, Start]) -> None:
        """Take these partitions and no others, each from where it says."""
        self._shared.metadata.want({tp.topic for tp in positions})
        self._shared.buffer.drop(positions)
        self._shared.assign(positions)
        for tp, start in positions.items():
            if isinstance(start, int):
                leader = self._shared.metadata.leader(tp)
                self._shared.positions.seek(tp, FetchPosition(start, leader=leader))
            else:
                self._shared.positions.reset(tp, start)
        self._loop.wake()

    async def subscribe(self, topics: Sequence[str], on_assigned: OnPartitions, on_revoked: OnPartitions) -> None:
        """Join the group ``group.id`` (KIP-848) for these topics; ``poll`` calls back with what is given and taken.

        Raises SettingError without a group.
        """
        group = self._of_group("subscribe")
        self._shared.metadata.want(topics)
        group.join(topics, Callbacks(on_assigned, on_revoked))
        self._begin(group.run())

    def _of_group(self, what: str) -> Group:
        if self._group is None:
            raise SettingError(f"there is no group to {what} with: set group.id")
        return self._group

    # ---- reading

    async def poll(self, timeout_ms: float) -> list[Fetched]:
        """What is there, at least one batch and about ``max.poll.records`` records; empty after the time-out.

        Whole batches are handed over: the last may exceed the number. The loop's other work gets a turn in any case.

        Raises:
            BrokerError: an error that trying again won't mend: not authorized, thrown out of the group for good (then
                ``check`` raises it, too), or no offset to go on from under ``auto.offset.reset=none``.
            ProtocolError: a corrupt batch. The position stays before it: the next poll fetches it again.
            UnsupportedError: a broker, a format or a codec that this client can't read.
        """
        deadline_ms = self._shared.clock_ms() + timeout_ms
        if self._group:
            self._group.polled()
        await asyncio.sleep(0)
        while not (fetched := self._take()):
            left_ms = deadline_ms - self._shared.clock_ms()
            if left_ms <= 0:
                break
            await self._wake.wait(left_ms)
        return fetched

    def _take(self) -> list[Fetched]:
        self.check()
        if self._group:
            self._group.settle()
        buffer = self._shared.buffer
        before = len(buffer)
        fetched = buffer.take(self._shared.settings.max_poll_records)
        problem = None if fetched else buffer.problem()
        if len(buffer) < before:  # a partition may be fetched again
            self._loop.wake()
        if problem is not None:
            raise problem
        return fetched

    def position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record that ``poll`` would hand over; None while it isn't known or not ours."""
        position = self._shared.positions.position(partition)
        return None if position is None else position.offset

    async def offsets_for(self, end: End, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each log, or the one after the last committed record. Keeps trying until it has them."""
        return await self._loop.offsets.find(end, partitions)

    # ---- the group's offsets

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit these offsets, or every position.

        Raises:
            BrokerError: the group refuses.
            TimeoutError: not within ``default.api.timeout.ms``.
            SettingError: there is no group.
        """
        given = None if offsets is None else {tp: Committed(offset) for tp, offset in offsets.items()}
        await self._of_group("commit").store.commit(consumed(self._shared.positions) if given is None else given)

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """What the group has committed of these; a partition without a commit is left out. Raises as ``commit``."""
        found = await self._of_group("ask").store.committed(partitions)
        return {tp: committed.offset for tp, committed in found.items()}

    # ---- the end

    async def close(self, timeout_ms: float) -> None:
        """Commit if it is automatic, leave the group, end the sessions: all within ``timeout_ms``; leave no task."""
        for task in self._tasks:
            task.cancel()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await self._leave()
        except TimeoutError:
            self._shared.tell("close_timed_out", timeout_ms=timeout_ms)
        finally:
            await self._end()

    async def _leave(self) -> None:
        if self._group:
            await self._group.leave()
        await self._loop.end_sessions()

    async def _end(self) -> None:
        if self._group:
            await self._group.close()
        await self._loop.close()
        await self.brokers.close()


def _share(settings: ConsumerSettings, tell: Tell, on_change: Callable[[], None]) -> Shared:
    draw = random.Random()  # noqa: S311  # spreads waits, guards nothing
    backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms, draw)
    metadata = Metadata(max_age_ms=settings.metadata_max_age_ms, backoff=backoff)
    positions = Positions(settings.auto_offset_reset)
    brokers = Brokers(
        settings.bootstrap_servers,
        settings.client_id,
        settings,
        metadata,
        monotonic_ms,
        tell=tell,
        draw=draw,
        on_change=on_change,
    )
    return Shared(
        settings=settings,
        brokers=brokers,
        metadata=metadata,
        discovery=LeaderDiscovery(metadata, settings.leader_discovery, backoff),
        positions=positions,
        replicas=ReadReplicas(settings.metadata_max_age_ms, enabled=settings.read_replica),
        buffer=FetchBuffer(positions),
        backoff=backoff,
        clock_ms=monotonic_ms,
        tell=tell,
        on_change=on_change,
    )

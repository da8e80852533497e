"""The reference consumer, noting every record delivered to it: ``client: reference``.

Rules: where it begins is settled before it says that it is ready, so nothing produced later can be missed by being
early; the error of a partition doesn't end the loop: it is told, and the next poll comes after a pause. What ends the
consumer for good, as a group that refuses it, ends the worker with the sentence that it was refused with.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from aftershock.errors import BrokerError, ProtocolError
from aftershock.workloads.assignment import ConsumeAssignment
from aftershock.workloads.clients.loop import Loop
from aftershock.workloads.clients.receiving import Receiving
from aftershock.workloads.clients.reference_settings import reference_settings
from aftershock.workloads.clock import Clock
from aftershock.workloads.events import Events
from aftershock.workloads.load import US_PER_MS
from aftershock.workloads.orders import Order
from aftershock.workloads.record import unpack
from aftershock.workloads.reference.consumer import Consumer, Fetched
from aftershock.workloads.reference.consumer_settings import ConsumerSettings
from aftershock.workloads.rules.values import TopicPartition
from aftershock.workloads.wire.codes import name

POLL_MS = 50.0
FETCHES = "fetch"
"""How the counters begin that are also wanted block by block: what fetches cost."""
UNKNOWN_MEMBER_ID = 25
_PAUSE_S = 0.1
_CLOSE_MS = 3_000.0


class ReferenceConsumer:
    """``client.Client`` over ``reference.consumer.Consumer``; ``SettingError`` for settings that it doesn't have."""

    def __init__(self, assignment: ConsumeAssignment, clock: Clock, events: Events) -> None:
        told = self._told = assignment
        self._events = events
        settings = reference_settings(ConsumerSettings, told)
        self._loop = Loop()
        self._consumer = self._loop.inside(lambda: Consumer(settings, tell=events.emit))
        self._receiving = Receiving(told, clock, events)
        self._partitions = [TopicPartition(told.topic, number) for number in range(told.partitions)]

    def prepare(self) -> None:
        """Settle where every partition begins, then take them all or join the group and wait to be given some."""
        self._loop.run(self._begin())
        self._loop.start(self._read())
        while not self._receiving.assignments:
            self.step(100 * US_PER_MS)

    async def _begin(self) -> None:
        consumer, told = self._consumer, self._told
        await consumer.start([told.topic])
        while (starts := await self._settle()) is None:
            pass
        begin = self._receiving.begin_at({partition.partition: offset for partition, offset in starts.items()})
        if told.group is None:
            consumer.assign({TopicPartition(told.topic, number): offset for number, offset in begin.items()})
            self._receiving.assigned(range(told.partitions))
            return
        await consumer.subscribe([told.topic], self._on_assigned, self._on_revoked)

    async def _settle(self) -> dict[TopicPartition, int] | None:
        """Each partition's first offset; None when another member, that came meanwhile, has settled it."""
        consumer, told = self._consumer, self._told
        committed = await consumer.committed(self._partitions) if told.group else {}
        fresh = [partition for partition in self._partitions if partition not in committed]
        starts = committed | await consumer.offsets_for(told.from_, fresh)
        if told.group and told.from_ == "latest" and fresh:
            # else the group would begin wherever the end is when the assignment arrives
            try:
                await consumer.commit(starts)
            except BrokerError as error:
                if error.code != UNKNOWN_MEMBER_ID:
                    raise
                await asyncio.sleep(_PAUSE_S)
                return None
        return starts

    def _on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._receiving.assigned((each.partition for each in partitions), self._consumer.member_id)

    def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._receiving.revoked(each.partition for each in partitions)

    async def _read(self) -> None:
        while True:
            try:
                batches = await self._consumer.poll(POLL_MS)
            except (BrokerError, ProtocolError) as error:
                self._consumer.check()  # else it is some partition's, and the next poll tries that again
                await self._tell(error)
            else:
                for fetched in batches:
                    self._take(fetched)
                self._receiving.idle()

    async def _tell(self, error: BrokerError | ProtocolError) -> None:
        code = name(error.code) if isinstance(error, BrokerError) else "CORRUPT_MESSAGE"
        self._events.emit("client_error", error=code, detail=str(error), fatal=False)
        await asyncio.sleep(_PAUSE_S)

    def _take(self, fetched: Fetched) -> None:
        for record in fetched.batch.records():
            if record.offset < fetched.first_offset:
                continue
            self._receiving.take(
                unpack(list(record.headers)),
                partition=fetched.partition,
                offset=record.offset,
                high_watermark=fetched.high_watermark,
                leader_epoch=fetched.leader_epoch,
                size_bytes=len(value := bytes(record.value or b"")),
                value=value,
                broker_id=fetched.broker_id,
            )

    def obey(self, order: Order) -> None:
        """``drain`` sets the end."""
        self._receiving.obey(order)

    def step(self, wait_us: int) -> None:
        """Let the client work for that long."""
        self._loop.step(wait_us)

    def answer(self) -> dict[str, Any] | None:
        """After ``drain``: how many offsets are missing, by partition; none when all were reached."""
        for partition in self._partitions:
            if (position := self._consumer.position(partition)) is not None:
                self._receiving.reached(partition.partition, position)
        return self._receiving.answer()

    def progress(self) -> dict[str, Any]:
        """Counts and end-to-end latencies since the last call; ``ok`` are the records delivered."""
        fetched = {name: count for name, count in self._consumer.counts.items() if name.startswith(FETCHES)}
        return self._receiving.tally.progress() | {"traffic": self._consumer.brokers.traffic, "counts": fetched}

    def counters(self) -> dict[str, int]:
        """Records delivered, how often partitions were assigned, and what each rule decided how often."""
        return self._receiving.counters() | dict(self._consumer.counts)

    def close(self) -> None:
        """Commit, leave the group, close the sessions."""
        self._loop.close(self._consumer.close(_CLOSE_MS))

"""Workload adapters of the reference clients (a producer, a consumer and a committer), each on one event loop."""

import asyncio
import re
import selectors
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import fields
from math import ceil
from typing import Any, NoReturn, TypeVar

from confluent_kafka import KafkaError

from aftershock.errors import BrokerError, ClientError, ProtocolError
from aftershock.workloads.adapters.receiving import ReceiveRecorder, ReceivingClient
from aftershock.workloads.adapters.sending import (
    POLL_INTERVAL_US,
    DueRecord,
    ProduceRecorder,
    SendingClient,
    SendRecorder,
    send_on_schedule,
)
from aftershock.workloads.adapters.transacting import (
    REQUEST_TIMED_OUT,
    ProducerFailedError,
    RecordQueue,
    TransactionalClient,
    TransactionDriver,
    TransactionRefusedError,
)
from aftershock.workloads.kafka.client.settings import INT32_MAX, ClientSettings, ProducerSettings, parse
from aftershock.workloads.kafka.client.tasks import Wake
from aftershock.workloads.kafka.committer import Committer, CommitterSettings
from aftershock.workloads.kafka.consumer.consumer import Consumer
from aftershock.workloads.kafka.consumer.fetch_buffer import Fetched
from aftershock.workloads.kafka.consumer.shared import ConsumerSettings
from aftershock.workloads.kafka.producer.produce_request import Delivery
from aftershock.workloads.kafka.producer.producer import Producer
from aftershock.workloads.kafka.rules.commits import Outcome, Target
from aftershock.workloads.kafka.rules.transaction_manager import State
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.codes import name
from aftershock.workloads.load.assignment import (
    ClientAssignment,
    CommitAssignment,
    ConsumeAssignment,
    Go,
    Order,
    ProduceAssignment,
    Stop,
)
from aftershock.workloads.load.events import CONNECTIONS, Clock, Events, Reported
from aftershock.workloads.load.schedule import HEADER, US_PER_MS, US_PER_S
from aftershock.workloads.load.spool import UNKNOWN, Status

T = TypeVar("T")


class EventLoopClient:
    """Client on one asyncio event loop; ``step`` raises the error of a task of the client that has failed.

    The event loop uses ``select(2)``, which waits in microseconds; epoll waits in whole milliseconds, which would delay
    every record by half a millisecond.
    """

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._vital: list[asyncio.Task[Any]] = []

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._vital.append(self._loop.create_task(work))

    def step(self, wait_us: int) -> None:
        async def wait() -> None:
            if self._vital:
                await asyncio.wait(self._vital, timeout=wait_us / US_PER_S, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(wait_us / US_PER_S)

        self._run(wait())
        for task in [task for task in self._vital if task.done()]:
            self._vital.remove(task)
            task.result()

    def _leave(self, leaving: Coroutine[Any, Any, None]) -> None:
        async def cancel_tasks() -> None:
            for task in self._vital:
                task.cancel()
            await asyncio.gather(*self._vital, return_exceptions=True)

        self._run(cancel_tasks())
        self._run(leaving)
        self._loop.close()


REQUEST_TIMEOUT_MS = 30_000
"""Kafka's default value of ``request.timeout.ms``."""

S = TypeVar("S", bound=ClientSettings)


def reference_settings(cls: type[S], assignment: ClientAssignment) -> S:
    """Return the settings of a reference client; raise ``SettingError`` for an unknown setting or a wrong value."""
    settings: dict[str, Any] = {"bootstrap.servers": assignment.bootstrap, "client.id": assignment.worker}
    settings |= {"client.rack": assignment.client_rack} if assignment.client_rack is not None else {}
    settings["security"] = assignment.security.resolved()
    if isinstance(assignment, ConsumeAssignment):
        settings |= {"enable.auto.commit": bool(assignment.group), "auto.offset.reset": assignment.from_}
        settings |= {"group.id": assignment.group} if assignment.group else {}
        settings |= {"group.protocol": assignment.protocol} if assignment.protocol else {}
        settings |= {"group.instance.id": assignment.instance_id} if assignment.instance_id else {}
        settings |= {"isolation.level": assignment.isolation} if assignment.isolation else {}
        if assignment.assignor:
            by_leader = assignment.protocol == "classic"
            settings["partition.assignment.strategy" if by_leader else "group.remote.assignor"] = assignment.assignor
        if assignment.commit and assignment.commit.every_ms:
            settings["auto.commit.interval.ms"] = assignment.commit.every_ms
        elif assignment.commit and assignment.commit.every_records:
            # the client commits when partitions are revoked and on close, and the adapter in between
            settings["auto.commit.interval.ms"] = INT32_MAX
            settings["max.poll.records"] = min(POLL_RECORDS, assignment.commit.every_records)
    else:
        # a request may take no longer than the record that it carries
        linger_ms, timeout_ms = 0.0, assignment.deadline_ms
        if isinstance(assignment, ProduceAssignment):
            linger_ms, timeout_ms = assignment.linger_ms, assignment.delivery_timeout_ms
        request_timeout_ms = max(1, min(REQUEST_TIMEOUT_MS, timeout_ms - ceil(linger_ms)))
        settings |= {"delivery.timeout.ms": timeout_ms, "request.timeout.ms": request_timeout_ms}
    if isinstance(assignment, ProduceAssignment):
        settings |= {"acks": assignment.acks, "enable.idempotence": assignment.idempotence}
        settings["linger.ms"] = assignment.linger_ms
        if assignment.transaction:
            settings["transactional.id"] = assignment.transactional_id
            settings["transaction.timeout.ms"] = assignment.transaction.timeout_ms
    all_names = {
        field.name for kind in (ProducerSettings, ConsumerSettings, CommitterSettings) for field in fields(kind)
    }
    foreign = all_names - {field.name for field in fields(cls)}
    arm = assignment.settings | assignment.switches
    return parse(cls, settings | {name: arm[name] for name in arm if name.replace(".", "_") not in foreign})


_PRODUCER_CLOSE_MS = 2_000.0


class ReferenceProducer(EventLoopClient, SendingClient, TransactionalClient):
    """Workload producer; while its buffer is full, each record waits in its own task and delays no later record.

    With transactions, records wait for their turn in a queue.
    """

    _sending: ProduceRecorder

    def __init__(self, assignment: ProduceAssignment, clock: Clock, events: Events) -> None:
        self._settings = reference_settings(ProducerSettings, assignment)
        super().__init__()
        self._assignment, self._events, self._clock = assignment, events, clock
        self._producer = self._run(self._create())
        self._counts_before: Counter[str] = Counter()  # of producers that were closed
        self._waiting: set[asyncio.Task[None]] = set()
        self._sending = ProduceRecorder(assignment, clock)
        self._driver: TransactionDriver | None = None
        self._queue = RecordQueue(self._sending)

    async def _create(self) -> Producer:
        """Create a producer, which binds to the running loop."""
        return Producer(self._settings, report=self._reported, on_event=self._events.emit)

    def prepare(self) -> None:
        self._run(self._producer.start([topic.name for topic in self._assignment.topics]))
        if self._assignment.transaction is None:
            self._start(send_on_schedule(self._sending, self._send))
        else:
            self._driver = TransactionDriver(self._assignment, self._clock, self._sending, self)
            self._start(send_on_schedule(self._sending, lambda: self._queue.put(self._sending.begin_record())))
            self._start(self._driver.run())

    def answer(self) -> dict[str, Any] | None:
        return self._sending.answer(busy=self._driver is not None and self._driver.busy)

    async def next_record(self) -> DueRecord | None:
        return await self._queue.next_record()

    async def begin(self) -> None:
        try:
            await self._producer.begin_transaction(self._assignment.deadline_ms)
        except TimeoutError:
            raise ProducerFailedError(REQUEST_TIMED_OUT, in_doubt=False) from None
        except ClientError as error:
            raise ProducerFailedError(_code(error), in_doubt=False) from error

    def identity(self) -> tuple[int, int, int]:
        transactions = self._producer.transactions
        return *transactions.producer, 2 if transactions.version_2 else 1

    async def send(self, record: DueRecord) -> None:
        headers = ((HEADER, record.mark),)
        if not self._producer.offer(record.topic, record.value, key=record.key, headers=headers, token=record.seq):
            await self._producer.send(record.topic, record.value, key=record.key, headers=headers, token=record.seq)

    def reject(self, seq: int, code: int) -> None:
        self._sending.ended(seq, Status.FAILED, code)

    async def flush(self) -> None:
        await self._producer.flush()

    async def commit(self) -> None:
        await self._end(self._producer.commit_transaction(self._assignment.deadline_ms))

    async def abort(self, *, after_commit: bool) -> bool:
        await self._end(self._producer.abort_transaction(self._assignment.deadline_ms, after_commit=after_commit))
        return self._producer.transactions.committed

    async def _end(self, ending: Coroutine[Any, Any, None]) -> None:
        try:
            await ending
        except ClientError as error:
            transactions = self._producer.transactions
            if transactions.state is State.ABORTABLE_ERROR:
                raise TransactionRefusedError(_code(error)) from error
            raise ProducerFailedError(_code(error), in_doubt=transactions.asked) from error

    async def reopen(self) -> None:
        await self._producer.close(0)
        self._counts_before += self._producer.counts
        self._producer = await self._create()
        await self._producer.start([topic.name for topic in self._assignment.topics])

    def _send(self) -> None:
        seq, key, value, mark, topic = self._sending.begin_record()
        headers = ((HEADER, mark),)
        if not self._producer.offer(topic, value, key=key, headers=headers, token=seq):
            task = asyncio.ensure_future(self._producer.send(topic, value, key=key, headers=headers, token=seq))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    def _reported(self, delivery: Delivery) -> None:
        status = Status.OK if not delivery.error else Status.IN_DOUBT if delivery.in_doubt else Status.FAILED
        base = delivery.base_offset
        for number, seq in enumerate(delivery.tokens):
            self._sending.ended(
                seq,
                status,
                delivery.error,
                partition=delivery.partition,
                offset=base + number if base >= 0 else UNKNOWN,
                leader_epoch=delivery.leader_epoch,
                broker_id=delivery.broker_id,
                attempts=delivery.attempts,
            )

    def progress(self) -> dict[str, Any]:
        counts = self._counts_before + self._producer.counts
        draws = {name: count for name, count in counts.items() if name.startswith("partition_draws")}
        return self._sending.tally.progress() | {"traffic": self._producer.brokers.traffic, "counts": draws}

    def counters(self) -> dict[str, int]:
        return super().counters() | dict(self._counts_before + self._producer.counts)

    def reports(self) -> Collection[str]:
        return *CONNECTIONS, Reported.ATTEMPTS

    def close(self) -> None:
        self._leave(self._producer.close(_PRODUCER_CLOSE_MS))


def _code(error: ClientError) -> int:
    return error.code if isinstance(error, BrokerError) else int(KafkaError.UNKNOWN)


POLL_MS = 50.0
POLL_RECORDS = 500
"""Kafka's default value of ``max.poll.records``."""
UNKNOWN_MEMBER_ID = 25
_PAUSE_S = 0.1
_CONSUMER_CLOSE_MS = 3_000.0


class ReferenceConsumer(EventLoopClient, ReceivingClient):
    """Workload consumer; it records errors and goes on, unless its consumer group rejects the consumer for good."""

    def __init__(self, assignment: ConsumeAssignment, clock: Clock, events: Events) -> None:
        self._consumer = Consumer(reference_settings(ConsumerSettings, assignment), on_event=events.emit)
        super().__init__()
        self._assignment, self._events, self._clock = assignment, events, clock
        self._receiving = ReceiveRecorder(assignment, clock, events)
        self._partitions = [TopicPartition(*place) for place in assignment.places]
        self._processing = asyncio.Lock()

    def prepare(self) -> None:
        """Join the group and wait for an assignment, except as one member of several, which may get no partitions."""
        self._run(self._begin())
        self._start(self._read())
        while not self._receiving.assignments and self._assignment.members == 1:
            self.step(100 * US_PER_MS)

    async def _begin(self) -> None:
        consumer, assignment, group = self._consumer, self._assignment, self._assignment.group
        await consumer.start([topic.name for topic in assignment.topics])
        while True:
            committed = await consumer.committed(self._partitions) if group else {}
            missing = [partition for partition in self._partitions if partition not in committed]
            starts = committed | await consumer.offsets_for(assignment.from_, missing)
            if not (group and assignment.from_ == "latest" and missing):
                break
            # Without this commit the group would start at the end of the log at the time of assignment.
            try:
                await consumer.commit(starts)
                break
            except BrokerError as error:
                if error.code != UNKNOWN_MEMBER_ID:
                    raise
                await asyncio.sleep(_PAUSE_S)  # a member that joined in the meantime commits the offsets
        begin = self._receiving.begin_at({(at.topic, at.partition): offset for at, offset in starts.items()})
        if group is None:
            consumer.assign({TopicPartition(*place): offset for place, offset in begin.items()})
            self._receiving.assigned(self._partitions)
            return

        def on_assigned(partitions: Sequence[TopicPartition]) -> None:
            self._receiving.assigned(partitions, consumer.member_id, consumer.member_epoch)

        def on_revoked(partitions: Sequence[TopicPartition]) -> None:
            self._receiving.revoked(partitions, consumer.member_epoch)

        def on_lost(partitions: Sequence[TopicPartition]) -> None:
            self._receiving.lost(partitions, consumer.member_epoch)

        names, pattern = [topic.name for topic in assignment.topics], assignment.pattern
        await consumer.subscribe(re.compile(pattern) if pattern else names, on_assigned, on_revoked, on_lost)

    async def _read(self) -> None:
        while True:
            if not self._polls:
                await asyncio.sleep(POLL_MS / 1000)
                continue
            try:
                async with self._processing:  # a poll moves the positions, so no poll may end after `close` begins
                    for fetched in await self._consumer.poll(POLL_MS):
                        await self._take(fetched)
            except (BrokerError, ProtocolError) as error:
                self._consumer.check()  # raises final errors; the next poll retries a partition's error
                self._report(error, "CORRUPT_MESSAGE")
                await asyncio.sleep(_PAUSE_S)
            else:
                self._receiving.idle()
                await self._commit()

    async def _commit(self) -> None:
        """Commit the positions of the processed records if the plan asks for a commit after so many records."""
        commit = self._assignment.commit
        if not (commit and commit.every_records and self._receiving.pending):
            return
        if due := self._receiving.pending.due():
            began_us, epoch = self._clock(), self._consumer.member_epoch
            try:
                await self._consumer.commit({TopicPartition(*place): at for place, at in due.items()})
            except (BrokerError, TimeoutError) as error:
                self._report(error, "REQUEST_TIMED_OUT")
            else:
                self._receiving.committed(due, self._clock() - began_us, epoch)

    def _report(self, error: Exception, unless_of_broker: str) -> None:
        """Emit the name of a broker's error, or the given name for another error, after which the client goes on."""
        code = name(error.code) if isinstance(error, BrokerError) else unless_of_broker
        self._events.emit("client_error", error=code, detail=str(error), fatal=False)

    async def _take(self, fetched: Fetched) -> None:
        place = fetched.topic, fetched.partition
        for record in fetched.batch.records:
            if record.offset < fetched.first_offset:
                continue
            if self._assignment.processing_ms:
                await asyncio.sleep(self._assignment.processing_ms / 1000)
            self._receiving.take(
                self._receiving.mark_of(list(record.headers), record.key, record.value),
                place=place,
                offset=record.offset,
                high_watermark=fetched.high_watermark,
                leader_epoch=fetched.leader_epoch,
                size_bytes=len(value := record.value or b""),
                value=value,
                broker_id=fetched.broker_id,
            )

    def answer(self) -> dict[str, Any] | None:
        for partition in self._partitions:
            if (position := self._consumer.position(partition)) is not None:
                self._receiving.reached(partition, position)
        return super().answer()

    def progress(self) -> dict[str, Any]:
        fetches = {name: count for name, count in self._consumer.counts.items() if name.startswith("fetch")}
        return self._receiving.tally.progress() | {"traffic": self._consumer.brokers.traffic, "counts": fetches}

    def counters(self) -> dict[str, int]:
        return super().counters() | dict(self._consumer.counts)

    def reports(self) -> Collection[str]:
        return *CONNECTIONS, Reported.VALUES

    def close(self) -> None:
        """Process what was polled, because the consumer commits the positions behind it, and leave the group."""
        self._run(self._processing.acquire())
        self._leave(self._consumer.close(_CONSUMER_CLOSE_MS))


_COMMITTER_CLOSE_MS = 2_000.0


class ClosedLoop(SendRecorder):
    """Recorder of a committer in a closed loop, which always has ``in_flight`` commits in flight.

    Use a closed loop to measure capacity only, because the intended time of a commit is its send time, so a stall of
    Kafka also stalls the load (coordinated omission). The caller must call ``begin`` right after ``early_us`` has
    returned 0 or less. The event ``slot_freed`` wakes the sending task when a commit has ended.
    """

    def __init__(self, assignment: CommitAssignment, clock: Clock, in_flight: int) -> None:
        super().__init__(assignment, clock)
        self._in_flight, self.slot_freed = in_flight, Wake()
        self._start_us: int | None = None
        self._stop_us: int | None = None
        self._due_us: dict[int, int] = {}
        self._now_us = 0

    def obey(self, order: Order) -> None:
        if isinstance(order, Go):
            self._start_us, self._stop_us = order.start_us, order.stop_us
        elif isinstance(order, Stop):
            end = self._end
            super().obey(order)
            self._stop_us, self._end = order.at_us, end  # `early_us` sets the end at the stop time

    def early_us(self) -> int | None:
        """Return 0 or less if a commit may be sent now; None if too many are in flight, or after the last commit."""
        self._now_us = now_us = self._clock()
        if self._end is None and self._stop_us is not None and now_us >= self._stop_us:
            self._end = self.next
        if self._start_us is None or self._end is not None or len(self._due_us) == self._in_flight:
            return None
        return self._start_us - now_us

    def begin(self, size_bytes: int) -> tuple[int, int]:
        self._due_us[self.next] = self._now_us
        return super().begin(size_bytes)

    def ended(self, seq: int, status: Status, code: int, **details: int) -> None:
        super().ended(seq, status, code, **details)
        del self._due_us[seq]
        self.slot_freed()

    def _intended_us(self, seq: int) -> int:
        return self._due_us[seq]


async def send_when_free(loop: ClosedLoop, send: Callable[[], None]) -> NoReturn:
    """Call ``send`` whenever the closed loop allows another commit in flight."""
    while True:
        early_us = loop.early_us()
        if early_us is not None and early_us <= 0:
            send()
        else:
            loop.idle()
            await loop.slot_freed.wait(min(POLL_INTERVAL_US, early_us or POLL_INTERVAL_US) / US_PER_MS)


class ReferenceCommitter(EventLoopClient, SendingClient):
    """Workload committer, in a closed loop if the assignment limits the commits in flight, else in an open loop."""

    def __init__(self, assignment: CommitAssignment, clock: Clock, events: Events) -> None:
        settings = reference_settings(CommitterSettings, assignment)
        super().__init__()
        self._assignment, in_flight = assignment, assignment.in_flight
        self._committer = Committer(settings, report=self._reported, on_event=events.emit)
        self._sending = (
            SendRecorder(assignment, clock) if in_flight is None else ClosedLoop(assignment, clock, in_flight)
        )

    def prepare(self) -> None:
        self._run(self._committer.start([self._target(seq) for seq in range(self._assignment.groups)]))
        sending = self._sending
        if isinstance(sending, ClosedLoop):
            self._start(send_when_free(sending, self._send))
        else:
            self._start(send_on_schedule(sending, self._send))

    def _target(self, seq: int) -> Target:
        return Target(self._assignment.group_of(seq), self._assignment.topic, self._assignment.partition_of(seq))

    def _send(self) -> None:
        seq, _ = self._sending.begin(0)
        self._committer.offer(self._target(seq), self._assignment.offset_of(seq), token=seq)

    def _reported(self, outcome: Outcome) -> None:
        status = Status.OK if not outcome.error else Status.IN_DOUBT if outcome.in_doubt else Status.FAILED
        self._sending.ended(
            outcome.token, status, outcome.error, broker_id=outcome.broker_id, attempts=outcome.attempts
        )

    def progress(self) -> dict[str, Any]:
        return self._sending.tally.progress() | {"traffic": self._committer.traffic}

    def counters(self) -> dict[str, int]:
        return super().counters() | dict(self._committer.counts)

    def reports(self) -> Collection[str]:
        return *CONNECTIONS, Reported.ATTEMPTS

    def close(self) -> None:
        self._leave(self._committer.close(_COMMITTER_CLOSE_MS))

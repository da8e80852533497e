"""Workload adapters of the reference clients: a producer, a consumer and a committer, each on one event loop.

The event loop uses ``select(2)``, which waits in microseconds; epoll waits in whole milliseconds, which would add half
a millisecond to the lateness of every record. ``select`` suits few descriptors, and a client has a handful.

Rules:

* Producer: if the buffer is full, a record waits for room in a separate task, at most ``max.block.ms``, without
  delaying later records. The producer knows the result of every attempt, so it decides itself which records are
  ``failed`` and which ``in_doubt``.
* Consumer: its start offsets are fixed before it reports ready, so it cannot miss records that are produced later. A
  partition's error does not end the loop: it is reported, and the next poll follows after a pause. An error that is
  final for the consumer, such as a group that rejects it, ends the worker with that error's message.
* Committer: open loop by default; it also decides itself which commits are ``failed`` and which ``in_doubt``. With
  ``in_flight`` it is a closed loop: a fixed number of commits is in flight, and the next is sent when one of them ends.
  Use a closed loop to measure capacity only. A commit is intended when it is sent, so its latency is its service time:
  a stall of the system stalls the load too, and nothing corrects for it (coordinated omission).
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import fields
from math import ceil
from typing import Any, NoReturn, TypeVar

from aftershock.errors import BrokerError, ProtocolError
from aftershock.workloads.adapters.receiving import ReceiveRecorder, ReceivingClient
from aftershock.workloads.adapters.sending import POLL_INTERVAL_US, SendingClient, SendRecorder, send_on_schedule
from aftershock.workloads.kafka.client.settings import ClientSettings, ProducerSettings, parse
from aftershock.workloads.kafka.client.tasks import Wake
from aftershock.workloads.kafka.committer.attempts import CommitterSettings
from aftershock.workloads.kafka.committer.committer import Committer
from aftershock.workloads.kafka.consumer.consumer import Consumer
from aftershock.workloads.kafka.consumer.fetch_buffer import Fetched
from aftershock.workloads.kafka.consumer.shared import ConsumerSettings
from aftershock.workloads.kafka.producer.produce_request import Delivery
from aftershock.workloads.kafka.producer.producer import Producer
from aftershock.workloads.kafka.rules.commits import Outcome, Target
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.codes import name
from aftershock.workloads.load.assignment import Assignment, CommitAssignment, ConsumeAssignment, ProduceAssignment
from aftershock.workloads.load.events import Clock, Events
from aftershock.workloads.load.orders import Go
from aftershock.workloads.load.schedule import HEADER, US_PER_MS, US_PER_S, Filler, Stream, pack, unpack
from aftershock.workloads.load.spool import UNKNOWN, Status

T = TypeVar("T")


class ClientLoop:
    """Event loop with tasks that must not fail: after a failure the next ``step`` raises the task's error."""

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._vital: list[asyncio.Task[Any]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run until ``work`` is done and return its result."""
        return self._loop.run_until_complete(work)

    def inside(self, make: Callable[[], T]) -> T:
        """Return ``make()``, called while the loop runs, as objects that bind to a running loop require."""

        async def call() -> T:
            return make()

        return self.run(call())

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` during every step from now on."""
        self._vital.append(self._loop.create_task(work))

    def step(self, wait_us: int) -> None:
        """Run for that long, or until a vital task ends."""

        async def rest() -> None:
            if self._vital:
                await asyncio.wait(self._vital, timeout=wait_us / US_PER_S, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(wait_us / US_PER_S)

        self.run(rest())
        for task in [task for task in self._vital if task.done()]:
            self._vital.remove(task)
            task.result()

    def close(self, leaving: Coroutine[Any, Any, None]) -> None:
        """Cancel the tasks, run ``leaving`` and close the loop."""

        async def cancel_tasks() -> None:
            for task in self._vital:
                task.cancel()
            await asyncio.gather(*self._vital, return_exceptions=True)

        self.run(cancel_tasks())
        self.run(leaving)
        self._loop.close()


REQUEST_TIMEOUT_MS = 30_000
"""Kafka's default of ``request.timeout.ms``."""

_REFERENCE = (ProducerSettings, ConsumerSettings, CommitterSettings)

S = TypeVar("S", bound=ClientSettings)


def reference_settings(cls: type[S], assignment: Assignment) -> S:
    """Return the settings of a reference client.

    ``SettingError`` names a setting that does not exist or has a wrong value.

    Settings are layered as in ``confluent_settings``: the harness's, the plan's, the arm's. An arm's settings and
    switches apply to its clients of every kind; each client uses only the ones that it supports.
    """
    base: dict[str, Any] = {"bootstrap.servers": assignment.bootstrap, "client.id": assignment.worker}
    base |= {"client.rack": assignment.client_rack} if assignment.client_rack is not None else {}
    base["security"] = assignment.security.resolved()
    names = {field.name for field in fields(cls)}
    foreign = {field.name for settings in _REFERENCE for field in fields(settings)} - names
    arm = assignment.settings | assignment.switches
    own = {name: value for name, value in arm.items() if name.replace(".", "_") not in foreign}
    return parse(cls, base | _plan_settings(assignment) | own)


def _plan_settings(assignment: Assignment) -> dict[str, Any]:
    """Return the client settings that follow from the plan's keys.

    A request may take no longer than the record it carries.
    """
    if isinstance(assignment, ConsumeAssignment):
        group = {"group.id": assignment.group} if assignment.group else {}
        return {"enable.auto.commit": bool(group), "auto.offset.reset": assignment.from_, **group}
    linger_ms = assignment.linger_ms if isinstance(assignment, ProduceAssignment) else 0
    request_timeout_ms = max(1, min(REQUEST_TIMEOUT_MS, assignment.deadline_ms - ceil(linger_ms)))
    timeouts = {"delivery.timeout.ms": assignment.deadline_ms, "request.timeout.ms": request_timeout_ms}
    if isinstance(assignment, CommitAssignment):
        return timeouts
    flags = {"acks": assignment.acks, "enable.idempotence": assignment.idempotence}
    return timeouts | flags | {"linger.ms": assignment.linger_ms}


_PRODUCER_CLOSE_MS = 2_000.0


class ReferenceProducer(SendingClient):
    """``client.Client`` over the reference producer; raises ``SettingError`` for settings that it does not have."""

    def __init__(self, assignment: ProduceAssignment, clock: Clock, events: Events) -> None:
        self._assignment = assignment
        self._stream = Stream(
            assignment.seed,
            assignment.workload,
            assignment.record_size_min,
            assignment.record_size_max,
            assignment.keys,
        )
        self._filler = Filler(assignment.record_size_max)
        settings = reference_settings(ProducerSettings, assignment)
        self._loop = ClientLoop()
        self._producer = self._loop.inside(lambda: Producer(settings, report=self._reported, on_event=events.emit))
        self._waiting: set[asyncio.Task[None]] = set()
        self._sending = SendRecorder(assignment, clock)

    def prepare(self) -> None:
        """Find the leaders and obtain a producer id."""
        self._loop.run(self._producer.start([self._assignment.topic]))
        self._loop.start(send_on_schedule(self._sending, self._send))

    def step(self, wait_us: int) -> None:
        """Run the client for that long."""
        self._loop.step(wait_us)

    def _send(self) -> None:
        assignment, draw = self._assignment, self._stream.draw(self._sending.next)
        seq, intended_us = self._sending.begin(draw.size_bytes)
        value = self._filler.value(seq, draw.size_bytes)
        headers = ((HEADER, pack(assignment.producer_id, seq, intended_us)),)
        if not self._producer.offer(assignment.topic, value, key=draw.key, headers=headers, token=seq):
            wait = self._producer.send(assignment.topic, value, key=draw.key, headers=headers, token=seq)
            task = asyncio.ensure_future(wait)
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
        """Return counts, lateness and produce latencies since the last call."""
        return self._sending.tally.progress() | {"traffic": self._producer.brokers.traffic}

    def counters(self) -> dict[str, int]:
        """Return records by status, and how often each rule took each decision."""
        return super().counters() | dict(self._producer.counts)

    def close(self) -> None:
        """Close the producer, waiting for open records for a short time."""
        self._loop.close(self._producer.close(_PRODUCER_CLOSE_MS))


POLL_MS = 50.0
FETCHES = "fetch"
"""Prefix of the counters that progress reports include as well: the cost of fetches."""
UNKNOWN_MEMBER_ID = 25
_PAUSE_S = 0.1
_CONSUMER_CLOSE_MS = 3_000.0


class ReferenceConsumer(ReceivingClient):
    """``client.Client`` over the reference consumer; raises ``SettingError`` for settings that it does not have."""

    def __init__(self, assignment: ConsumeAssignment, clock: Clock, events: Events) -> None:
        self._assignment = assignment
        self._events = events
        settings = reference_settings(ConsumerSettings, assignment)
        self._loop = ClientLoop()
        self._consumer = self._loop.inside(lambda: Consumer(settings, on_event=events.emit))
        self._receiving = ReceiveRecorder(assignment, clock, events)
        self._partitions = [TopicPartition(assignment.topic, number) for number in range(assignment.partitions)]

    def prepare(self) -> None:
        """Fix the start offsets, then assign all partitions, or join the group and wait for an assignment."""
        self._loop.run(self._begin())
        self._loop.start(self._read())
        while not self._receiving.assignments:
            self.step(100 * US_PER_MS)

    async def _begin(self) -> None:
        consumer, assignment = self._consumer, self._assignment
        await consumer.start([assignment.topic])
        while (starts := await self._resolve_starts()) is None:
            pass
        begin = self._receiving.begin_at({partition.partition: offset for partition, offset in starts.items()})
        if assignment.group is None:
            consumer.assign({TopicPartition(assignment.topic, number): offset for number, offset in begin.items()})
            self._receiving.assigned(range(assignment.partitions))
            return
        await consumer.subscribe([assignment.topic], self._on_assigned, self._on_revoked)

    async def _resolve_starts(self) -> dict[TopicPartition, int] | None:
        """Return each partition's first offset; None if a member that joined in the meantime has committed it."""
        consumer, assignment = self._consumer, self._assignment
        committed = await consumer.committed(self._partitions) if assignment.group else {}
        missing = [partition for partition in self._partitions if partition not in committed]
        starts = committed | await consumer.offsets_for(assignment.from_, missing)
        if assignment.group and assignment.from_ == "latest" and missing:
            # otherwise the group would start wherever the end is when the assignment arrives
            try:
                await consumer.commit(starts)
            except BrokerError as error:
                if error.code != UNKNOWN_MEMBER_ID:
                    raise
                await asyncio.sleep(_PAUSE_S)
                return None
        return starts

    def _on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._receiving.assigned((partition.partition for partition in partitions), self._consumer.member_id)

    def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._receiving.revoked(partition.partition for partition in partitions)

    async def _read(self) -> None:
        while True:
            try:
                batches = await self._consumer.poll(POLL_MS)
            except (BrokerError, ProtocolError) as error:
                self._consumer.check()  # raises final errors; the next poll retries a partition's error
                code = name(error.code) if isinstance(error, BrokerError) else "CORRUPT_MESSAGE"
                self._events.emit("client_error", error=code, detail=str(error), fatal=False)
                await asyncio.sleep(_PAUSE_S)
            else:
                for fetched in batches:
                    self._take(fetched)
                self._receiving.idle()

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

    def step(self, wait_us: int) -> None:
        """Run the client for that long."""
        self._loop.step(wait_us)

    def answer(self) -> dict[str, Any] | None:
        """Return, after ``drain``, the number of missing offsets by partition; empty if all were reached."""
        for partition in self._partitions:
            if (position := self._consumer.position(partition)) is not None:
                self._receiving.reached(partition.partition, position)
        return super().answer()

    def progress(self) -> dict[str, Any]:
        """Return counts and end-to-end latencies since the last call; ``ok`` counts delivered records."""
        fetched = {name: count for name, count in self._consumer.counts.items() if name.startswith(FETCHES)}
        return self._receiving.tally.progress() | {"traffic": self._consumer.brokers.traffic, "counts": fetched}

    def counters(self) -> dict[str, int]:
        """Return delivered records, assignments, and how often each rule took each decision."""
        return super().counters() | dict(self._consumer.counts)

    def close(self) -> None:
        """Commit, leave the group, close the sessions."""
        self._loop.close(self._consumer.close(_CONSUMER_CLOSE_MS))


_COMMITTER_CLOSE_MS = 2_000.0


class ClosedLoop(SendRecorder):
    """Recorder of a closed loop with ``in_flight`` commits at a time, from ``go`` until ``stop``.

    ``freed`` is called when another commit may be sent. Call ``begin`` only right after ``early_us`` reported one as
    due.
    """

    def __init__(self, assignment: CommitAssignment, clock: Clock, in_flight: int) -> None:
        super().__init__(assignment, clock)
        self._in_flight, self.freed = in_flight, Wake()
        self._start_us: int | None = None
        self._stop_us: int | None = None
        self._due_us: dict[int, int] = {}
        self._now_us = 0

    def _on_go(self, order: Go) -> None:
        self._start_us, self._stop_us = order.start_us, order.stop_us

    def _on_stop(self, at_us: int) -> None:
        self._stop_us = at_us

    def early_us(self) -> int | None:
        """Return 0 or less while another commit may be sent; None if none will follow or all slots are taken."""
        self._now_us = now_us = self._clock()
        if self._end is None and self._stop_us is not None and now_us >= self._stop_us:
            self._end = self._next
        if self._start_us is None or self._end is not None or len(self._due_us) == self._in_flight:
            return None
        return self._start_us - now_us

    def begin(self, size_bytes: int) -> tuple[int, int]:
        """Begin the row of the next commit; it was due when ``early_us`` found a free slot for it, before the end."""
        self._due_us[self._next] = self._now_us
        return super().begin(size_bytes)

    def ended(self, seq: int, status: Status, code: int, **details: int) -> None:
        """Record the final status of ``seq``, reached now, and free its slot."""
        super().ended(seq, status, code, **details)
        del self._due_us[seq]
        self.freed()

    def _intended_us(self, seq: int) -> int:
        return self._due_us[seq]


async def send_when_free(loop: ClosedLoop, send: Callable[[], None]) -> NoReturn:
    """Call ``send`` whenever a slot is free; for senders on an event loop."""
    while True:
        early_us = loop.early_us()
        if early_us is not None and early_us <= 0:
            send()
        else:
            loop.idle()
            await loop.freed.wait(min(POLL_INTERVAL_US, early_us or POLL_INTERVAL_US) / US_PER_MS)


class ReferenceCommitter(SendingClient):
    """``client.Client`` over the reference committer; raises ``SettingError`` for settings that it does not have."""

    def __init__(self, assignment: CommitAssignment, clock: Clock, events: Events) -> None:
        self._assignment = assignment
        settings = reference_settings(CommitterSettings, assignment)
        self._committer = Committer(settings, report=self._reported, on_event=events.emit)
        self._loop = ClientLoop()
        in_flight = assignment.in_flight
        self._sending = (
            SendRecorder(assignment, clock) if in_flight is None else ClosedLoop(assignment, clock, in_flight)
        )

    def prepare(self) -> None:
        """Find the coordinators."""
        self._loop.run(self._committer.start([self._target(seq) for seq in range(self._assignment.groups)]))
        sending = self._sending
        self._loop.start(
            send_when_free(sending, self._send)
            if isinstance(sending, ClosedLoop)
            else send_on_schedule(sending, self._send)
        )

    def _target(self, seq: int) -> Target:
        return Target(self._assignment.group_of(seq), self._assignment.topic, self._assignment.partition_of(seq))

    def step(self, wait_us: int) -> None:
        """Run the client for that long."""
        self._loop.step(wait_us)

    def _send(self) -> None:
        seq, _ = self._sending.begin(0)
        self._committer.offer(self._target(seq), self._assignment.offset_of(seq), token=seq)

    def _reported(self, outcome: Outcome) -> None:
        status = Status.OK if not outcome.error else Status.IN_DOUBT if outcome.in_doubt else Status.FAILED
        self._sending.ended(
            outcome.token, status, outcome.error, broker_id=outcome.broker_id, attempts=outcome.attempts
        )

    def progress(self) -> dict[str, Any]:
        """Return counts, lateness and commit latencies since the last call."""
        return self._sending.tally.progress() | {"traffic": self._committer.traffic}

    def counters(self) -> dict[str, int]:
        """Return commits by status, and how often each rule took each decision."""
        return super().counters() | dict(self._committer.counts)

    def close(self) -> None:
        """Close the committer, waiting for open commits for a short time."""
        self._loop.close(self._committer.close(_COMMITTER_CLOSE_MS))

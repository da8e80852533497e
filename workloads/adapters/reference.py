"""The event loop that a reference client lives on, and runs a step of at a time.

Its selector is ``select(2)``, which waits in microseconds; epoll waits in whole milliseconds, and half of one would be
added to every record's lateness. It is meant for few descriptors, and a client has a handful.

From an assignment to the settings of a reference client, layered as those of librdkafka are in ``settings.py``.

The reference producer under open-loop load: ``client: reference``.

Rules: a record that finds the buffer full waits for room in a task of its own, at most ``max.block.ms``, and holds up
none of those after it. What is ``failed`` and what ``in_doubt`` is the producer's own knowledge: it sees every attempt.

The reference consumer, noting every record delivered to it: ``client: reference``.

Rules: where it begins is settled before it says that it is ready, so nothing produced later can be missed by being
early; the error of a partition doesn't end the loop: it is told, and the next poll comes after a pause. What ends the
consumer for good, as a group that refuses it, ends the worker with the sentence that it was refused with.

The reference committer under load, open-loop or closed: ``client: reference`` of a ``commit`` workload.

What is ``failed`` and what ``in_doubt`` is the committer's own knowledge: it sees every attempt.

A closed loop: so many are kept under way, and the next is sent when one of them has ended.

For capacity alone. What is sent is intended when it is sent, so its latency is its service time: a system that stalls
stalls the load as well, and nothing corrects for that (coordinated omission). All else is as in ``sending.py``.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import fields
from math import ceil
from typing import Any, NoReturn, TypeVar

from aftershock.errors import BrokerError, ProtocolError
from aftershock.workloads.adapters.receiving import Receiving
from aftershock.workloads.adapters.sending import LOOK_US, Sending, pace
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
from aftershock.workloads.load.orders import Go, Order
from aftershock.workloads.load.schedule import HEADER, US_PER_MS, US_PER_S, Filler, Stream, pack, unpack
from aftershock.workloads.load.spool import UNKNOWN, Status

T = TypeVar("T")


class Loop:
    """One event loop with the tasks that must not fail on it: when one does, the next ``step`` raises its error."""

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._vital: list[asyncio.Task[Any]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run until ``work`` is done; its result."""
        return self._loop.run_until_complete(work)

    def inside(self, make: Callable[[], T]) -> T:
        """What ``make`` returns, called while the loop runs: who lives on a loop wants to be made there."""

        async def made() -> T:
            return make()

        return self.run(made())

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Let ``work`` go on in every step from now on."""
        self._vital.append(self._loop.create_task(work))

    def step(self, wait_us: int) -> None:
        """Run for that long, or until a vital task ends."""
        self.run(self._rest(wait_us / US_PER_S))
        for task in [task for task in self._vital if task.done()]:
            self._vital.remove(task)
            task.result()

    async def _rest(self, wait_s: float) -> None:
        if self._vital:
            await asyncio.wait(self._vital, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(wait_s)

    def close(self, leaving: Coroutine[Any, Any, None]) -> None:
        """Cancel what is going on, run ``leaving`` and close the loop."""
        self.run(self._ended())
        self.run(leaving)
        self._loop.close()

    async def _ended(self) -> None:
        for task in self._vital:
            task.cancel()
        await asyncio.gather(*self._vital, return_exceptions=True)


REQUEST_TIMEOUT_MS = 30_000
"""Kafka's default of ``request.timeout.ms``."""

_REFERENCE = (ProducerSettings, ConsumerSettings, CommitterSettings)

S = TypeVar("S", bound=ClientSettings)


def reference_settings(cls: type[S], assignment: Assignment) -> S:
    """The settings of a reference client; ``SettingError`` for one that doesn't exist, or can't be.

    An arm's settings and switches are for its clients of every kind: each takes what is meant for it.
    """
    said: dict[str, Any] = {"bootstrap.servers": assignment.bootstrap, "client.id": assignment.worker}
    said |= {"client.rack": assignment.client_rack} if assignment.client_rack is not None else {}
    said["security"] = assignment.security.resolved()
    mine = {field.name for field in fields(cls)}
    foreign = {field.name for each in _REFERENCE for field in fields(each)} - mine
    arms = assignment.settings | assignment.switches
    own = {name: value for name, value in arms.items() if name.replace(".", "_") not in foreign}
    return parse(cls, said | _planned(assignment) | own)


def _planned(assignment: Assignment) -> dict[str, Any]:
    """What the plan says in words of its own. A request may take no longer than the record it carries."""
    if isinstance(assignment, ConsumeAssignment):
        group = {"group.id": assignment.group} if assignment.group else {}
        return {"enable.auto.commit": bool(group), "auto.offset.reset": assignment.from_, **group}
    linger_ms = assignment.linger_ms if isinstance(assignment, ProduceAssignment) else 0
    patience_ms = max(1, min(REQUEST_TIMEOUT_MS, assignment.deadline_ms - ceil(linger_ms)))
    timeouts = {"delivery.timeout.ms": assignment.deadline_ms, "request.timeout.ms": patience_ms}
    if isinstance(assignment, CommitAssignment):
        return timeouts
    flags = {"acks": assignment.acks, "enable.idempotence": assignment.idempotence}
    return timeouts | flags | {"linger.ms": assignment.linger_ms}


_CLOSE_MS = 2_000.0


class ReferenceProducer:
    """``client.Client`` over ``reference.producer.Producer``; ``SettingError`` for settings that it doesn't have."""

    def __init__(self, assignment: ProduceAssignment, clock: Clock, events: Events) -> None:
        told = self._told = assignment
        self._stream = Stream(told.seed, told.workload, told.record_size_min, told.record_size_max, told.keys)
        self._filler = Filler(told.record_size_max)
        settings = reference_settings(ProducerSettings, told)
        self._loop = Loop()
        self._producer = self._loop.inside(lambda: Producer(settings, report=self._reported, tell=events.emit))
        self._waiting: set[asyncio.Task[None]] = set()
        self._sending = Sending(told, clock)

    def prepare(self) -> None:
        """Come to know the leaders, and have a producer id."""
        self._loop.run(self._producer.start([self._told.topic]))
        self._loop.start(pace(self._sending, self._send))

    def obey(self, order: Order) -> None:
        """``go`` starts the schedule, ``stop`` ends it."""
        self._sending.obey(order)

    def step(self, wait_us: int) -> None:
        """Let the client work for that long."""
        self._loop.step(wait_us)

    def _send(self) -> None:
        told, draw = self._told, self._stream.draw(self._sending.next)
        seq, intended_us = self._sending.begin(draw.size_bytes)
        value = self._filler.value(seq, draw.size_bytes)
        headers = ((HEADER, pack(told.producer_id, seq, intended_us)),)
        if not self._producer.offer(told.topic, value, key=draw.key, headers=headers, token=seq):
            wait = self._producer.send(told.topic, value, key=draw.key, headers=headers, token=seq)
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

    def answer(self) -> dict[str, Any] | None:
        """After ``stop``: how many records still have no final status."""
        return self._sending.answer()

    def progress(self) -> dict[str, Any]:
        """Counts, lateness and produce latencies since the last call."""
        return self._sending.tally.progress() | {"traffic": self._producer.brokers.traffic}

    def counters(self) -> dict[str, int]:
        """Records by status, and what each rule decided how often."""
        return self._sending.tally.counts() | dict(self._producer.counts)

    def close(self) -> None:
        """Leave in good order."""
        self._loop.close(self._producer.close(_CLOSE_MS))


POLL_MS = 50.0
FETCHES = "fetch"
"""How the counters begin that are also wanted block by block: what fetches cost."""
UNKNOWN_MEMBER_ID = 25
_PAUSE_S = 0.1
_CLOSE_MS_reference_consumer = 3_000.0


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
        self._loop.close(self._consumer.close(_CLOSE_MS_reference_consumer))


_CLOSE_MS_reference_committer = 2_000.0


class ClosedLoop(Sending):
    """``in_flight`` at a time, from ``go`` until ``stop``. ``freed`` is called when another may be sent.

    ``begin`` is for when ``early_us`` has just said that one is due.
    """

    def __init__(self, told: CommitAssignment, clock: Clock, in_flight: int) -> None:
        super().__init__(told, clock)
        self._in_flight, self.freed = in_flight, Wake()
        self._start_us: int | None = None
        self._stop_us: int | None = None
        self._due_us: dict[int, int] = {}
        self._now_us = 0

    def _begins(self, order: Go) -> None:
        self._start_us, self._stop_us = order.start_us, order.stop_us

    def _ends(self, at_us: int) -> None:
        self._stop_us = at_us

    def early_us(self) -> int | None:
        """0 or less while another may be sent; None while none is to come, or so many are under way."""
        self._now_us = now_us = self._clock()
        if self._end is None and self._stop_us is not None and now_us >= self._stop_us:
            self._end = self._next
        if self._start_us is None or self._end is not None or len(self._due_us) == self._in_flight:
            return None
        return self._start_us - now_us

    def begin(self, size_bytes: int) -> tuple[int, int]:
        """The next one is handed to the library now; it was due when ``early_us`` found room for it, before the end."""
        self._due_us[self._next] = self._now_us
        return super().begin(size_bytes)

    def ended(self, seq: int, status: Status, code: int, **told: int) -> None:
        """The final status of ``seq``, now: there is room for another."""
        super().ended(seq, status, code, **told)
        del self._due_us[seq]
        self.freed()

    def _intended_us(self, seq: int) -> int:
        return self._due_us[seq]


async def keep_full(loop: ClosedLoop, send: Callable[[], None]) -> NoReturn:
    """Call ``send`` whenever there is room; for senders that live on an event loop."""
    while True:
        early_us = loop.early_us()
        if early_us is not None and early_us <= 0:
            send()
        else:
            loop.idle()
            await loop.freed.wait(min(LOOK_US, early_us or LOOK_US) / US_PER_MS)


class ReferenceCommitter:
    """``client.Client`` over ``reference.committer.Committer``; ``SettingError`` for settings that it doesn't have."""

    def __init__(self, assignment: CommitAssignment, clock: Clock, events: Events) -> None:
        self._told = assignment
        settings = reference_settings(CommitterSettings, assignment)
        self._committer = Committer(settings, report=self._reported, tell=events.emit)
        self._loop = Loop()
        in_flight = assignment.in_flight
        self._sending = Sending(assignment, clock) if in_flight is None else ClosedLoop(assignment, clock, in_flight)

    def prepare(self) -> None:
        """Come to know the coordinators."""
        self._loop.run(self._committer.start([self._target(seq) for seq in range(self._told.groups)]))
        sending = self._sending
        self._loop.start(
            keep_full(sending, self._send) if isinstance(sending, ClosedLoop) else pace(sending, self._send)
        )

    def _target(self, seq: int) -> Target:
        return Target(self._told.group_of(seq), self._told.topic, self._told.partition_of(seq))

    def obey(self, order: Order) -> None:
        """``go`` starts the schedule, ``stop`` ends it."""
        self._sending.obey(order)

    def step(self, wait_us: int) -> None:
        """Let the client work for that long."""
        self._loop.step(wait_us)

    def _send(self) -> None:
        seq, _ = self._sending.begin(0)
        self._committer.offer(self._target(seq), self._told.offset_of(seq), token=seq)

    def _reported(self, outcome: Outcome) -> None:
        status = Status.OK if not outcome.error else Status.IN_DOUBT if outcome.in_doubt else Status.FAILED
        self._sending.ended(
            outcome.token, status, outcome.error, broker_id=outcome.broker_id, attempts=outcome.attempts
        )

    def answer(self) -> dict[str, Any] | None:
        """After ``stop``: how many commits still have no final status."""
        return self._sending.answer()

    def progress(self) -> dict[str, Any]:
        """Counts, lateness and commit latencies since the last call."""
        return self._sending.tally.progress() | {"traffic": self._committer.traffic}

    def counters(self) -> dict[str, int]:
        """Commits by status, and what each rule decided how often."""
        return self._sending.tally.counts() | dict(self._committer.counts)

    def close(self) -> None:
        """Leave in good order."""
        self._loop.close(self._committer.close(_CLOSE_MS_reference_committer))

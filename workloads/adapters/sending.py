"""Schedule, outcome rows and counts of one producer or committer, the same for every client library.

A record or commit is sent at its intended time, or as soon afterwards as the process can, without waiting for the
results of earlier records. The outcome row of a record is begun before the client library receives the record.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

from confluent_kafka import KafkaException

from aftershock.workloads.load.assignment import CommitAssignment, Go, Order, ProduceAssignment, Stop
from aftershock.workloads.load.events import Clock, Tally
from aftershock.workloads.load.schedule import (
    US_PER_MS,
    US_PER_S,
    Filler,
    JsonValue,
    Mark,
    Schedule,
    Stream,
    mark_text,
    pack,
)
from aftershock.workloads.load.spool import CLIENT_DOWN, UNKNOWN, ProduceSpool, Status

REQUEST_TIMEOUT_S = 2.0
"""Time limit of one attempt of a request while a client starts, short because the request is retried."""

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


def retry_until_result(request: Callable[[], T | None]) -> T:
    """Return the result of ``request``, repeated while ``request`` raises a ``KafkaException`` or returns None."""
    while True:
        try:
            result = request()
        except KafkaException as error:
            _LOG.warning("not ready: %s", error)
        else:
            if result is not None:
                return result


POLL_INTERVAL_US = 20 * US_PER_MS
"""Longest wait of a producer or committer on an event loop before it looks for due records again."""

GRACE_US = 10 * US_PER_S
"""Longest wait for the result of a record after its deadline; librdkafka expires records once a second."""


class SendRecorder:
    """Schedule, outcome rows and counts of a producer or committer; ``next`` is the number of the next record."""

    def __init__(self, assignment: ProduceAssignment | CommitAssignment, clock: Clock) -> None:
        self._assignment, self._clock = assignment, clock
        self.tally = Tally()
        self._spool = ProduceSpool(assignment.spool, assignment)
        self._schedule: Schedule | None = None
        self.next = self._spool.next
        self._end: int | None = None  # the first record that is not to be sent
        self._answer_by_us = 0
        self._stopping = self._answered = False

    def obey(self, order: Order) -> None:
        assignment = self._assignment
        if isinstance(order, Stop):
            self._end = max(self.next, self._schedule.count_before(order.at_us)) if self._schedule else 0
            self._stopping = True
            self._answer_by_us = order.at_us + assignment.deadline_ms * US_PER_MS + GRACE_US
        if not isinstance(order, Go):
            return
        schedule = self._schedule = Schedule(order.start_us, assignment.offset_us, assignment.rate_per_s or 0)
        if order.stop_us is not None:
            self._end = max(self.next, schedule.count_before(order.stop_us))
        if assignment.life:
            # a restarted sender continues with the record that is due now
            self.skip_due()

    def skip_due(self) -> None:
        """Record that the records that are due by now were never sent, because the client was down."""
        schedule, assignment = self._schedule, self._assignment
        if schedule is None:
            return
        due = schedule.count_before(self._clock())
        first_due = due if self._end is None else min(due, self._end)
        for seq in range(self.next, first_due):
            intended_us, unknown = schedule.intended_us(seq), UNKNOWN
            deadline_us = intended_us + assignment.deadline_ms * US_PER_MS
            self._spool.begin(
                seq, intended_us=intended_us, deadline_us=deadline_us, sent_us=unknown, size_bytes=unknown
            )
            self._spool.end(seq, done_us=self._clock(), status=Status.FAILED, code=CLIENT_DOWN)
            self.tally.never_sent()
        self.next = max(self.next, first_due)

    def early_us(self) -> int | None:
        """Return the microseconds until the next record is due, 0 or less if it is; None after the last record."""
        if self._schedule is None or self.next == self._end:
            return None
        return self._schedule.intended_us(self.next) - self._clock()

    def begin(self, size_bytes: int) -> tuple[int, int]:
        """Begin the outcome row of the next record; return the record's number and intended time."""
        seq, sent_us = self.next, self._clock()
        intended_us = self._intended_us(seq)
        self.next = seq + 1
        deadline_us = intended_us + self._assignment.deadline_ms * US_PER_MS
        self._spool.begin(seq, intended_us=intended_us, deadline_us=deadline_us, sent_us=sent_us, size_bytes=size_bytes)
        self.tally.sent_late(sent_us - intended_us)
        return seq, intended_us

    def ended(self, seq: int, status: Status, code: int, **details: int) -> None:
        """Record the final status of record ``seq`` at the current time; ``details`` are those of ``spool.end``."""
        done_us = self._clock()
        self._spool.end(seq, done_us=done_us, status=status, code=code, **details)
        self.tally.ended(status, done_us - self._intended_us(seq))

    def _intended_us(self, seq: int) -> int:
        return self._schedule.intended_us(seq) if self._schedule else 0

    def idle(self) -> None:
        self._spool.idle()

    @property
    def over(self) -> bool:
        """True if no record is left to be sent."""
        return self._end is not None and self.next >= self._end

    def answer(self, *, busy: bool = False) -> dict[str, Any] | None:
        """Return the answer to a ``stop`` order, with the number of records that still have no final status.

        ``busy`` is True while a transaction has not ended, whose outcome the answer waits for as for those of records.
        """
        if not self._stopping or self._answered or not self.over:
            return None
        unreported = self.tally.sent - self.tally.done
        if (unreported or busy) and self._clock() < self._answer_by_us:
            return None
        self._answered = True
        return {"did": "stop", "unreported": unreported}


class DueRecord(NamedTuple):
    """Record to send now to ``topic``; ``mark`` is the value of the record's header ``aftershock``."""

    seq: int
    key: bytes | None
    value: bytes
    mark: bytes
    topic: str


class ProduceRecorder(SendRecorder):
    """Recorder of a producer, which also creates the producer's records with their random sizes and keys."""

    def __init__(self, assignment: ProduceAssignment, clock: Clock) -> None:
        super().__init__(assignment, clock)
        sizes = assignment.record_size_min, assignment.record_size_max
        self._stream = Stream(assignment.seed, assignment.workload, *sizes, assignment.keys)
        self._filler = Filler(assignment.record_size_max)
        self._producer_id = assignment.producer_id
        self._topics = [topic.name for topic in assignment.topics]
        self._values = {topic: JsonValue(template) for topic, template in assignment.values.items()}
        self._mark_is_key = assignment.mark_is_key

    def begin_record(self) -> DueRecord:
        size_bytes, key = self._stream.draw(self.next)
        topic = self._topics[self.next % len(self._topics)]
        mark = Mark(self._producer_id, self.next, self._intended_us(self.next))
        if self._mark_is_key:
            key = mark_text(mark).encode()
        if template := self._values.get(topic):
            value = template.value(mark, key)
        else:
            value = self._filler.value(mark.seq, size_bytes)
        self.begin(len(value))
        return DueRecord(mark.seq, key, value, pack(*mark), topic)

    def due_us(self, seq: int) -> int:
        """Return the intended time of a record."""
        return self._intended_us(seq)


class SendingClient:
    """Methods of ``worker.Client`` that are the same for all producers and committers."""

    _sending: SendRecorder

    def keep_polling(self, _polls: bool) -> None:  # noqa: FBT001 -- a switch
        """Do nothing: a producer has nothing to poll."""

    def obey(self, order: Order) -> None:
        self._sending.obey(order)

    def answer(self) -> dict[str, Any] | None:
        return self._sending.answer()

    def counters(self) -> dict[str, int]:
        return self._sending.tally.counts()


class PollingSender(SendingClient, ABC):
    """Producer or committer that has no asyncio event loop and polls its client library for results."""

    @abstractmethod
    def _send(self) -> None:
        """Send the record or commit that is due."""

    @abstractmethod
    def _poll(self, wait_us: int) -> None:
        """Process results of sent records or commits, waiting up to ``wait_us`` for the first result."""

    def step(self, wait_us: int) -> None:
        early_us = self._sending.early_us()
        if early_us is not None and early_us <= 0:
            self._send()
            wait_us = 0
        elif early_us is not None:
            self._sending.idle()
            wait_us = min(early_us, wait_us)
        self._poll(wait_us)


async def send_on_schedule(recorder: SendRecorder, send: Callable[[], None]) -> NoReturn:
    """Call ``send`` whenever a record or commit is due; for clients on an asyncio event loop."""
    while True:
        early_us = recorder.early_us()
        if early_us is not None and early_us <= 0:
            send()
            await asyncio.sleep(0)
        else:
            recorder.idle()
            await asyncio.sleep(min(POLL_INTERVAL_US, early_us or POLL_INTERVAL_US) / US_PER_S)

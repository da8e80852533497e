"""Schedule, spool rows and counts of one open-loop sender, the same for every client library.

Rules:

1. A record (or commit) is sent at its intended time, or as soon afterwards as this process can, regardless of what
   became of the records before it.
2. Its spool row is begun before the client library receives it.
3. After ``stop`` nothing that is intended later is sent. The answer follows when every record has its final status, or
   GRACE_US after the deadline of the last one.
4. A sender that was killed continues with the record that its schedule has reached by now. The records that were due in
   the meantime were never sent and have failed (CLIENT_DOWN).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from confluent_kafka import KafkaException

from aftershock.workloads.load.assignment import CommitAssignment, ProduceAssignment
from aftershock.workloads.load.events import Clock, Tally
from aftershock.workloads.load.orders import Go, Order, Stop
from aftershock.workloads.load.schedule import US_PER_MS, US_PER_S, Schedule
from aftershock.workloads.load.spool import CLIENT_DOWN, UNKNOWN, ProduceSpool, Status

REQUEST_TIMEOUT_S = 2.0
"""Time limit of one request. It is short because requests are repeated; the caller of the worker has a deadline."""

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


def retry_until_result(request: Callable[[], T | None]) -> T:
    """Call ``request`` until it neither raises a ``KafkaException`` nor returns None; return its result."""
    while True:
        try:
            result = request()
        except KafkaException as error:
            _LOG.warning("not ready: %s", error)
        else:
            if result is not None:
                return result


POLL_INTERVAL_US = 20 * US_PER_MS
"""Interval at which an idle sender on an event loop looks for work."""

GRACE_US = 10 * US_PER_S
"""Longest time without a report after a record's deadline. librdkafka looks for expired records once a second."""


class SendRecorder:
    """Schedule, spool and counts of one sender."""

    def __init__(self, assignment: ProduceAssignment | CommitAssignment, clock: Clock) -> None:
        self._assignment, self._clock = assignment, clock
        self.tally = Tally()
        self._spool = ProduceSpool(assignment.spool, assignment)
        self._schedule: Schedule | None = None
        self._next = self._spool.next
        self._end: int | None = None  # the first record that is not to be sent
        self._answer_by_us = 0
        self._stopping = self._answered = False

    def obey(self, order: Order) -> None:
        """Start the schedule on ``go``, end it on ``stop``."""
        if isinstance(order, Go):
            self._on_go(order)
        elif isinstance(order, Stop):
            self._on_stop(order.at_us)
            self._stopping = True
            self._answer_by_us = order.at_us + self._assignment.deadline_ms * US_PER_MS + GRACE_US

    def _on_go(self, order: Go) -> None:
        assignment = self._assignment
        self._schedule = Schedule(order.start_us, assignment.offset_us, assignment.rate_per_s or 0)
        if order.stop_us is not None:
            self._end = max(self._next, self._schedule.count_before(order.stop_us))
        if assignment.life:
            due = self._schedule.count_before(self._clock())
            self._fail_missed(due if self._end is None else min(due, self._end))

    def _on_stop(self, at_us: int) -> None:
        self._end = max(self._next, self._schedule.count_before(at_us)) if self._schedule else 0

    def early_us(self) -> int | None:
        """Return the time until the next record is due, 0 or less if it is due, None if none will follow."""
        if self._schedule is None or self._next == self._end:
            return None
        return self._schedule.intended_us(self._next) - self._clock()

    def begin(self, size_bytes: int) -> tuple[int, int]:
        """Begin the row of the next record, which the library receives now; return its number and intended time."""
        seq, sent_us = self._next, self._clock()
        intended_us = self._intended_us(seq)
        self._next = seq + 1
        deadline_us = intended_us + self._assignment.deadline_ms * US_PER_MS
        self._spool.begin(seq, intended_us=intended_us, deadline_us=deadline_us, sent_us=sent_us, size_bytes=size_bytes)
        self.tally.sent_late(sent_us - intended_us)
        return seq, intended_us

    def _fail_missed(self, until: int) -> None:
        """Record everything before ``until`` as failed: it was due while this client was down."""
        for seq in range(self._next, until):
            intended_us = self._intended_us(seq)
            deadline_us = intended_us + self._assignment.deadline_ms * US_PER_MS
            self._spool.begin(
                seq, intended_us=intended_us, deadline_us=deadline_us, sent_us=UNKNOWN, size_bytes=UNKNOWN
            )
            self._spool.end(
                seq, done_us=self._clock(), status=Status.FAILED, code=CLIENT_DOWN, partition=UNKNOWN, offset=UNKNOWN
            )
            self.tally.never_sent()
        self._next = max(self._next, until)

    @property
    def next(self) -> int:
        """Number of the next record to send."""
        return self._next

    def ended(
        self,
        seq: int,
        status: Status,
        code: int,
        *,
        partition: int = UNKNOWN,
        offset: int = UNKNOWN,
        leader_epoch: int = UNKNOWN,
        broker_id: int = UNKNOWN,
        attempts: int = 0,
    ) -> None:
        """Record the final status of ``seq``, reached now.

        UNKNOWN stands for unknown values, 0 for unknown ``attempts``.
        """
        done_us = self._clock()
        self._spool.end(
            seq,
            done_us=done_us,
            status=status,
            code=code,
            partition=partition,
            offset=offset,
            leader_epoch=leader_epoch,
            broker_id=broker_id,
            attempts=attempts,
        )
        self.tally.ended(status, done_us - self._intended_us(seq))

    def _intended_us(self, seq: int) -> int:
        return self._schedule.intended_us(seq) if self._schedule else 0

    def idle(self) -> None:
        """Prepare space for rows while there is nothing to do."""
        self._spool.idle()

    def answer(self) -> dict[str, Any] | None:
        """Return, once after ``stop``, how many records lack a final status; 0 unless the library lost a record."""
        if not self._stopping or self._end is None or self._answered or self._next < self._end:
            return None
        unreported = self.tally.sent - self.tally.done
        if unreported and self._clock() < self._answer_by_us:
            return None
        self._answered = True
        return {"did": "stop", "unreported": unreported}


class SendingClient:
    """Part of ``client.Client`` that all producers and committers share; ``_sending`` is theirs to create."""

    _sending: SendRecorder

    def obey(self, order: Order) -> None:
        """Start the schedule on ``go``, end it on ``stop``."""
        self._sending.obey(order)

    def answer(self) -> dict[str, Any] | None:
        """Return, after ``stop``, how many records (or commits) lack a final status."""
        return self._sending.answer()

    def counters(self) -> dict[str, int]:
        """Return records by status; ``sent`` minus the rest is the number without a report."""
        return self._sending.tally.counts()


async def send_on_schedule(recorder: SendRecorder, send: Callable[[], None]) -> NoReturn:
    """Call ``send`` whenever the next record is due; for senders on an event loop."""
    while True:
        early_us = recorder.early_us()
        if early_us is not None and early_us <= 0:
            send()
            await asyncio.sleep(0)
        else:
            recorder.idle()
            await asyncio.sleep(min(POLL_INTERVAL_US, early_us or POLL_INTERVAL_US) / US_PER_S)

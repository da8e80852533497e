"""Getting a client to its starting point on a cluster that may not be quite there yet.

What every open-loop client does alike, whichever library sends: when is which, and what became of it.

Rules: a record (or a commit) is sent at its intended time, or as soon after as this process gets to it, whatever
became of those before; it has a row in the spool before the library hears of it; after ``stop`` nothing intended later
is sent, and the answer comes when every one has its final status, or GRACE after the last one's deadline. A sender that
was killed goes on where its schedule is by now: what was due meanwhile was sent by nobody, and has failed.
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

ASK_TIMEOUT_S = 2.0
"""How long one question may take. Short, because it is asked again; whoever waits for the worker has the deadline."""

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


def until_answered(ask: Callable[[], T | None]) -> T:
    """What ``ask`` returns, asked again for as long as it raises a ``KafkaException`` or has no answer (None)."""
    while True:
        try:
            answer = ask()
        except KafkaException as error:
            _LOG.warning("not ready: %s", error)
        else:
            if answer is not None:
                return answer


LOOK_US = 20 * US_PER_MS
"""How often a sender on an event loop that has nothing to send looks whether that is still so."""

GRACE_US = 10 * US_PER_S
"""How long after its deadline a record may be without a report. librdkafka looks for expired records once a second."""


class Sending:
    """The schedule, the spool and the tally of one sender."""

    def __init__(self, told: ProduceAssignment | CommitAssignment, clock: Clock) -> None:
        self._told, self._clock = told, clock
        self.tally = Tally()
        self._spool = ProduceSpool(told.spool, told)
        self._schedule: Schedule | None = None
        self._next = self._spool.next
        self._end: int | None = None  # the first record that is not to be sent
        self._give_up_us = 0
        self._stopping = self._answered = False

    def obey(self, order: Order) -> None:
        """``go`` starts the schedule, ``stop`` ends it."""
        if isinstance(order, Go):
            self._begins(order)
        elif isinstance(order, Stop):
            self._ends(order.at_us)
            self._stopping = True
            self._give_up_us = order.at_us + self._told.deadline_ms * US_PER_MS + GRACE_US

    def _begins(self, order: Go) -> None:
        told = self._told
        self._schedule = Schedule(order.start_us, told.offset_us, told.rate_per_s or 0)
        if order.stop_us is not None:
            self._end = max(self._next, self._schedule.count_before(order.stop_us))
        if told.life:
            due = self._schedule.count_before(self._clock())
            self._pass_over(due if self._end is None else min(due, self._end))

    def _ends(self, at_us: int) -> None:
        self._end = max(self._next, self._schedule.count_before(at_us)) if self._schedule else 0

    def early_us(self) -> int | None:
        """How long until the next is due, 0 or less when it is; None while none is to come."""
        if self._schedule is None or self._next == self._end:
            return None
        return self._schedule.intended_us(self._next) - self._clock()

    def begin(self, size_bytes: int) -> tuple[int, int]:
        """The next one is handed to the library now: its number and its intended time."""
        seq, sent_us = self._next, self._clock()
        intended_us = self._intended_us(seq)
        self._next = seq + 1
        deadline_us = intended_us + self._told.deadline_ms * US_PER_MS
        self._spool.begin(seq, intended_us=intended_us, deadline_us=deadline_us, sent_us=sent_us, size_bytes=size_bytes)
        self.tally.sent_late(sent_us - intended_us)
        return seq, intended_us

    def _pass_over(self, until: int) -> None:
        """Those before ``until`` that are still to come were due while this client was dead."""
        for seq in range(self._next, until):
            intended_us = self._intended_us(seq)
            deadline_us = intended_us + self._told.deadline_ms * US_PER_MS
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
        """The number of the next one to send."""
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
        """The final status of ``seq``, now; UNKNOWN for what isn't known, and 0 ``attempts``."""
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
        """Use a quiet moment to make room for rows."""
        self._spool.idle()

    def answer(self) -> dict[str, Any] | None:
        """Once after ``stop``: how many still have no final status, which is none unless the library forgot them."""
        if not self._stopping or self._end is None or self._answered or self._next < self._end:
            return None
        left = self.tally.sent - self.tally.done
        if left and self._clock() < self._give_up_us:
            return None
        self._answered = True
        return {"did": "stop", "unreported": left}


async def pace(sending: Sending, send: Callable[[], None]) -> NoReturn:
    """Call ``send`` whenever the next one is due; for senders that live on an event loop."""
    while True:
        early_us = sending.early_us()
        if early_us is not None and early_us <= 0:
            send()
            await asyncio.sleep(0)
        else:
            sending.idle()
            await asyncio.sleep(min(LOOK_US, early_us or LOOK_US) / US_PER_S)

"""Kafka's error codes by name, for clients that tell errors in words.

The conversation with one client program: what every op of an ``exec`` or ``java`` client does alike.

The user's own program under open-loop load: it is handed each order when it is due.

Rules: an order that the program is too far behind to be handed fails at once; every order is reported once, by the
number that it was handed over with; a report about any other is an error. Whether a failure leaves doubt is the
program's to say; where it doesn't, the error decides, as for every client (``status.reported``).

The user's own producer: a program that is handed each record, whole, when it is due.

The user's own consumer: a program that reports every record that its application would see.

Rules: where it begins is settled before it starts, so nothing produced later can be missed by being early; a record is
noted when its report is read.

The user's own committer: a program that is handed each offset to commit when it is due.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError
from kio.schema.errors import ErrorCode

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters.exec_child import Child
from aftershock.workloads.adapters.exec_protocol import (
    Acked,
    Assigned,
    Bye,
    Died,
    Failed,
    Ready,
    Record,
    Report,
    Revoked,
    Traffic,
    Trouble,
    close_order,
    commit_order,
    parse_report,
    send_order,
    start_order,
)
from aftershock.workloads.adapters.receiving import Receiving, settle_starts
from aftershock.workloads.adapters.sending import Sending
from aftershock.workloads.load.assignment import Assignment, CommitAssignment, ConsumeAssignment, ProduceAssignment
from aftershock.workloads.load.events import Clock, Events
from aftershock.workloads.load.orders import Order
from aftershock.workloads.load.schedule import HEADER, US_PER_S, Filler, Stream, pack, unpack
from aftershock.workloads.load.spool import Status, reported

UNKNOWN_SERVER_ERROR = -1

_CODES: dict[str, int] = {
    # librdkafka's own errors, and its own names of Kafka's
    **{name: code for name, code in vars(KafkaError).items() if isinstance(code, int)},
    **{code.name.upper(): int(code) for code in ErrorCode},
}


def code_of(name: str) -> int:
    """The code of an error that goes by this name in Kafka or in librdkafka; -1 for a name that neither knows."""
    return _CODES.get(name, UNKNOWN_SERVER_ERROR)


CLOSE_S = 5.0
"""How long a program may take to close: less than the runner gives the worker."""

_PREPARE_STEP_S = 0.1
_LOG = logging.getLogger(__name__)


class ExecLink:
    """Starts the assignment's program and passes what it reports to ``take``, but for what concerns every program."""

    def __init__(self, assignment: Assignment, events: Events, take: Callable[[Report], None]) -> None:
        self._told, self._events, self._take = assignment, events, take
        self._child = Child(assignment.command)
        self._ready = self._over = False
        self.traffic: Mapping[int, tuple[int, int]] = {}

    def start(self, positions: Mapping[int, int] | None = None) -> None:
        """Tell the program what to be, and wait until it is ready; whoever asked has a deadline."""
        self._child.write(start_order(self._told, positions))
        while not self._ready:
            self.hear(_PREPARE_STEP_S)

    def write(self, order: bytes) -> bool:
        """Hand the program an order; False when it is too far behind in reading them."""
        return self._child.write(order)

    def hear(self, wait_s: float) -> None:
        """Take what the program reports, or wait for it, at most ``wait_s``; ``WorkloadError`` when it has ended."""
        for line in self._child.hear(wait_s):
            self._heed(parse_report(line))

    def _heed(self, report: Report) -> None:
        match report:
            case Ready():
                self._ready = True
            case Traffic(brokers=brokers):
                self.traffic = brokers
            case Trouble(error=error, detail=detail):
                self._events.emit("client_error", error=error, detail=detail)
            case Died(why=why):
                raise WorkloadError(f"the client {self._child.name} gave up: {why}")
            case Bye():
                self._over = True
            case _:
                self._take(report)

    def close(self) -> None:
        """Have the program close and end, in CLOSE_S at most; one that does neither is killed, and that is logged."""
        self._child.write(close_order())
        until = time.monotonic() + CLOSE_S
        try:
            while not self._over and (left_s := until - time.monotonic()) > 0:
                self.hear(left_s)
        except WorkloadError as error:
            _LOG.warning("it did not say bye: %s", error)
        status = self._child.end(max(0.0, until - time.monotonic()))
        if status or not self._over:
            _LOG.warning("it was told to close and ended with status %d, within %.0f s", status, CLOSE_S)


class ExecSender(ABC):
    """``client.Client`` over a program that is handed numbered orders, and reports each by its number."""

    def __init__(self, assignment: ProduceAssignment | CommitAssignment, clock: Clock, events: Events) -> None:
        self._link = ExecLink(assignment, events, self._take)
        self._sending = Sending(assignment, clock)
        self._open: set[int] = set()

    @abstractmethod
    def _next_order(self) -> tuple[int, bytes]:
        """The order that is due, its row in the spool begun."""

    def prepare(self) -> None:
        """Start the program; return when it is ready."""
        self._link.start()

    def obey(self, order: Order) -> None:
        """``go`` starts the schedule, ``stop`` ends it."""
        self._sending.obey(order)

    def step(self, wait_us: int) -> None:
        """Hand over the record that is due; while none is, take reports."""
        early_us = self._sending.early_us()
        if early_us is None:
            self._link.hear(wait_us / US_PER_S)
        elif early_us <= 0:
            self._send()
            self._link.hear(0)
        else:
            self._sending.idle()
            self._link.hear(min(early_us, wait_us) / US_PER_S)

    def _send(self) -> None:
        seq, order = self._next_order()
        if self._link.write(order):
            self._open.add(seq)
        else:
            self._sending.ended(seq, Status.FAILED, KafkaError._QUEUE_FULL)  # noqa: SLF001  # librdkafka's own errors

    def _take(self, report: Report) -> None:
        match report:
            case Acked(seq=seq, partition=partition, offset=offset):
                self._settle(seq)
                self._sending.ended(seq, Status.OK, KafkaError.NO_ERROR, partition=partition, offset=offset)
            case Failed(seq=seq):
                self._settle(seq)
                self._sending.ended(seq, *verdict(report))
            case _:
                raise WorkloadError(f"{report.say} was reported by a client that sends, and reads nothing")

    def _settle(self, seq: int) -> None:
        if seq not in self._open:
            raise WorkloadError(
                f"the client reported record {seq}, which is not open: it was told twice, or never sent"
            )
        self._open.remove(seq)

    def answer(self) -> dict[str, Any] | None:
        """After ``stop``: how many records still have no final status, which is none unless the program forgot them."""
        return self._sending.answer()

    def progress(self) -> dict[str, Any]:
        """Counts, lateness and latencies since the last call."""
        return self._sending.tally.progress() | {"traffic": self._link.traffic}

    def counters(self) -> dict[str, int]:
        """Records by status; ``sent`` less the others is what got no report."""
        return self._sending.tally.counts()

    def close(self) -> None:
        """Have the program close and end; bounded in time."""
        self._link.close()


def verdict(failed: Failed) -> tuple[Status, int]:
    """What a failure leaves a record in, and the code of its error."""
    code = code_of(failed.error)
    if failed.in_doubt is None:
        status = reported(code)
        return (Status.IN_DOUBT if status is Status.OK else status), code
    return (Status.IN_DOUBT if failed.in_doubt else Status.FAILED), code


class ExecProducer(ExecSender):
    """``client.Client`` over a program that produces."""

    def __init__(self, assignment: ProduceAssignment, clock: Clock, events: Events) -> None:
        super().__init__(assignment, clock, events)
        told = self._told = assignment
        self._stream = Stream(told.seed, told.workload, told.record_size_min, told.record_size_max, told.keys)
        self._filler = Filler(told.record_size_max)

    def _next_order(self) -> tuple[int, bytes]:
        draw = self._stream.draw(self._sending.next)
        seq, intended_us = self._sending.begin(draw.size_bytes)
        mark = pack(self._told.producer_id, seq, intended_us)
        return seq, send_order(seq, draw.key, self._filler.value(seq, draw.size_bytes), [(HEADER, mark)])


class ExecConsumer:
    """``client.Client`` over a program that consumes."""

    def __init__(self, assignment: ConsumeAssignment, clock: Clock, events: Events) -> None:
        self._told = assignment
        self._link = ExecLink(assignment, events, self._take)
        self._receiving = Receiving(assignment, clock, events)

    def prepare(self) -> None:
        """Settle where every partition begins, then start the program; return when it reads."""
        starts = self._receiving.begin_at(settle_starts(self._told))
        self._link.start(starts if self._told.group is None else None)
        if not self._receiving.assignments:
            raise WorkloadError("the client said ready before it said which partitions are assigned to it")

    def _take(self, report: Report) -> None:
        match report:
            case Record():
                self._receiving.take(
                    unpack([(HEADER, report.mark)]),
                    partition=report.partition,
                    offset=report.offset,
                    high_watermark=report.high_watermark,
                    leader_epoch=report.leader_epoch,
                    size_bytes=report.size_bytes,
                )
            case Assigned(partitions=partitions, member=member):
                self._receiving.assigned(partitions, member)
            case Revoked(partitions=partitions):
                self._receiving.revoked(partitions)
            case _:
                raise WorkloadError(f"{report.say} was reported by a client that reads, and sends nothing")

    def obey(self, order: Order) -> None:
        """``drain`` sets the end; a consumer has no schedule, so ``go`` and ``stop`` are not for it."""
        self._receiving.obey(order)

    def step(self, wait_us: int) -> None:
        """Take what is reported, or wait for it."""
        self._link.hear(wait_us / US_PER_S)
        self._receiving.idle()

    def answer(self) -> dict[str, Any] | None:
        """After ``drain``: how many offsets are missing, by partition; none when all were reached."""
        return self._receiving.answer()

    def progress(self) -> dict[str, Any]:
        """Counts and end-to-end latencies since the last call; ``ok`` are the records delivered."""
        return self._receiving.tally.progress() | {"traffic": self._link.traffic}

    def counters(self) -> dict[str, int]:
        """Records delivered, ours and foreign, and how often partitions were assigned."""
        return self._receiving.counters()

    def close(self) -> None:
        """Have the program commit, leave its group and end; bounded in time."""
        self._link.close()


class ExecCommitter(ExecSender):
    """``client.Client`` over a program that commits."""

    def __init__(self, assignment: CommitAssignment, clock: Clock, events: Events) -> None:
        super().__init__(assignment, clock, events)
        self._told = assignment

    def _next_order(self) -> tuple[int, bytes]:
        told = self._told
        seq, _ = self._sending.begin(0)
        return seq, commit_order(seq, told.group_of(seq), told.partition_of(seq), told.offset_of(seq))

"""Workload adapters of client programs (``client: exec`` and ``client: java``).

The worker hands a program each order when it is due, over the protocol of ``docs/EXEC.md``; the program reports each
record, commit or delivered record.

Rules:

* An order that cannot be written because the program reads too slowly fails at once.
* The program reports every order once, by its number; a report about any other number is an error. The program reports
  whether a failed record is in doubt; otherwise the error code decides, as for every client (``spool.status_of_code``).
* A consumer's start offsets are fixed before its program starts, so it cannot miss records that are produced later. The
  time of a delivery is the time at which its report is read.
* Errors are named as in Kafka or librdkafka.
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
    ClientError,
    Died,
    Failed,
    Ready,
    Record,
    Report,
    Revoked,
    Traffic,
    close_order,
    commit_order,
    parse_report,
    send_order,
    start_order,
)
from aftershock.workloads.adapters.receiving import ReceiveRecorder, ReceivingClient, resolve_start_offsets
from aftershock.workloads.adapters.sending import SendingClient, SendRecorder
from aftershock.workloads.load.assignment import Assignment, CommitAssignment, ConsumeAssignment, ProduceAssignment
from aftershock.workloads.load.events import Clock, Events
from aftershock.workloads.load.schedule import HEADER, US_PER_S, Filler, Stream, pack, unpack
from aftershock.workloads.load.spool import Status, status_of_code

UNKNOWN_SERVER_ERROR = -1

_CODES: dict[str, int] = {
    # librdkafka's own errors, and its names for Kafka's
    **{name: code for name, code in vars(KafkaError).items() if isinstance(code, int)},
    **{code.name.upper(): int(code) for code in ErrorCode},
}


def error_code(name: str) -> int:
    """Return the code of an error by its name in Kafka or in librdkafka; -1 for an unknown name."""
    return _CODES.get(name, UNKNOWN_SERVER_ERROR)


CLOSE_S = 5.0
"""Time limit for a program to close: less than the runner gives the worker."""

_PREPARE_STEP_S = 0.1
_LOG = logging.getLogger(__name__)


class ExecLink:
    """Starts the assignment's program, handles reports common to all programs and passes the others to ``take``."""

    def __init__(self, assignment: Assignment, events: Events, take: Callable[[Report], None]) -> None:
        self._assignment, self._events, self._take = assignment, events, take
        self._child = Child(assignment.command)
        self._ready = self._closed = False
        self.traffic: Mapping[int, tuple[int, int]] = {}

    def start(self, positions: Mapping[int, int] | None = None) -> None:
        """Send the start order, and wait until the program is ready; the caller has a deadline."""
        self._child.write(start_order(self._assignment, positions))
        while not self._ready:
            self.hear(_PREPARE_STEP_S)

    def write(self, order: bytes) -> bool:
        """Write an order; return False if the program is too far behind in reading orders."""
        return self._child.write(order)

    def hear(self, wait_s: float) -> None:
        """Process the program's reports, waiting up to ``wait_s``; ``WorkloadError`` if the program has ended."""
        for line in self._child.hear(wait_s):
            self._dispatch(parse_report(line))

    def _dispatch(self, report: Report) -> None:
        match report:
            case Ready():
                self._ready = True
            case Traffic(brokers=brokers):
                self.traffic = brokers
            case ClientError(error=error, detail=detail):
                self._events.emit("client_error", error=error, detail=detail)
            case Died(why=why):
                raise WorkloadError(f"the client {self._child.name} gave up: {why}")
            case Bye():
                self._closed = True
            case _:
                self._take(report)

    def close(self) -> None:
        """Close the program within CLOSE_S; a program that does not close in time is killed, which is logged."""
        self._child.write(close_order())
        until = time.monotonic() + CLOSE_S
        try:
            while not self._closed and (remaining_s := until - time.monotonic()) > 0:
                self.hear(remaining_s)
        except WorkloadError as error:
            _LOG.warning("the program did not say bye: %s", error)
        status = self._child.end(max(0.0, until - time.monotonic()))
        if status or not self._closed:
            _LOG.warning(
                "the program was ordered to close and ended with status %d; the limit is %.0f s", status, CLOSE_S
            )


class ExecSender(SendingClient, ABC):
    """``client.Client`` over a program that receives numbered orders and reports each by its number."""

    def __init__(self, assignment: ProduceAssignment | CommitAssignment, clock: Clock, events: Events) -> None:
        self._link = ExecLink(assignment, events, self._take)
        self._sending = SendRecorder(assignment, clock)
        self._open: set[int] = set()

    @abstractmethod
    def _next_order(self) -> tuple[int, bytes]:
        """Begin the row of the order that is due and return its number and its line."""

    def prepare(self) -> None:
        """Start the program; return when it is ready."""
        self._link.start()

    def step(self, wait_us: int) -> None:
        """Write the order that is due; if no order is due, take reports."""
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
                self._sending.ended(seq, *failure_status(report))
            case _:
                raise WorkloadError(f"{report.say} is not a report of a client that sends; see docs/EXEC.md")

    def _settle(self, seq: int) -> None:
        if seq not in self._open:
            raise WorkloadError(
                f"the client reported record {seq}, which is not open: it was reported twice or never sent"
            )
        self._open.remove(seq)

    def progress(self) -> dict[str, Any]:
        """Return counts, lateness and latencies since the last call."""
        return self._sending.tally.progress() | {"traffic": self._link.traffic}

    def close(self) -> None:
        """Close the program, within CLOSE_S."""
        self._link.close()


def failure_status(failed: Failed) -> tuple[Status, int]:
    """Return the status that a failure leaves a record in, and the code of its error."""
    code = error_code(failed.error)
    if failed.in_doubt is None:
        status = status_of_code(code)
        return (Status.IN_DOUBT if status is Status.OK else status), code
    return (Status.IN_DOUBT if failed.in_doubt else Status.FAILED), code


class ExecProducer(ExecSender):
    """``client.Client`` over a program that produces: it receives each whole record when it is due."""

    def __init__(self, assignment: ProduceAssignment, clock: Clock, events: Events) -> None:
        super().__init__(assignment, clock, events)
        self._assignment = assignment
        self._stream = Stream(
            assignment.seed,
            assignment.workload,
            assignment.record_size_min,
            assignment.record_size_max,
            assignment.keys,
        )
        self._filler = Filler(assignment.record_size_max)

    def _next_order(self) -> tuple[int, bytes]:
        draw = self._stream.draw(self._sending.next)
        seq, intended_us = self._sending.begin(draw.size_bytes)
        mark = pack(self._assignment.producer_id, seq, intended_us)
        return seq, send_order(seq, draw.key, self._filler.value(seq, draw.size_bytes), [(HEADER, mark)])


class ExecConsumer(ReceivingClient):
    """``client.Client`` over a program that consumes and reports each record that its application would see."""

    def __init__(self, assignment: ConsumeAssignment, clock: Clock, events: Events) -> None:
        self._assignment = assignment
        self._link = ExecLink(assignment, events, self._take)
        self._receiving = ReceiveRecorder(assignment, clock, events)

    def prepare(self) -> None:
        """Fix the start offsets, then start the program; return when it reads."""
        starts = self._receiving.begin_at(resolve_start_offsets(self._assignment))
        self._link.start(starts if self._assignment.group is None else None)
        if not self._receiving.assignments:
            raise WorkloadError("the client said ready before it reported its assigned partitions; see docs/EXEC.md")

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
                raise WorkloadError(f"{report.say} is not a report of a client that reads; see docs/EXEC.md")

    def step(self, wait_us: int) -> None:
        """Process the program's reports, or wait for them."""
        self._link.hear(wait_us / US_PER_S)
        self._receiving.idle()

    def progress(self) -> dict[str, Any]:
        """Return counts and end-to-end latencies since the last call; ``ok`` counts delivered records."""
        return self._receiving.tally.progress() | {"traffic": self._link.traffic}

    def close(self) -> None:
        """Order the program to commit, leave its group and exit, within CLOSE_S."""
        self._link.close()


class ExecCommitter(ExecSender):
    """``client.Client`` over a program that commits: it receives each offset when it is due."""

    def __init__(self, assignment: CommitAssignment, clock: Clock, events: Events) -> None:
        super().__init__(assignment, clock, events)
        self._assignment = assignment

    def _next_order(self) -> tuple[int, bytes]:
        assignment = self._assignment
        seq, _ = self._sending.begin(0)
        return seq, commit_order(seq, assignment.group_of(seq), assignment.partition_of(seq), assignment.offset_of(seq))

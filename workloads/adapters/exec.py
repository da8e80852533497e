"""Workload adapters of client programs (clients ``exec`` and ``java`` of a plan), which follow ``docs/EXEC.md``."""

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError

from aftershock.errors import ClientDiedError, WorkloadError
from aftershock.workloads.adapters.exec_child import Child
from aftershock.workloads.adapters.exec_orders import (
    ISOLATION,
    STOP_POLLING,
    TOPICS,
    TRANSACTIONS,
    Close,
    KeepPolling,
    Send,
    commit_order,
    start_order,
)
from aftershock.workloads.adapters.exec_protocol import (
    Acked,
    Assigned,
    Bye,
    ClientError,
    Committed,
    Died,
    Failed,
    Lost,
    MemberFenced,
    NodeDisconnected,
    Ready,
    Record,
    Report,
    RequestTimedOut,
    Revoked,
    Traffic,
    Transacted,
    error_code,
    parse_report,
)
from aftershock.workloads.adapters.exec_transactions import ExecTransactions
from aftershock.workloads.adapters.receiving import ReceiveRecorder, ReceivingClient, resolve_start_offsets
from aftershock.workloads.adapters.sending import DueRecord, PollingSender, ProduceRecorder, SendRecorder
from aftershock.workloads.load.assignment import (
    ClientAssignment,
    CommitAssignment,
    ConsumeAssignment,
    Place,
    ProduceAssignment,
)
from aftershock.workloads.load.events import CLIENT_DIED, CONNECTIONS, Clock, Events, Reported
from aftershock.workloads.load.schedule import HEADER, US_PER_S, unpack
from aftershock.workloads.load.spool import Status, status_of_code

CLOSE_S = 5.0
"""Time limit for a client program to close, shorter than the runner's time limit for the worker."""

_PREPARE_STEP_S = 0.1
_LOG = logging.getLogger(__name__)


def _beyond_first_version(assignment: ClientAssignment) -> dict[str, tuple[str, str]]:
    """Return what a plan asks beyond the protocol's first version, and a remedy, by the words of ``accepts``."""
    words: dict[str, tuple[str, str]] = {}
    pattern = assignment.pattern if isinstance(assignment, ConsumeAssignment) else None
    if assignment.more_topics or pattern:
        words[TOPICS] = "a pattern" if pattern else "several topics", "give it one `topic`"
    if isinstance(assignment, ProduceAssignment) and assignment.transaction:
        words[TRANSACTIONS] = "transactions", "remove `transaction` under `produce`"
    if isinstance(assignment, ConsumeAssignment) and assignment.isolation:
        words[ISOLATION] = f"`isolation: {assignment.isolation}`", "remove `isolation` under `consume`"
    return words


class ExecLink:
    """Connection to a client program; reports that only producers, committers or consumers write go to ``take``."""

    def __init__(self, assignment: ClientAssignment, events: Events, take: Callable[[Report], None]) -> None:
        self._assignment, self._events, self._take = assignment, events, take
        self._child = Child(assignment.command)
        self.write, self.narrow_pipe = self._child.write, self._child.narrow_pipe
        self._ready = self._closed = False
        self.accepts: set[str] = set()
        self.reports: set[str] = set()
        self.traffic: Mapping[int, tuple[int, int]] = {}  # broker → bytes (sent, received)

    def start(self, positions: Mapping[Place, int] | None = None) -> None:
        """Send the client program its start order, and wait until the client program reports ``ready``.

        Raises ``WorkloadError`` if the plan needs something that the client program does not accept.
        """
        assignment = self._assignment
        self.write(start_order(assignment, positions))
        while not self._ready:
            self.hear(_PREPARE_STEP_S)
        for word, (gift, remedy) in _beyond_first_version(assignment).items():
            if word not in self.accepts:
                raise WorkloadError(
                    f'the plan gives the client {self._child.name} {gift}, and its report ready has no "accepts": '
                    f'["{word}"]; see docs/EXEC.md, or {remedy}'
                )

    def hear(self, wait_s: float) -> None:
        """Process reports of the client program for up to ``wait_s``; raise ``WorkloadError`` if it has ended."""
        for line in self._child.hear(wait_s):
            match report := parse_report(line):
                case Ready(accepts=accepts, reports=reports):
                    self._ready, self.accepts = True, self.accepts | {*accepts}
                    self.reports |= {*reports} & {*CONNECTIONS, Reported.ATTEMPTS}
                case Traffic(brokers=brokers):
                    self.traffic = brokers
                case NodeDisconnected(broker=broker) | RequestTimedOut(broker=broker):
                    at = {} if report.at_ns is None else {"t_us": (report.at_ns - self._assignment.origin_ns) // 1000}
                    self._events.emit(report.say, node_id=broker, **at)
                case ClientError(error=error, detail=detail, fatal=fatal):
                    self._events.emit("client_error", error=error, detail=detail, fatal=fatal)
                case Died(why=why):
                    raise self._child.death(why or "without a reason")
                case Bye():
                    self._closed = True
                case _:
                    self._take(report)

    def close(self) -> None:
        """Order the client program to close; kill the client program and log a warning after CLOSE_S seconds.

        A program that ends by itself with another status than 0, and without ``bye``, has crashed while it closed.
        """
        self.write(Close().line())
        until = time.monotonic() + CLOSE_S
        try:
            while not self._closed and (remaining_s := until - time.monotonic()) > 0:
                self.hear(remaining_s)
        except WorkloadError as error:
            _LOG.warning("the client program ended without the report bye: %s", error)
            if isinstance(error, ClientDiedError) and error.status:
                why = f"{error.cause} while it closed"
                self._events.emit(CLIENT_DIED, why=why, status=error.status, lines=error.lines, closing=True)
        status = self._child.end(max(0.0, until - time.monotonic()))
        if status or not self._closed:
            _LOG.warning(
                "the client program was ordered to close and ended with status %d; the time limit is %.0f s",
                status,
                CLOSE_S,
            )


class ExecSender(PollingSender):
    """Producer or committer as a client program, which receives numbered orders and reports one result for each."""

    def __init__(self, assignment: ProduceAssignment | CommitAssignment, events: Events) -> None:
        self._link = ExecLink(assignment, events, self._take)
        self._open: set[int] = set()

    @abstractmethod
    def _next_order(self) -> tuple[int, bytes]:
        """Begin the outcome row of the due record or commit; return its number, and the order to send or commit it."""

    def prepare(self) -> None:
        self._link.start()

    def _poll(self, wait_us: int) -> None:
        self._link.hear(wait_us / US_PER_S)

    def _send(self) -> None:
        """Order the client program to send or commit; record a failure if its queue of unread orders is full."""
        self._order(*self._next_order())

    def _order(self, seq: int, order: bytes) -> None:
        if self._link.write(order):
            self._open.add(seq)
        else:
            self._sending.ended(seq, Status.FAILED, KafkaError._QUEUE_FULL)  # noqa: SLF001  # librdkafka's own errors

    def _take(self, report: Report) -> None:
        if not isinstance(report, Acked | Failed):
            raise WorkloadError(f"the client reported {report.say}, which only a consumer may report; see docs/EXEC.md")
        seq = report.seq
        if seq not in self._open:
            raise WorkloadError(
                f"the client reported record {seq}, which has no open order: the record was reported "
                "twice or never ordered"
            )
        self._open.remove(seq)
        if isinstance(report, Acked):
            place = {"partition": report.partition, "offset": report.offset}
            self._sending.ended(seq, Status.OK, KafkaError.NO_ERROR, attempts=report.attempts, **place)
            return
        code = error_code(report.error)
        # If the report has no in_doubt, the error code decides, as for every client.
        in_doubt = status_of_code(code) is not Status.FAILED if report.in_doubt is None else report.in_doubt
        status = Status.IN_DOUBT if in_doubt else Status.FAILED
        self._sending.ended(seq, status, code, attempts=report.attempts)

    def progress(self) -> dict[str, Any]:
        return self._sending.tally.progress() | {"traffic": self._link.traffic}

    def reports(self) -> Collection[str]:
        return self._link.reports

    def close(self) -> None:
        self._link.close()


class ExecProducer(ExecSender):
    """Workload producer as a client program, which is ordered to send each record at the record's intended time."""

    _sending: ProduceRecorder

    def __init__(self, assignment: ProduceAssignment, clock: Clock, events: Events) -> None:
        super().__init__(assignment, events)
        self._sending = ProduceRecorder(assignment, clock)
        self._transactions: ExecTransactions | None = None
        if assignment.transaction:
            self._transactions = ExecTransactions(
                assignment,
                clock,
                self._sending,
                write=self._link.write,
                send=self._order_send,
                in_flight=lambda: len(self._open),
            )

    def answer(self) -> dict[str, Any] | None:
        return self._sending.answer(busy=self._transactions is not None and self._transactions.busy)

    def _poll(self, wait_us: int) -> None:
        super()._poll(wait_us)
        if self._transactions is not None:
            self._transactions.turn()

    def _send(self) -> None:
        if self._transactions is None:
            super()._send()
        else:
            self._transactions.queue.put(self._sending.begin_record())

    def _take(self, report: Report) -> None:
        if isinstance(report, Transacted) and self._transactions is not None:
            self._transactions.take(report)
        else:
            super()._take(report)

    def _next_order(self) -> tuple[int, bytes]:
        record = self._sending.begin_record()
        return record.seq, _send_order(record)

    def _order_send(self, record: DueRecord) -> None:
        self._order(record.seq, _send_order(record))

    def close(self) -> None:
        try:
            super().close()
        finally:
            if self._transactions is not None:
                self._transactions.close()


def _send_order(record: DueRecord) -> bytes:
    seq, key, value, mark, topic = record
    return Send(seq=seq, topic=topic, key=key, value=value, headers=((HEADER, mark),)).line()


class ExecCommitter(ExecSender):
    """Workload committer as a client program, which is ordered to make each commit at the commit's intended time."""

    def __init__(self, assignment: CommitAssignment, clock: Clock, events: Events) -> None:
        super().__init__(assignment, events)
        self._assignment, self._sending = assignment, SendRecorder(assignment, clock)

    def _next_order(self) -> tuple[int, bytes]:
        assignment = self._assignment
        seq, _ = self._sending.begin(0)
        return seq, commit_order(assignment, seq)


class ExecConsumer(ReceivingClient):
    """Workload consumer as a client program, which reports every record that it receives."""

    def __init__(self, assignment: ConsumeAssignment, clock: Clock, events: Events) -> None:
        self._assignment = assignment
        self._topics = {topic.name for topic in assignment.topics}
        self._link = ExecLink(assignment, events, self._take)
        self._clock = clock
        self._reported_us: int | None = None
        self._receiving = ReceiveRecorder(assignment, self._time_of_report, events)

    def prepare(self) -> None:
        starts = self._receiving.begin_at(resolve_start_offsets(self._assignment))
        self._link.start(starts if self._assignment.group is None else None)
        if not self._receiving.assignments and self._assignment.members == 1:
            raise WorkloadError("the client reported ready before its assigned partitions; see docs/EXEC.md")

    def _place(self, topic: str | None, partition: int) -> Place:
        """Return a partition of a report; raise ``WorkloadError`` if the report names no topic, or an unknown one."""
        assignment = self._assignment
        if topic is None and (assignment.more_topics or assignment.pattern):
            raise WorkloadError("the client reported a partition without its topic; name the topic, see docs/EXEC.md")
        if topic is None:
            topic = assignment.topic
        elif assignment.pattern is None and topic not in self._topics:
            raise WorkloadError(f"the client reported a partition of {topic}, which it does not consume")
        return topic, partition

    def _time_of_report(self) -> int:
        """Return the time that the report in hand has, or the current time."""
        return self._clock() if self._reported_us is None else self._reported_us

    def _take(self, report: Report) -> None:
        at_ns = getattr(report, "at_ns", None)
        at_us = None if at_ns is None else max(0, (at_ns - self._assignment.origin_ns) // 1000)
        if at_us is not None and at_us > (now_us := self._clock()):
            raise WorkloadError(
                f"the client reported `{report.say}` with a time {(at_us - now_us) / 1000:.0f} ms in the future: "
                "`at_ns` is the time of CLOCK_MONOTONIC on this host, see docs/EXEC.md"
            )
        self._reported_us = at_us
        self._record(report)
        self._reported_us = None

    def _record(self, report: Report) -> None:
        match report:
            case Record():
                self._receiving.take(
                    unpack([(HEADER, report.mark)]),
                    place=self._place(report.topic, report.partition),
                    offset=report.offset,
                    high_watermark=report.high_watermark,
                    leader_epoch=report.leader_epoch,
                    size_bytes=report.size_bytes,
                )
            case Assigned(topic=topic, partitions=partitions, member=member, epoch=epoch):
                self._receiving.assigned([self._place(topic, number) for number in partitions], member, epoch)
            case Revoked(topic=topic, partitions=partitions, epoch=epoch):
                self._receiving.revoked([self._place(topic, number) for number in partitions], epoch)
            case Lost(topic=topic, partitions=partitions, epoch=epoch):
                self._receiving.lost([self._place(topic, number) for number in partitions], epoch)
            case Committed(topic=topic, offsets=offsets, took_us=took_us, epoch=epoch):
                committed = {self._place(topic, number): offset for number, offset in offsets.items()}
                self._receiving.committed(committed, took_us, epoch)
            case MemberFenced(error=error, took_us=took_us):
                self._receiving.fenced(error, took_us)
            case _:
                raise WorkloadError(f"the client reported {report.say}, which no consumer may report; see docs/EXEC.md")

    def keep_polling(self, polls: bool) -> None:  # noqa: FBT001 -- a switch
        """Order the program to stop or resume polling; a program that accepts no such order blocks on its full pipe."""
        if STOP_POLLING in self._link.accepts:
            self._link.write(KeepPolling(do="resume_polling" if polls else STOP_POLLING).line())
        else:
            super().keep_polling(polls)
            self._link.narrow_pipe()

    def step(self, wait_us: int) -> None:
        if self._polls:
            self._link.hear(wait_us / US_PER_S)
        else:
            time.sleep(wait_us / US_PER_S)
        self._receiving.idle()

    def progress(self) -> dict[str, Any]:
        return self._receiving.tally.progress() | {"traffic": self._link.traffic}

    def reports(self) -> Collection[str]:
        return self._link.reports

    def close(self) -> None:
        self._link.close()

"""The user's own program under open-loop load: it is handed each order when it is due.

Rules: an order that the program is too far behind to be handed fails at once; every order is reported once, by the
number that it was handed over with; a report about any other is an error. Whether a failure leaves doubt is the
program's to say; where it doesn't, the error decides, as for every client (``status.reported``).
"""

from abc import ABC, abstractmethod
from typing import Any

from confluent_kafka import KafkaError

from aftershock.errors import WorkloadError
from aftershock.workloads.assignment import CommitAssignment, ProduceAssignment
from aftershock.workloads.clients.error_codes import code_of
from aftershock.workloads.clients.exec_link import ExecLink
from aftershock.workloads.clients.exec_protocol import Acked, Failed, Report
from aftershock.workloads.clients.sending import Sending
from aftershock.workloads.clock import Clock
from aftershock.workloads.events import Events
from aftershock.workloads.load import US_PER_S
from aftershock.workloads.orders import Order
from aftershock.workloads.status import Status, reported


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

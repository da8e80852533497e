"""The user's own consumer: a program that reports every record that its application would see.

Rules: where it begins is settled before it starts, so nothing produced later can be missed by being early; a record is
noted when its report is read.
"""

from typing import Any

from aftershock.errors import WorkloadError
from aftershock.workloads.assignment import ConsumeAssignment
from aftershock.workloads.clients.exec_link import ExecLink
from aftershock.workloads.clients.exec_protocol import Assigned, Record, Report, Revoked
from aftershock.workloads.clients.receiving import Receiving
from aftershock.workloads.clients.starts import settle_starts
from aftershock.workloads.clock import Clock
from aftershock.workloads.events import Events
from aftershock.workloads.load import US_PER_S
from aftershock.workloads.orders import Order
from aftershock.workloads.record import HEADER, unpack


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

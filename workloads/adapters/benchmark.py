"""Kafka's ProducerPerformance as a workload producer (``client: java`` with the setting ``num-records``).

The tool drives its own load, at the plan's rate, and computes its own statistic. It reports each record's times, from
which the outcome rows are written as for every client. A row's intended time is that of the schedule, which the tool
never precedes, because it starts at the schedule's start and keeps the average rate.
"""

from collections.abc import Collection
from typing import Any

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters.exec import ExecLink
from aftershock.workloads.adapters.exec_orders import Go as StartOwnLoad
from aftershock.workloads.adapters.exec_protocol import AckedAll, Failed, Report, Sent, Summary, error_code
from aftershock.workloads.adapters.sending import SendingClient, SendRecorder
from aftershock.workloads.load.assignment import Go, Order, ProduceAssignment, Stop
from aftershock.workloads.load.events import Clock, Events
from aftershock.workloads.load.schedule import US_PER_S
from aftershock.workloads.load.spool import Status, status_of_code


class BenchmarkProducer(SendingClient):
    """Producer that sends ``num_records`` records by itself from the order ``go`` on, whatever ends the load."""

    _sending: "BenchmarkRecorder"

    def __init__(self, assignment: ProduceAssignment, clock: Clock, events: Events) -> None:
        if assignment.life:
            raise WorkloadError("Kafka's ProducerPerformance can't continue after a restart: use a plan without one")
        self._assignment, self._clock, self._events = assignment, clock, events
        self._link = ExecLink(assignment, events, self._take)
        self._reported_us: int | None = None
        self._sending = BenchmarkRecorder(assignment, self._time_of_report)

    def prepare(self) -> None:
        self._link.start()

    def obey(self, order: Order) -> None:
        super().obey(order)
        if isinstance(order, Go):
            start_us = order.start_us + self._assignment.offset_us
            start_ns = self._assignment.origin_ns + start_us * 1000
            self._link.write(StartOwnLoad(start_ns=start_ns, start_us=start_us).line())

    def step(self, wait_us: int) -> None:
        self._link.hear(wait_us / US_PER_S)
        self._sending.idle()

    def _time_of_report(self) -> int:
        """Return the time of what is reported, or the current time."""
        return self._clock() if self._reported_us is None else self._reported_us

    def _take(self, report: Report) -> None:
        origin_ns, sending = self._assignment.origin_ns, self._sending
        match report:
            case Sent(seq=seq, at_ns=times_ns):
                if seq != sending.next:
                    raise WorkloadError(f"the client reported that it sent record {seq}, not {sending.next}, next")
                for at_ns in times_ns:
                    self._reported_us = (at_ns - origin_ns) // 1000
                    sending.sent()
            case AckedAll(rows=rows):
                for seq, at_ns, partition, offset in rows:
                    self._reported_us = (at_ns - origin_ns) // 1000
                    sending.ended(seq, Status.OK, 0, partition=partition, offset=offset)
            case Failed(seq=seq, error=error):
                code = error_code(error)
                sending.ended(seq, status_of_code(code), code)
            case Summary(text=text):
                self._events.emit("summary", text=text)
            case _:
                raise WorkloadError(f"the client reported {report.say}, which a benchmark does not report")
        self._reported_us = None

    def progress(self) -> dict[str, Any]:
        return self._sending.tally.progress() | {"traffic": self._link.traffic}

    def reports(self) -> Collection[str]:
        return self._link.reports

    def close(self) -> None:
        self._link.close()


class BenchmarkRecorder(SendRecorder):
    """Outcome rows of the tool's records; the load has ended when all of them have a result."""

    def __init__(self, assignment: ProduceAssignment, clock: Clock) -> None:
        super().__init__(assignment, clock)
        self._records, self._size_bytes = assignment.num_records or 0, assignment.record_size_max
        self._open: set[int] = set()

    def obey(self, order: Order) -> None:
        super().obey(order)
        if isinstance(order, Stop):
            self._end = self._records

    def sent(self) -> None:
        self._open.add(self.begin(self._size_bytes)[0])

    def ended(self, seq: int, status: Status, code: int, **details: int) -> None:
        if seq not in self._open:
            raise WorkloadError(f"the client reported a result of record {seq}, which was not sent, or has one already")
        self._open.remove(seq)
        super().ended(seq, status, code, **details)

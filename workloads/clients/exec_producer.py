"""The user's own producer: a program that is handed each record, whole, when it is due."""

from aftershock.workloads.assignment import ProduceAssignment
from aftershock.workloads.clients.exec_protocol import send_order
from aftershock.workloads.clients.exec_sender import ExecSender
from aftershock.workloads.clock import Clock
from aftershock.workloads.events import Events
from aftershock.workloads.load import Stream
from aftershock.workloads.record import HEADER, Filler, pack


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

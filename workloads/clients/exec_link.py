"""The conversation with one client program: what every op of an ``exec`` or ``java`` client does alike."""

import logging
import time
from collections.abc import Callable, Mapping

from aftershock.errors import WorkloadError
from aftershock.workloads.assignment import Assignment
from aftershock.workloads.clients.exec_child import Child
from aftershock.workloads.clients.exec_protocol import (
    Bye,
    Died,
    Ready,
    Report,
    Traffic,
    Trouble,
    close_order,
    parse_report,
    start_order,
)
from aftershock.workloads.events import Events

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

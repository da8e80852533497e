"""The run's clock: integer microseconds since the run's origin, the same in every process of the host.

``time.monotonic_ns`` reads Linux's CLOCK_MONOTONIC, which all processes share, so a row written by one process can be
compared with a row written by another.

What happens to a client beside its records, one JSON object a line, in a file that many processes append to.

A line is one ``write`` to a descriptor opened for appending, so lines of different processes don't mix.

Running counts of one client, for the live display and the warm-up. The evidence is the spool, never this.
"""

import json
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from aftershock.workloads.load.assignment import Assignment
from aftershock.workloads.load.spool import Status

Clock = Callable[[], int]


def run_clock(origin_ns: int) -> Clock:
    """A function that tells the microseconds since ``origin_ns`` (a ``time.monotonic_ns()`` taken once for the run)."""
    monotonic_ns = time.monotonic_ns

    def now_us() -> int:
        return (monotonic_ns() - origin_ns) // 1000

    return now_us


class Events:
    """Appends the events of one worker to ``assignment.events``."""

    def __init__(self, assignment: Assignment, clock: Clock) -> None:
        self._descriptor = os.open(assignment.events, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        self._who = {name: getattr(assignment, name) for name in ("arm", "workload", "worker", "op")}
        self._clock = clock

    def emit(self, event: str, **details: Any) -> None:
        """Write ``{"t_us", "arm", "workload", "worker", "op", "event", ...details}``, now."""
        line = {"t_us": self._clock(), "event": event} | self._who | details
        os.write(self._descriptor, json.dumps(line, sort_keys=True).encode() + b"\n")


WINDOW = 200


class Tally:
    """Counts since the start; latencies and latenesses since the last ``progress``, at most the last WINDOW of each."""

    def __init__(self) -> None:
        self.sent = 0
        self._by_status = dict.fromkeys(Status, 0)
        self._latency_us: deque[int] = deque(maxlen=WINDOW)
        self._late_us: deque[int] = deque(maxlen=WINDOW)

    @property
    def done(self) -> int:
        """How many records have their final status."""
        return sum(self._by_status.values())

    def sent_late(self, late_us: int) -> None:
        """One more record was sent, ``late_us`` after it was meant to be."""
        self.sent += 1
        self._late_us.append(late_us)

    def never_sent(self) -> None:
        """One more record that there was nobody to send: due, and failed."""
        self.sent += 1
        self._by_status[Status.FAILED] += 1

    def ended(self, status: Status, latency_us: int) -> None:
        """One more record has its final status. Only successes have a latency worth showing."""
        self._by_status[status] += 1
        if status is Status.OK:
            self._latency_us.append(latency_us)

    def counts(self) -> dict[str, int]:
        """``sent``, ``ok``, ``failed``, ``in_doubt``."""
        return {"sent": self.sent} | {status.text: count for status, count in self._by_status.items()}

    def progress(self) -> dict[str, Any]:
        """The counts, the p99 lateness and the latencies since the last call."""
        late = sorted(self._late_us)
        window = list(self._latency_us)
        self._late_us.clear()
        self._latency_us.clear()
        return self.counts() | {"late_p99_us": late[len(late) * 99 // 100] if late else 0, "window": window}

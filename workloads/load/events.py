"""The run's clock, and the event log and running counts of one client."""

import json
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from aftershock.redaction import redact_data
from aftershock.workloads.load.assignment import Assignment
from aftershock.workloads.load.spool import Status

Clock = Callable[[], int]


def run_clock(origin_ns: int) -> Clock:
    """Return a function that returns the microseconds since ``origin_ns`` on a clock that all processes share."""
    monotonic_ns = time.monotonic_ns
    return lambda: (monotonic_ns() - origin_ns) // 1000


class Events:
    """Writer of the run's event log, a file that many processes append to, with one ``write`` call for each event."""

    def __init__(self, assignment: Assignment, clock: Clock) -> None:
        self._descriptor = os.open(assignment.events, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        self._identity = {name: getattr(assignment, name) for name in ("arm", "workload", "worker", "op")}
        self._clock = clock

    def emit(self, event: str, **details: Any) -> None:
        line = {"t_us": self._clock(), "event": event} | self._identity | redact_data(details)
        os.write(self._descriptor, json.dumps(line, sort_keys=True).encode() + b"\n")


WINDOW = 200


class Tally:
    """Counts of a client's records and commits for the live display and the warm-up rule; checks do not use them.

    ``progress`` returns at most WINDOW latencies, and at most WINDOW delays of sending, since its previous call.
    """

    def __init__(self) -> None:
        self.sent = 0
        self._by_status = dict.fromkeys(Status, 0)
        self._latency_us: deque[int] = deque(maxlen=WINDOW)
        self._late_us: deque[int] = deque(maxlen=WINDOW)

    @property
    def done(self) -> int:
        return sum(self._by_status.values())

    def sent_late(self, late_us: int) -> None:
        self.sent += 1
        self._late_us.append(late_us)

    def never_sent(self) -> None:
        """Count a record that was due while its producer was down, and that therefore failed without being sent."""
        self.sent += 1
        self._by_status[Status.FAILED] += 1

    def ended(self, status: Status, latency_us: int) -> None:
        self._by_status[status] += 1
        if status is Status.OK:
            self._latency_us.append(latency_us)

    def counts(self) -> dict[str, int]:
        return {"sent": self.sent} | {status.text: count for status, count in self._by_status.items()}

    def progress(self) -> dict[str, Any]:
        lateness_us, latencies_us = sorted(self._late_us), list(self._latency_us)
        self._late_us.clear()
        self._latency_us.clear()
        return self.counts() | {
            "late_p99_us": lateness_us[len(lateness_us) * 99 // 100] if lateness_us else 0,
            "window": latencies_us,
        }

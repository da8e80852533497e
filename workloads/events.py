"""What happens to a client beside its records, one JSON object a line, in a file that many processes append to.

A line is one ``write`` to a descriptor opened for appending, so lines of different processes don't mix.
"""

import json
import os
from typing import Any

from aftershock.workloads.assignment import Assignment
from aftershock.workloads.clock import Clock


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

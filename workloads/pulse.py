"""A worker's sign of life: what it last said of itself, where any process can read it without asking the worker.

Rules: a few numbers in a file mapped into memory, in the worker's spool, so that a beat costs no system call and a
frozen or killed worker's last one stays. A worker beats about twice a second from the moment that it is ready.
"""

import mmap
import os
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from aftershock.workloads.assignment import Assignment

FILE = "pulse"
_BEAT = Struct("<qqq")


class Beat(NamedTuple):
    """``t_us``: when (run clock). ``ok``: what has succeeded in this life. ``late_us``: p99 behind its schedule."""

    t_us: int
    ok: int
    late_us: int


class Pulse:
    """Beats for one worker, whose spool is there already."""

    def __init__(self, assignment: Assignment) -> None:
        descriptor = os.open(assignment.spool / assignment.worker / FILE, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            os.truncate(descriptor, _BEAT.size)
            self._map = mmap.mmap(descriptor, _BEAT.size)
        finally:
            os.close(descriptor)

    def beat(self, beat: Beat) -> None:
        """Leave the latest."""
        _BEAT.pack_into(self._map, 0, *beat)


def read_pulse(spool: Path, worker: str) -> Beat | None:
    """The last beat of a worker in the spools of its run; None if it never beat."""
    with suppress(OSError):
        left = (spool / worker / FILE).read_bytes()
        if len(left) == _BEAT.size:
            return Beat(*_BEAT.unpack(left))
    return None

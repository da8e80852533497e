"""A cell of the coverage: which fault struck whom, in what state the cluster was then, and who was sending.

::

    fault      its kind, ``kill``
    role       whom it hit: ``leader``, ``client link``, ``Produce requests`` (`role.py`)
    phase      what it struck into: ``steady``, ``overlapping`` another fault, ``recovering`` from one
    workload   client, operation and promise: ``confluent produce acks=all idempotent`` (`worker.py`)

A cell is exercised by a run in which the fault's witness passed, its exposure shows that traffic met it, and records of
that workload were due while it was in force.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

Phase = Literal["steady", "overlapping", "recovering"]
PHASES: tuple[Phase, ...] = ("steady", "overlapping", "recovering")
RECOVERING_MS = 10_000  # leaders return, groups settle and back-offs end in it (measured: demo, broker-loss)


class Cell(NamedTuple):
    """The four coordinates."""

    fault: str
    role: str
    phase: Phase
    workload: str


def struck(start_ms: float, others: Iterable[tuple[float, float]]) -> Phase:
    """What a fault strikes into at ``start_ms``; ``others``: when each of the other faults began and was healed."""
    windows = [window for window in others if window[0] <= start_ms]
    if any(start_ms < end for _, end in windows):
        return "overlapping"
    if any(start_ms < end + RECOVERING_MS for _, end in windows):
        return "recovering"
    return "steady"

"""Windows of a run (``warmup``, ``steady``, ``fault``, ``recovery``, ``fault/<id>``, and ``run``, all after warm-up).

Windows come from ``phases.json``, which holds times of the journal; the start of a window is inclusive, its end
exclusive. A record belongs to the windows of its *intended* time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

RUN = "run"

Interval: TypeAlias = tuple[int, int]
Windows: TypeAlias = Mapping[str, tuple[Interval, ...]]


@dataclass(frozen=True)
class Phase:
    """Window of a run, start inclusive and end exclusive, in microseconds from the run's start, as in the journal.

    ``block`` is the number (from 1) of the block (repetition of the plan's faults) that contains the window, 0 outside
    all blocks. ``entry`` is the id of the window's fault in the plan, without the suffixes of rounds and blocks.
    """

    name: str
    fault: str | None
    start_us: int
    end_us: int
    block: int = 0
    entry: str | None = None


def windows_of(phases: Sequence[Phase]) -> dict[str, tuple[Interval, ...]]:
    """Map each window to its intervals in microseconds of the run, in order and with overlapping intervals merged."""
    intervals: dict[str, list[Interval]] = {}
    for phase in phases:
        faults = dict.fromkeys(fault for fault in (phase.fault, phase.entry) if fault)
        for name in (phase.name, *(f"{phase.name}/{fault}" for fault in faults)):
            intervals.setdefault(name, []).append((phase.start_us, phase.end_us))
    after_warmup = [phase for phase in phases if phase.name != "warmup"]
    if after_warmup:
        start_us, end_us = min(phase.start_us for phase in after_warmup), max(phase.end_us for phase in after_warmup)
        intervals[RUN] = [(start_us, end_us)]
    return {name: merged(spans) for name, spans in intervals.items()}


def overlap_us(intervals: Sequence[Interval], start_us: int, end_us: int) -> int:
    """Return how much of the time from ``start_us`` to ``end_us`` lies in the disjoint ``intervals``."""
    return sum(max(0, min(end, end_us) - max(start, start_us)) for start, end in intervals)


def merged(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Merge overlapping intervals, and return disjoint intervals in order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif start < end:
            joined.append((start, end))
    return tuple(joined)

"""Which windows a moment belongs to: ``warmup steady fault recovery fault/<id>``, and ``run``, all after warm-up.

Rules: windows come from ``phases.json``, cut from the journal's real times; start inclusive, end exclusive. A record
belongs to the windows of its *intended* time. Windows may overlap, and a record may be in several.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F

from aftershock.results.evidence.evidence import Phase

RUN = "run"

Interval: TypeAlias = tuple[int, int]
Windows: TypeAlias = Mapping[str, tuple[Interval, ...]]


def windows_of(phases: Sequence[Phase]) -> dict[str, tuple[Interval, ...]]:
    """Every window's intervals in order, overlapping ones merged, in microseconds of the run."""
    named: dict[str, list[Interval]] = {}
    for phase in phases:
        named.setdefault(phase.name, []).append((phase.start_us, phase.end_us))
        for fault in dict.fromkeys(each for each in (phase.fault, phase.entry) if each):
            named.setdefault(f"{phase.name}/{fault}", []).append((phase.start_us, phase.end_us))
    judged = [(phase.start_us, phase.end_us) for phase in phases if phase.name != "warmup"]
    if judged:
        named[RUN] = [(min(start for start, _ in judged), max(end for _, end in judged))]
    return {name: merged(intervals) for name, intervals in named.items()}


def merged(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """The same moments as disjoint intervals in order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif start < end:
            joined.append((start, end))
    return tuple(joined)


def length_s(window: str, windows: Windows) -> float:
    """How long a window is, in seconds."""
    return sum(end - start for start, end in windows.get(window, ())) / 1e6


def moment(at_us: int) -> Column:
    """A time as a bigint, however small: arrays of such would else mix types."""
    return F.lit(at_us).cast("bigint")

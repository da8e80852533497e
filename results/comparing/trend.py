"""Whether a nightly series has changed, when, and by how much: change points, not thresholds.

Rules. PELT with a kernel (``ruptures``, rbf) on logarithms of an arm's ratio to its control, so that what slows both on
a night cancels; on logarithms of the value itself where there is no control. Penalty 6 and segments of at least 3
nights raised no alarm in simulations without a shift. A change under 10 % is none. Before 24 nights that penalty finds
nothing whatever happens, so the answer is inconclusive; the last 120 nights are looked at, and a change counts while it
is among the last 45 (one of x1.2 may take 27 nights to be seen). A censored night has no value: it is
counted, and while one is among the last three nights the series is inconclusive.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from statistics import median
from typing import Literal, TypeAlias

import numpy as np

from aftershock.results.comparing.history import Line
from aftershock.results.comparing.known_issues import Issue
from aftershock.results.comparing.stats import geometric_mean

PENALTY = 6
SEGMENT_MIN = 3
NIGHTS_MIN = 24
NIGHTS_MAX = 120
RECENT_NIGHTS = 45
FLOOR = 1.10
_FRESH = 3

Word: TypeAlias = Literal["regressed", "known", "improved", "steady", "inconclusive"]


@dataclass(frozen=True)
class Point:
    """A night of a series: the value (a ratio where the series is of ratios), None if censored, and its last line."""

    value: float | None
    line: Line


@dataclass(frozen=True)
class Change:
    """A shift that lasted: its first night, medians of the stretches before and after, and what else changed then."""

    night: date
    before: float
    after: float
    run_before: str
    run_after: str
    besides: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """How many times what it was."""
        return self.after / self.before


@dataclass(frozen=True)
class Trend:
    """What became of one series. ``relative``: its values are ratios to the control arm's."""

    plan: str
    client: str
    metric: str
    window: str
    unit: str
    relative: bool
    status: Word
    nights: int
    censored: int
    why: str
    next: str | None = None
    change: Change | None = None


def trends(lines: Sequence[Line], issues: Sequence[Issue] = ()) -> tuple[Trend, ...]:
    """Every series of the ledger, in order of its name. An issue has expired by the ledger's own last night."""
    last = max((line.night for line in lines), default=date.min)
    return tuple(_trend(own, issues, last) for own in series(lines))


def points(own: Sequence[Line]) -> tuple[list[Point], bool]:
    """The nights of one series in order, and whether they are ratios: if any has one. Then a night without is None."""
    relative = any(line.ratio_to is not None for line in own)
    nights = (list(lines) for _, lines in groupby(own, key=lambda line: line.night))
    return [Point(_mean(lines, relative=relative), lines[-1]) for lines in nights], relative


def change_points(values: Sequence[float]) -> list[int]:
    """Where a new level begins: indices into ``values``, none of them 0."""
    from ruptures import Pelt  # noqa: PLC0415 - two seconds that only this function needs

    if len(values) < 2 * SEGMENT_MIN:
        return []
    signal = np.log(np.asarray(values))
    *found, _ = Pelt(model="rbf", min_size=SEGMENT_MIN, jump=1).fit(signal).predict(pen=PENALTY)
    return [int(index) for index in found]


def series(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """The lines of each series, by night."""
    ordered = sorted(lines, key=lambda line: (*_key(line), line.night, line.run_id))
    return (list(own) for _, own in groupby(ordered, key=_key))


def _key(line: Line) -> tuple[str, ...]:
    return line.plan, line.workload, line.arm, line.metric, line.window


def _mean(lines: Sequence[Line], *, relative: bool) -> float | None:
    """Several runs of one night are one night."""
    pairs = [(line.value, line.ratio_to if relative else 1.0) for line in lines]
    ratios = [value / other for value, other in pairs if value is not None and other is not None]
    return geometric_mean(ratios) if len(ratios) == len(pairs) else None


def _trend(own: Sequence[Line], issues: Sequence[Issue], last: date) -> Trend:
    nights, relative = points(own)
    nights = nights[-NIGHTS_MAX:]
    known = [point for point in nights if point.value is not None]
    line, censored = own[-1], len(nights) - len(known)
    named = (line.plan, f"{line.workload}/{line.arm}", line.metric, line.window, line.unit, relative)
    unsure = _unsure(nights, len(known))
    if unsure:
        return Trend(*named, "inconclusive", len(known), censored, *unsure)
    change = _last_change(known)
    if change is None:
        return Trend(*named, "steady", len(known), censored, "no lasting change of a tenth or more")
    status, why = _judged(change, line, issues, last)
    advice = f"compare {change.run_before} {change.run_after}" if status == "regressed" else None
    return Trend(*named, status, len(known), censored, why, advice and f"aftershock {advice}", change)


def _unsure(nights: Sequence[Point], known: int) -> tuple[str, str] | None:
    missing = [point.line.run_id for point in nights[-_FRESH:] if point.value is None]
    if missing:
        return f"{len(missing)} of the last {_FRESH} nights are censored", f"see the verdict of {missing[-1]}"
    if known < NIGHTS_MIN:
        return f"too few nights: {known} of {NIGHTS_MIN}", f"{NIGHTS_MIN - known} more nights"
    return None


def _last_change(known: Sequence[Point]) -> Change | None:
    """The last of the recent ones that is large enough."""
    values = [point.value for point in known if point.value is not None]
    bounds = [0, *change_points(values), len(values)]
    for before, at, after in reversed(list(zip(bounds, bounds[1:], bounds[2:], strict=False))):
        change = _change(known, values, (before, at, after))
        if len(values) - at <= RECENT_NIGHTS and abs(math.log(change.ratio)) >= math.log(FLOOR):
            return change
    return None


def _change(known: Sequence[Point], values: Sequence[float], bounds: tuple[int, int, int]) -> Change:
    start, at, end = bounds
    one, other = known[at - 1].line, known[at].line
    about = (("host", one.host, other.host), ("Kafka", one.kafka, other.kafka), ("revision", one.git, other.git))
    besides = tuple(f"{name} {was} to {now}" for name, was, now in about if was != now)
    levels = median(values[start:at]), median(values[at:end])
    return Change(other.night, *levels, one.run_id, other.run_id, besides)


def _judged(change: Change, line: Line, issues: Sequence[Issue], last: date) -> tuple[Word, str]:
    why = f"{change.ratio:.2f} times what it was, since {change.night}"
    why += f" ({', '.join(change.besides)})" if change.besides else ""
    if change.ratio < 1:
        return "improved", why
    known = [issue for issue in issues if issue.covers(line.plan, line.arm, line.metric, change.night)]
    if valid := [issue for issue in known if not issue.expired(last)]:
        return "known", f"{why}: {valid[0].reason}, till {valid[0].until}"
    if known:
        return "regressed", f"{why}; the known issue {known[0].reason!r} expired on {known[0].until}"
    return "regressed", why

"""Detection of lasting changes in series of nightly measurements by change points, without thresholds.

The method is PELT with an rbf kernel (``ruptures``) on logarithms of an arm's ratio to the control arm, so that effects
on both arms cancel; without a control, on logarithms of the value itself. A change of a series by less than 10 % is
ignored. A series of fewer than 24 nights is inconclusive, because it is too short for PELT with penalty 6 to find a
change. The last 120 nights are examined, and only changes in the last 45 nights count (a change by a factor of 1.2 may
take 27 nights to be detected). A night with a failed quantile (a censored value) has no value, and a series with such a
night among its last three is inconclusive.

**Nights that resemble their neighbours.** PELT assumes independent nights. In simulations without a shift, penalty 6
and segments of at least 3 nights raised no alarm at independent nights, but in 11 % of the series of 90 nights at an
autocorrelation of 0.7, in 24 % at 0.8, because such a series wanders. A change point is therefore accepted only if the
levels on its two sides differ by ``SHIFT_ERRORS`` standard errors that take the autocorrelation into account
(``statistics.py``; Lund et al. 2007 and Shi et al. 2022 describe how shifts and autocorrelation are mistaken for each
other). Change points are examined by binary segmentation (Scott and Knott 1974): the clearest first, in the whole
series, then the others on its two sides, so that an old change does not pass for autocorrelation. If the only recent
change of 10 % or more is not accepted, the series is inconclusive.
"""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from itertools import groupby
from statistics import median
from textwrap import fill
from typing import Any, Literal, TypeAlias

import numpy as np

from aftershock.results.compare.history import Issue, Line
from aftershock.results.compare.statistics import Dependence, Floats, dependence, effective, geometric_mean
from aftershock.results.model.text import printable

PENALTY = 6
SEGMENT_MIN = 3
NIGHTS_MIN = 24
NIGHTS_MAX = 120
RECENT_NIGHTS = 45
FLOOR = 1.10
FRESH = 3
SHIFT_ERRORS = 2.5
"""Standard errors by which two levels differ: up to an autocorrelation of 0.8 at most 7 % of series raise an alarm.

With 3.0 errors 5 % do, but a shift of a fifth is found in 74 % of series after 30 nights, in place of 90 %.
"""
ASSUMED_MAX = 0.9
"""Largest autocorrelation of nights that is assumed for a smaller estimate; with 24 nights or more it seldom binds."""

Word: TypeAlias = Literal["regressed", "known", "improved", "steady", "inconclusive"]


@dataclass(frozen=True)
class Point:
    """Night of a series, with a value or ratio (None if records failed) and its last line of the nightly ledger."""

    value: float | None
    line: Line


@dataclass(frozen=True)
class Change:
    """A lasting shift of a nightly series, with first night, medians before and after, and other changes that night."""

    night: date
    before: float
    after: float
    run_before: str
    run_after: str
    besides: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        return self.after / self.before


@dataclass(frozen=True)
class Trend:
    """Trend of one nightly series. ``relative`` is True if the values are ratios to the control arm's values."""

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
    """Return the trend of every nightly series in order of names; known issues expire with the last night."""
    last = max((line.night for line in lines), default=date.min)
    return tuple(_trend(of_series, issues, last) for of_series in series(lines))


def series(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Yield the lines of the nightly ledger for each series (plan, arm, metric, window), in order of nights."""

    def key(line: Line) -> tuple[str, ...]:
        return line.plan, line.workload, line.arm, line.metric, line.window

    ordered = sorted(lines, key=lambda line: (*key(line), line.night, line.run_id))
    return (list(of_series) for _, of_series in groupby(ordered, key=key))


def points(lines: Sequence[Line]) -> tuple[list[Point], bool]:
    """Return the nights of one series of measurements, and True if their values are ratios to the control arm.

    The value of a night is the geometric mean of the night's runs, or None if a run has no value (or ratio).
    """
    relative = any(line.ratio_to is not None for line in lines)
    nights = []
    for _, runs in groupby(lines, key=lambda line: line.night):
        night = list(runs)
        pairs = [(line.value, line.ratio_to if relative else 1.0) for line in night]
        ratios = [value / other for value, other in pairs if value is not None and other is not None]
        nights.append(Point(geometric_mean(ratios) if len(ratios) == len(pairs) else None, night[-1]))
    return nights, relative


def change_points(values: Sequence[float]) -> list[int]:
    """Return the indices at which a new level of a series begins, without index 0."""
    from ruptures import Pelt  # noqa: PLC0415 - the import takes two seconds

    if len(values) < 2 * SEGMENT_MIN:
        return []
    signal = np.log(np.asarray(values))
    *indices, _ = Pelt(model="rbf", min_size=SEGMENT_MIN, jump=1).fit(signal).predict(pen=PENALTY)
    return [int(index) for index in indices]


def accepted_shifts(values: Sequence[float], points: Sequence[int]) -> tuple[list[int], list[Dependence]]:
    """Return the change points that the autocorrelation of nights does not explain, and what it is for the others."""
    signal, accepted, doubtful = np.log(np.asarray(values)), list[int](), list[Dependence]()
    spans = [(0, len(signal), list(points))]
    while spans:
        start, end, inside = spans.pop()
        if not inside:
            continue
        shifts = {at: _shift(signal[start:end], at - start) for at in inside}
        clearest = max(inside, key=lambda at: shifts[at][0])
        if shifts[clearest][0] < SHIFT_ERRORS:
            doubtful += [nights for _, nights in shifts.values()]
            continue
        accepted.append(clearest)
        spans += [
            (start, clearest, [at for at in inside if at < clearest]),
            (clearest, end, [at for at in inside if at > clearest]),
        ]
    return sorted(accepted), doubtful


def _shift(signal: Floats, at: int) -> tuple[float, Dependence]:
    """Return by how many standard errors the levels beside a change point differ, and the dependence of nights."""
    sides = signal[:at], signal[at:]
    found = dependence(sides, ASSUMED_MAX)
    # the variance is pooled, because three nights after a shift say little about theirs
    variance = sum(float(((side - side.mean()) ** 2).sum()) for side in sides) / (len(signal) - len(sides))
    inflated = sum(effective(len(side), found.assumed).inflation / len(side) for side in sides)
    distance = abs(float(sides[1].mean() - sides[0].mean()))
    return distance / math.sqrt(variance * inflated) if variance else math.inf, found


def _trend(lines: Sequence[Line], issues: Sequence[Issue], last: date) -> Trend:
    nights, relative = points(lines)
    nights = nights[-NIGHTS_MAX:]
    measured = [(point.value, point.line) for point in nights if point.value is not None]
    line, count = lines[-1], len(measured)
    names = (line.plan, f"{line.workload}/{line.arm}", line.metric, line.window, line.unit, relative)

    def trend(status: Word, why: str, advice: str | None = None, change: Change | None = None) -> Trend:
        return Trend(*names, status, count, len(nights) - count, why, advice, change)

    missing = [point.line.run_id for point in nights[-FRESH:] if point.value is None]
    if missing:
        why = f"{len(missing)} of the last {FRESH} nights have no value, because records failed"
        return trend("inconclusive", why, f"look at the failed checks in the verdict of run {missing[-1]}")
    if count < NIGHTS_MIN:
        why, advice = f"the series has too few nights: {count} of {NIGHTS_MIN}", f"run {NIGHTS_MIN - count} more nights"
        return trend("inconclusive", why, advice)
    values = [value for value, _ in measured]
    found = change_points(values)
    accepted, doubtful = accepted_shifts(values, found)
    change = _recent_change(measured, accepted)
    if change is None:
        wandering = _recent_change(measured, found)
        if wandering is None:
            return trend("steady", "the metric has no lasting change of 10 % or more")
        assumed = max(nights.assumed for nights in doubtful)  # not empty, as `found` and `accepted` differ
        why = (
            f"{wandering.ratio:.2f} times the earlier value, since {wandering.night}, which may be chance: nights "
            f"resemble their neighbours (autocorrelation up to {assumed:.2f})"
        )
        return trend("inconclusive", why, "run more nights, or compare the arms of one run: aftershock compare RUN")

    why = f"{change.ratio:.2f} times the earlier value, since {change.night}"
    why += f" ({', '.join(change.besides)})" if change.besides else ""
    if change.ratio < 1:
        return trend("improved", why, change=change)
    covering = [issue for issue in issues if issue.covers(line.plan, line.arm, line.metric, change.night)]
    if valid := [issue for issue in covering if issue.until >= last]:
        return trend("known", f"{why}: {valid[0].reason}, till {valid[0].until}", change=change)
    if covering:
        why = f"{why}; the known issue {covering[0].reason!r} expired on {covering[0].until}"
    return trend("regressed", why, f"aftershock compare {change.run_before} {change.run_after}", change)


def _recent_change(measured: Sequence[tuple[float, Line]], points: Sequence[int]) -> Change | None:
    """Return the last change of 10 % or more in recent nights, from change points."""
    bounds = [0, *points, len(measured)]
    for before, at, after in reversed(list(zip(bounds, bounds[1:], bounds[2:], strict=False))):
        old, new = measured[at - 1][1], measured[at][1]
        about = (("host", old.host, new.host), ("Kafka", old.kafka, new.kafka), ("revision", old.git, new.git))
        besides = tuple(f"{name} {previous} to {current}" for name, previous, current in about if previous != current)
        levels = [median(value for value, _ in measured[start:end]) for start, end in ((before, at), (at, after))]
        change = Change(new.night, levels[0], levels[1], old.run_id, new.run_id, besides)
        if len(measured) - at <= RECENT_NIGHTS and abs(math.log(change.ratio)) >= math.log(FLOOR):
            return change
    return None


SCHEMA_VERSION = 1
WIDTH = 80


def exit_code(series_trends: Sequence[Trend], broken: Sequence[str]) -> int:
    """Return exit code 1 if a series regressed, 2 for an inconclusive series, a broken line or no series, else 0."""
    words = {trend.status for trend in series_trends}
    if "regressed" in words:
        return 1
    return 2 if "inconclusive" in words or broken or not series_trends else 0


def text(series_trends: Sequence[Trend], broken: Sequence[str]) -> str:
    """Format trends for a terminal (a summary, then every series that is not steady), without a final newline.

    Inconclusive series with the same reason share one line of the text, with the number of these series.
    """
    if not series_trends and not broken:
        return "the nightly ledger is empty; add judged runs: aftershock trend --add RUN"
    by_status: dict[str, list[Trend]] = {}
    for status in ("regressed", "known", "improved", "inconclusive", "steady"):
        if trends := [trend for trend in series_trends if trend.status == status]:
            by_status[status] = trends
    counts = ", ".join(f"{len(trends)} {status}" for status, trends in by_status.items())
    sentences = []
    for trend in (trend for trends in by_status.values() for trend in trends):
        if trend.change is not None:
            unit = "of the control's value" if trend.relative else trend.unit
            sentence = f"{trend.status}: {_name(trend)}: {trend.why}"
            sentence += f"; {trend.change.before:.4g} to {trend.change.after:.4g} {unit}"
            sentence += f"; {trend.censored} nights have no value" if trend.censored else ""
            sentences.append(sentence + (f"; next: {trend.next}" if trend.next else ""))
    by_reason: dict[tuple[str, str | None], list[Trend]] = {}
    for trend in by_status.get("inconclusive", ()):
        by_reason.setdefault((trend.why, trend.next), []).append(trend)
    for (why, advice), alike in by_reason.items():
        name = f"{len(alike)} series" if len(alike) > 1 else _name(alike[0])
        sentences.append(f"inconclusive: {name}: {why}; next: {advice}")
    lines = [fill(printable(sentence), WIDTH, subsequent_indent="  ") for sentence in (*sentences, *broken)]
    return "\n".join([f"{len(series_trends)} series: {counts}", *lines])


def _name(trend: Trend) -> str:
    return f"{trend.plan} {trend.client} {trend.metric} in {trend.window}"


def document(series_trends: Sequence[Trend], broken: Sequence[str]) -> dict[str, Any]:
    rows = []
    for trend in series_trends:
        row = asdict(trend)
        if trend.change is not None:
            row["change"] |= {"night": trend.change.night.isoformat(), "ratio": trend.change.ratio}
        rows.append(row)
    return {"schema_version": SCHEMA_VERSION, "series": rows, "broken": list(broken)}


def otava(lines: Sequence[Line]) -> tuple[str, int]:
    """Return the nightly ledger as CSV for Apache Otava, and how many cells were filled from another night.

    A row of the CSV is a night, a column is a series. Apache Otava needs a number in every cell, so a night without a
    value gets the previous value (the first nights get the next value), as Otava itself does with missing points.
    """
    nights = sorted({line.night for line in lines})
    columns: dict[str, list[float]] = {}
    filled = 0
    for of_series in series(lines):
        by_night = {point.line.night: point.value for point in points(of_series)[0]}
        values = [by_night.get(night) for night in nights]
        current = next((value for value in values if value is not None), None)
        if current is not None:
            line = of_series[0]
            column = columns[
                f"{line.plan}/{line.workload}/{line.arm}/{line.metric}/{line.window}".replace(" ", "_")
            ] = []
            for value in values:
                current = current if value is None else value
                column.append(current)
            filled += values.count(None)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["time", "run", "commit", *columns])
    last = {line.night: line for line in lines}
    for index, night in enumerate(nights):
        about = (f"{night} 00:00:00 +0000", last[night].run_id, last[night].git or "")
        writer.writerow([*about, *(f"{column[index]:.9g}" for column in columns.values())])
    return out.getvalue(), filled

"""Trends of nightly series: change points, not thresholds; and their output.

**Detection.** PELT with an rbf kernel (``ruptures``) on logarithms of an arm's ratio to its control, so that effects on
both arms cancel; without a control, on logarithms of the value itself. Penalty 6 and segments of at least 3 nights
raised no alarm in simulations without a shift. A change under 10 % is ignored. Before 24 nights that penalty never
finds a change, so the result is inconclusive. The last 120 nights are examined, and a change counts while it is among
the last 45 (one of x1.2 may take 27 nights to be detected). A censored night has no value. Censored nights are counted,
and a series with one among its last three nights is inconclusive.

**Output** as text for a terminal, as JSON, and the ledger as CSV for Apache Otava: a row per night, a column per
series, ``time`` first, ``run`` and ``commit`` as attributes. Otava needs a number in every cell, so a night without a
value gets the previous one (the first nights get the next one), as Otava itself does with missing points.
"""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from itertools import groupby
from statistics import median
from textwrap import fill
from typing import Any, Literal, TypeAlias

import numpy as np

from aftershock.results.compare.comparison import geometric_mean
from aftershock.results.compare.history import Issue, Line
from aftershock.results.text import printable

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
    """A night of a series: its value (a ratio in a series of ratios), None if censored, and its last line."""

    value: float | None
    line: Line


@dataclass(frozen=True)
class Change:
    """A lasting shift: its first night, the medians before and after, and other changes of that night."""

    night: date
    before: float
    after: float
    run_before: str
    run_after: str
    besides: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Ratio of the value after the change to the value before."""
        return self.after / self.before


@dataclass(frozen=True)
class Trend:
    """The result for one series. ``relative``: its values are ratios to the control arm's."""

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
    """Return the trend of every series, in order of name. Issues expire by the last night of the ledger."""
    last = max((line.night for line in lines), default=date.min)
    return tuple(_trend(own, issues, last) for own in series(lines))


def points(own: Sequence[Line]) -> tuple[list[Point], bool]:
    """Return the nights of one series, and True if they are ratios.

    In a series of ratios, a night without a ratio has the value None.
    """
    relative = any(line.ratio_to is not None for line in own)
    nights = (list(lines) for _, lines in groupby(own, key=lambda line: line.night))
    return [Point(_mean(lines, relative=relative), lines[-1]) for lines in nights], relative


def change_points(values: Sequence[float]) -> list[int]:
    """Return the indices at which a new level begins, never 0."""
    from ruptures import Pelt  # noqa: PLC0415 - the import takes two seconds

    if len(values) < 2 * SEGMENT_MIN:
        return []
    signal = np.log(np.asarray(values))
    *indices, _ = Pelt(model="rbf", min_size=SEGMENT_MIN, jump=1).fit(signal).predict(pen=PENALTY)
    return [int(index) for index in indices]


def series(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Yield the lines of each series in order of nights."""
    ordered = sorted(lines, key=lambda line: (*_key(line), line.night, line.run_id))
    return (list(own) for _, own in groupby(ordered, key=_key))


def _key(line: Line) -> tuple[str, ...]:
    return line.plan, line.workload, line.arm, line.metric, line.window


def _mean(lines: Sequence[Line], *, relative: bool) -> float | None:
    """Return the geometric mean of a night's runs, None if a run has no value."""
    pairs = [(line.value, line.ratio_to if relative else 1.0) for line in lines]
    ratios = [value / other for value, other in pairs if value is not None and other is not None]
    return geometric_mean(ratios) if len(ratios) == len(pairs) else None


def _trend(own: Sequence[Line], issues: Sequence[Issue], last: date) -> Trend:
    nights, relative = points(own)
    nights = nights[-NIGHTS_MAX:]
    known = [point for point in nights if point.value is not None]
    line, censored = own[-1], len(nights) - len(known)
    names = (line.plan, f"{line.workload}/{line.arm}", line.metric, line.window, line.unit, relative)
    missing = [point.line.run_id for point in nights[-_FRESH:] if point.value is None]
    if missing:
        why = f"{len(missing)} of the last {_FRESH} nights are censored"
        return Trend(*names, "inconclusive", len(known), censored, why, f"see the verdict of {missing[-1]}")
    if len(known) < NIGHTS_MIN:
        why, advice = f"too few nights: {len(known)} of {NIGHTS_MIN}", f"{NIGHTS_MIN - len(known)} more nights"
        return Trend(*names, "inconclusive", len(known), censored, why, advice)
    change = _last_change(known)
    if change is None:
        return Trend(*names, "steady", len(known), censored, "no lasting change of a tenth or more")
    status, why = _rated(change, line, issues, last)
    command = f"aftershock compare {change.run_before} {change.run_after}" if status == "regressed" else None
    return Trend(*names, status, len(known), censored, why, command, change)


def _last_change(known: Sequence[Point]) -> Change | None:
    """Return the last recent change that is large enough."""
    values = [point.value for point in known if point.value is not None]
    bounds = [0, *change_points(values), len(values)]
    for before, at, after in reversed(list(zip(bounds, bounds[1:], bounds[2:], strict=False))):
        last, first = known[at - 1].line, known[at].line
        about = (("host", last.host, first.host), ("Kafka", last.kafka, first.kafka), ("revision", last.git, first.git))
        besides = tuple(f"{name} {old} to {new}" for name, old, new in about if old != new)
        levels = median(values[before:at]), median(values[at:after])
        change = Change(first.night, *levels, last.run_id, first.run_id, besides)
        if len(values) - at <= RECENT_NIGHTS and abs(math.log(change.ratio)) >= math.log(FLOOR):
            return change
    return None


def _rated(change: Change, line: Line, issues: Sequence[Issue], last: date) -> tuple[Word, str]:
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


SCHEMA_VERSION = 1
WIDTH = 80


def exit_code(series_trends: Sequence[Trend], broken: Sequence[str]) -> int:
    """Return 1 if a series regressed, 2 for an inconclusive series, a broken line or no series, else 0."""
    words = {trend.status for trend in series_trends}
    if "regressed" in words:
        return 1
    return 2 if "inconclusive" in words or broken or not series_trends else 0


def text(series_trends: Sequence[Trend], broken: Sequence[str]) -> str:
    """Format for a terminal, without a final newline: the counts, then every series that is not steady."""
    if not series_trends and not broken:
        return "the ledger is empty; add judged runs: aftershock trend --add RUN"
    counts = {status: sum(trend.status == status for trend in series_trends) for status in _order(series_trends)}
    head = f"{len(series_trends)} series: " + ", ".join(f"{count} {status}" for status, count in counts.items())
    changed = [_text(trend) for status in counts for trend in series_trends if trend.status == status and trend.change]
    return "\n".join([head, *map(_wrapped, [*changed, *_unsure_texts(series_trends), *broken])])


def document(series_trends: Sequence[Trend], broken: Sequence[str]) -> dict[str, Any]:
    """Return the JSON document that ``--json`` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "series": [_row(trend) for trend in series_trends],
        "broken": list(broken),
    }


def otava(lines: Sequence[Line]) -> tuple[str, int]:
    """Return the CSV and the number of filled cells."""
    columns = {_column(own[0]): {point.line.night: point for point in points(own)[0]} for own in series(lines)}
    nights = sorted({line.night for line in lines})
    values = {
        name: [known[night].value if night in known else None for night in nights] for name, known in columns.items()
    }
    full = {name: _filled(column) for name, column in values.items() if any(value is not None for value in column)}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["time", "run", "commit", *full])
    last = {line.night: line for line in lines}
    for index, night in enumerate(nights):
        about = (f"{night} 00:00:00 +0000", last[night].run_id, last[night].git or "")
        writer.writerow([*about, *(f"{column[index]:.9g}" for column in full.values())])
    return out.getvalue(), sum(values[name].count(None) for name in full)


def _order(series_trends: Sequence[Trend]) -> list[str]:
    words = ("regressed", "known", "improved", "inconclusive", "steady")
    return [word for word in words if any(trend.status == word for trend in series_trends)]


def _unsure_texts(series_trends: Sequence[Trend]) -> Iterator[str]:
    """Yield each reason with the name of the inconclusive series, or with the number of such series."""
    unsure = [trend for trend in series_trends if trend.status == "inconclusive"]
    for why, advice in dict.fromkeys((trend.why, trend.next) for trend in unsure):
        alike = [trend for trend in unsure if (trend.why, trend.next) == (why, advice)]
        yield f"inconclusive: {f'{len(alike)} series' if len(alike) > 1 else _name(alike[0])}: {why}; next: {advice}"


def _name(trend: Trend) -> str:
    return f"{trend.plan} {trend.client} {trend.metric} in {trend.window}"


def _wrapped(sentence: str) -> str:
    return fill(printable(sentence), WIDTH, subsequent_indent="  ")


def _text(trend: Trend) -> str:
    unit = "of the control's" if trend.relative else trend.unit
    sentence = f"{trend.status}: {_name(trend)}: {trend.why}"
    if trend.change is not None:
        sentence += f"; {trend.change.before:.4g} to {trend.change.after:.4g} {unit}"
    if trend.censored:
        sentence += f"; {trend.censored} nights are censored"
    return sentence + (f"; next: {trend.next}" if trend.next else "")


def _row(trend: Trend) -> Mapping[str, Any]:
    if trend.change is None:
        return asdict(trend)
    change = asdict(trend.change) | {"night": trend.change.night.isoformat(), "ratio": trend.change.ratio}
    return asdict(trend) | {"change": change}


def _column(line: Line) -> str:
    named = (line.plan, line.workload, line.arm, line.metric, line.window)
    return "/".join(named).replace(" ", "_")


def _filled(column: Sequence[float | None]) -> list[float]:
    current = next(value for value in column if value is not None)
    values = []
    for value in column:
        current = current if value is None else value
        values.append(current)
    return values

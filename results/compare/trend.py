"""Whether a nightly series has changed, when, and by how much: change points, not thresholds.

Rules. PELT with a kernel (``ruptures``, rbf) on logarithms of an arm's ratio to its control, so that what slows both on
a night cancels; on logarithms of the value itself where there is no control. Penalty 6 and segments of at least 3
nights raised no alarm in simulations without a shift. A change under 10 % is none. Before 24 nights that penalty finds
nothing whatever happens, so the answer is inconclusive; the last 120 nights are looked at, and a change counts while it
is among the last 45 (one of x1.2 may take 27 nights to be seen). A censored night has no value: it is
counted, and while one is among the last three nights the series is inconclusive.

Trends as text for a terminal, as a JSON document, and the ledger as CSV for Apache Otava.

Rules of the CSV: a row a night, a column a series, ``time`` first, ``run`` and ``commit`` as attributes. Otava wants a
number in every cell, so a night without a value gets the one before it (the first ones, the one after), which is what
Otava itself does with points that are missing.
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


SCHEMA_VERSION = 1
WIDTH = 80


def exit_code(found: Sequence[Trend], broken: Sequence[str]) -> int:
    """1 where a series regressed, else 2 where one is inconclusive, a line was broken or there is nothing, else 0."""
    words = {trend.status for trend in found}
    if "regressed" in words:
        return 1
    return 2 if "inconclusive" in words or broken or not found else 0


def text(found: Sequence[Trend], broken: Sequence[str]) -> str:
    """For a terminal, without a newline at its end: the count, then every series that is not steady."""
    if not found and not broken:
        return "the ledger is empty; add judged runs: aftershock trend --add RUN"
    counts = {status: sum(trend.status == status for trend in found) for status in _order(found)}
    head = f"{len(found)} series: " + ", ".join(f"{count} {status}" for status, count in counts.items())
    told = [_told(trend) for status in counts for trend in found if trend.status == status and trend.change]
    return "\n".join([head, *told, *map(_filled_in, [*_unsure_trend_text(found), *broken])])


def document(found: Sequence[Trend], broken: Sequence[str]) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {"schema_version": SCHEMA_VERSION, "series": [_row(trend) for trend in found], "broken": list(broken)}


def otava(lines: Sequence[Line]) -> tuple[str, int]:
    """The CSV, and how many cells had to be filled."""
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


def _order(found: Sequence[Trend]) -> list[str]:
    words = ("regressed", "known", "improved", "inconclusive", "steady")
    return [word for word in words if any(trend.status == word for trend in found)]


def _unsure_trend_text(found: Sequence[Trend]) -> Iterator[str]:
    """The reasons, each with the series that it holds of, or how many those are."""
    unsure = [trend for trend in found if trend.status == "inconclusive"]
    for why, advice in dict.fromkeys((trend.why, trend.next) for trend in unsure):
        those = [trend for trend in unsure if (trend.why, trend.next) == (why, advice)]
        yield f"inconclusive: {f'{len(those)} series' if len(those) > 1 else _name(those[0])}: {why}; next: {advice}"


def _name(trend: Trend) -> str:
    return f"{trend.plan} {trend.client} {trend.metric} in {trend.window}"


def _filled_in(sentence: str) -> str:
    return fill(printable(sentence), WIDTH, subsequent_indent="  ")


def _told(trend: Trend) -> str:
    unit = "of the control's" if trend.relative else trend.unit
    what = f"{trend.status}: {_name(trend)}: {trend.why}"
    if trend.change is not None:
        what += f"; {trend.change.before:.4g} to {trend.change.after:.4g} {unit}"
    if trend.censored:
        what += f"; {trend.censored} nights are censored"
    return _filled_in(what + (f"; next: {trend.next}" if trend.next else ""))


def _row(trend: Trend) -> Mapping[str, Any]:
    if trend.change is None:
        return asdict(trend)
    change = asdict(trend.change) | {"night": trend.change.night.isoformat(), "ratio": trend.change.ratio}
    return asdict(trend) | {"change": change}


def _column(line: Line) -> str:
    named = (line.plan, line.workload, line.arm, line.metric, line.window)
    return "/".join(named).replace(" ", "_")


def _filled(column: Sequence[float | None]) -> list[float]:
    first = next(value for value in column if value is not None)
    return list(_carried(column, first))


def _carried(column: Sequence[float | None], value: float) -> Iterator[float]:
    for each in column:
        value = value if each is None else each
        yield value

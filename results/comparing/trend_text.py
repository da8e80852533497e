"""Trends as text for a terminal, as a JSON document, and the ledger as CSV for Apache Otava.

Rules of the CSV: a row a night, a column a series, ``time`` first, ``run`` and ``commit`` as attributes. Otava wants a
number in every cell, so a night without a value gets the one before it (the first ones, the one after), which is what
Otava itself does with points that are missing.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from textwrap import fill
from typing import Any

from aftershock.results.comparing.history import Line
from aftershock.results.comparing.trend import Trend, points, series
from aftershock.results.shown import printable

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
    return "\n".join([head, *told, *map(_filled_in, [*_unsure(found), *broken])])


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


def _unsure(found: Sequence[Trend]) -> Iterator[str]:
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

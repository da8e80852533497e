"""Comparisons as text for a terminal, as Markdown, and as a JSON document.

Rules: the terminal's lines are at most 80 columns; a ratio stands with its interval, and what is not shown has a dash.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from textwrap import fill
from typing import Any

from aftershock.results.comparing.arms import Comparison
from aftershock.results.comparing.comparison import Row
from aftershock.results.marked import cell, table
from aftershock.results.shown import printable

SCHEMA_VERSION = 1
WIDTH = 80
EXIT_CODES = {"improved": 0, "equivalent": 0, "regressed": 1, "inconclusive": 2}
_HEAD = ("verdict", "ratio", "95 % interval", "p", "signs", "metric")
_COLUMNS = (13, 7, 15, 8, 8, 28)


def exit_code(found: Sequence[Comparison]) -> int:
    """1 where anything regressed, else 2 where anything is inconclusive or there is nothing, else 0."""
    codes = {EXIT_CODES[one.verdict] for one in found}
    return 1 if 1 in codes else 2 if 2 in codes or not codes else 0  # noqa: PLR2004 - inconclusive, as design 5.1 has it


def text(found: Sequence[Comparison]) -> str:
    """For a terminal, without a newline at its end."""
    return "\n\n".join("\n".join(_pair(one)) for one in found)


def markdown(found: Sequence[Comparison]) -> str:
    """A heading and a table each, for a pull request."""
    return "\n".join("".join(_marked(one)) for one in found)


def document(found: Sequence[Comparison]) -> dict[str, Any]:
    """What ``--json`` prints."""
    pairs = [asdict(one) | {"verdict": one.verdict} for one in found]
    return {"schema_version": SCHEMA_VERSION, "comparisons": pairs}


def _pair(one: Comparison) -> Iterator[str]:
    yield fill(printable(f"{one.verdict}: {one.ours} against {one.theirs}"), WIDTH)
    yield ""
    yield _line(_HEAD)
    for row in one.rows:
        yield _line(_cells(row))
    unsure = [row for row in one.rows if row.verdict == "inconclusive"]
    for why in dict.fromkeys(map(_why, unsure)):
        yield from _said(f"{', '.join(row.metric for row in unsure if _why(row) == why)}: {why}")
    for note in one.notes:
        yield from _said(note)


def _said(sentence: str) -> Iterator[str]:
    yield fill(printable(sentence), WIDTH, initial_indent="  ", subsequent_indent="    ")


def _marked(one: Comparison) -> Iterator[str]:
    yield f"### {one.verdict}: {cell(one.ours)} against {cell(one.theirs)}\n\n"
    yield from table((*_HEAD, "blocks", "why"), [(*_cells(row), str(row.blocks), _why(row)) for row in one.rows])
    yield "".join(f"\n* {cell(note)}" for note in one.notes) + ("\n" if one.notes else "")


def _why(row: Row) -> str:
    return f"{row.why}; next: {row.next}" if row.next else row.why


def _cells(row: Row) -> tuple[str, ...]:
    interval = "-" if row.low is None or row.high is None else f"{row.low:.3g} .. {row.high:.3g}"
    return (row.verdict, _number(row.ratio), interval, _number(row.p), _number(row.p_flip), row.metric)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if 0.001 <= value < 10 else f"{value:.2g}"  # noqa: PLR2004 - digits


def _line(cells: Sequence[str]) -> str:
    *fixed, last = cells
    line = "".join(printable(text).ljust(width) for text, width in zip(fixed, _COLUMNS, strict=False)) + printable(last)
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "~"

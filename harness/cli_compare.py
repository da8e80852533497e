"""The half of the command line that compares: arms and runs with each other, and tonight with the nights before.

Streams as in ``cli.py``; exit codes are 0 improved, equivalent or steady, 1 regressed, 2 inconclusive, 3 an error.
"""

import json
import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import typer

from aftershock.errors import AftershockError

Format = Literal["text", "md"]
OutOption = Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the runs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(compare)
    app.command()(trend)


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN [RUN]", help="One: its arms. Two: before, and after.")],
    out: OutOption = Path("runs"),
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC", help="'produce.latency p95 in fault', 'produce.gap', 'recovery'."),
    ] = None,
    margin: Annotated[str, typer.Option(metavar="PERCENT", help="What is too small to matter.")] = "25%",
    control: Annotated[
        str | None, typer.Option(metavar="ARM", help="Of two runs: divide by this arm's values.")
    ] = None,
    style: Annotated[Format, typer.Option("--format", help="For a terminal, or for a pull request.")] = "text",
    as_json: JsonOption = False,
) -> int:
    """Compare the arms of a judged run with each other, or two runs of one plan, block by block."""
    from aftershock.harness.runs import find_run
    from aftershock.results.comparing import compared
    from aftershock.results.comparing.arms import Asked, arms_of, between
    from aftershock.results.comparing.blocks import parse

    first, *others = [find_run(run, out) for run in runs]
    if len(others) > 1 or (control and not others):
        raise AftershockError("compare takes one run, or two (the one before first); --control needs two")
    asked = Asked(tuple(map(parse, metric or ())), _margin(margin), control)
    found = between(first, others[0], asked) if others else arms_of(first, asked)
    if not found:
        raise AftershockError(f"{first} has no workload with two arms to compare; name a second run")
    shown = compared.markdown(found) if style == "md" else compared.text(found)
    print(json.dumps(compared.document(found), indent=1) if as_json else shown)
    return compared.exit_code(found)


def trend(
    ledger: Annotated[Path, typer.Option(metavar="FILE|DIR", help="The ledger, or the folder it is in.")] = Path(),
    add: Annotated[list[str] | None, typer.Option(metavar="RUN", help="Add this judged run first.")] = None,
    out: OutOption = Path("runs"),
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the series for Apache Otava.")] = None,
    since: Annotated[str | None, typer.Option(metavar="DATE", help="Look at nights from this day on.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Say which nightly series have changed, since when, and by how much."""
    from aftershock.harness.runs import find_run
    from aftershock.results.comparing import history, known_issues, trend_text
    from aftershock.results.comparing.stored import stored
    from aftershock.results.comparing.trend import trends
    from aftershock.results.files import write_whole

    path = history.ledger_in(ledger)
    for said in history.add(path, [stored(find_run(run, out)) for run in add or ()]):
        print(said, file=sys.stderr)
    read, begin = history.read(path), _day(since)
    lines = [line for line in read.lines if line.night >= begin]
    if csv is not None:
        text, filled = trend_text.otava(lines)
        write_whole(csv, text)
        print(f"{csv}: {filled} cells without a value have their neighbour's", file=sys.stderr)
    found = trends(lines, known_issues.read(path.parent / known_issues.NAME))
    print(
        json.dumps(trend_text.document(found, read.broken), indent=1)
        if as_json
        else trend_text.text(found, read.broken)
    )
    return trend_text.exit_code(found, read.broken)


def _margin(text: str) -> float:
    """``10%`` as 1.1: ratios from 1/1.1 to 1.1."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise AftershockError(f"a margin of {text} can't be; give more than 0% and at most 100%, like 10%")
    return 1 + share


def _day(text: str | None) -> date:
    try:
        return date.fromisoformat(text) if text else date.min
    except ValueError as wrong:
        raise AftershockError(f"{text} is no day; write it like 2026-11-21") from wrong

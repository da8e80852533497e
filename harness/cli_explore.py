"""The half of the command line that searches: plans are drawn, run and judged for as long as a budget lasts.

Streams as in ``cli.py``; exit codes are 0 nothing failed, 1 something did, 2 nothing was decided, 3 an error.
"""

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from aftershock.errors import AftershockError
from aftershock.faults.units import parse_duration_ms


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(explore)


def explore(
    frame: Annotated[
        str,
        typer.Argument(metavar="PLAN", help="The frame: its cluster, topics, clients and SLOs; faults are drawn."),
    ] = "explore",
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="How long, 20m say: no run is begun that may end later.")
    ] = "20m",
    seed: Annotated[int, typer.Option(help="Seed of what is drawn; a seed goes on where it was.")] = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds runs, coverage and corpus.")] = Path(
        "runs"
    ),
    allow_exec: Annotated[
        bool, typer.Option("--allow-exec", help="The frame may start programs of yours (client: exec).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    spark: Annotated[str | None, typer.Option(metavar="MASTER", help="A Spark master; by default here.")] = None,
) -> int:
    """Search for what breaks: random faults, where the least was exercised so far, and what failed before first."""
    from rich.console import Console

    from aftershock.faults.check import load_plan
    from aftershock.faults.plans import find
    from aftershock.faults.swarm.frame import frame_of
    from aftershock.harness import corpus, github
    from aftershock.harness.explore import ledger, told
    from aftershock.harness.explore.budget import Budget
    from aftershock.harness.explore.search import Asked, Search, first_fits
    from aftershock.harness.explore.stage import stage
    from aftershock.harness.programs import refuse_programs
    from aftershock.harness.progress import Progress
    from aftershock.results.check import Status

    console = Console(stderr=True, highlight=False)
    progress = Progress(console)
    time_left = Budget(_seconds(budget), time.monotonic)
    checked = load_plan(find(frame))
    if not allow_exec:
        refuse_programs(checked)
    asked = Asked(frame_of(checked), seed, out, datetime.now(UTC).date(), allow_exec)
    read, known = ledger.read(out / ledger.NAME), corpus.read(out / corpus.NAME)
    for sentence in (*read.broken, *known.skipped):
        progress.say(sentence)
    first_fits(asked, read, time_left)
    with stage(out, spark, progress, console) as where:
        search = Search(asked, time_left, where, progress.say)
        read = search.go(read, known)
    github.tell([each.home for each in search.ran if each.home and each.status is Status.FAIL])
    print(
        json.dumps(told.document(asked, read, search.ran), indent=1) if as_json else told.text(asked, read, search.ran)
    )
    print(f"coverage: {out / ledger.NAME}", file=sys.stderr)
    return told.exit_code(search.ran)


def _seconds(text: str) -> float:
    try:
        return parse_duration_ms(text) / 1000
    except ValueError as wrong:
        raise AftershockError(f"--budget {text}: {wrong}") from wrong

"""The half of the command line that searches: plans are drawn, run and judged for as long as a budget lasts.

Streams as in ``cli.py``; exit codes are 0 nothing failed, 1 something did, 2 nothing was decided, 3 an error.

``aftershock minimise``: a failing plan made small. Streams as in ``cli.py``.

Exit codes: 0 a failing plan as small as it gets, or at least smaller, was written; 2 a flake, or the budget was over
before anything smaller failed, or what is left does not come back reliably; 3 a run that is no failure, or an error.

The half of the command line that puts KIPs on trial.

Streams as in ``cli.py``; exit codes are 0 confirmed, 1 contradicted, 2 not seen or inconclusive, 3 an error.
"""

import json
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from aftershock.errors import AftershockError
from aftershock.faults.plan.units import parse_duration_ms


def register_explore(app: typer.Typer) -> None:
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

    from aftershock.faults.plan.check import load_plan
    from aftershock.faults.plans import find
    from aftershock.faults.search.swarm import frame_of
    from aftershock.harness.labs import corpus
    from aftershock.harness.labs.explore import search as ledger
    from aftershock.harness.labs.explore import stage as told
    from aftershock.harness.labs.explore.search import Asked, Budget, Search, first_fits
    from aftershock.harness.labs.explore.stage import stage
    from aftershock.harness.run import progress as github
    from aftershock.harness.run.progress import Progress
    from aftershock.harness.run.run import refuse_programs
    from aftershock.results.checks.check import Status

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


def register_minimise(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(minimise)


def minimise(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run that FAILED: its directory, or its id under --out.")],
    budget: Annotated[str, typer.Option(metavar="DURATION", help="How long to search: 15m, 600s.")] = "15m",
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the runs.")] = Path("runs"),
    check: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="A failed check that must fail again; all, if none is named.")
    ] = None,
    allow_exec: Annotated[bool, typer.Option("--allow-exec", help="The plan may start programs of yours.")] = False,
    spark: Annotated[str | None, typer.Option(metavar="MASTER", help="A Spark master; by default here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Make the plan of a failed run small: the fewest, shortest and weakest faults that fail the same way."""
    from aftershock.harness.labs import corpus
    from aftershock.harness.labs.minimise import execution
    from aftershock.harness.labs.minimise.execution import WarmClusters
    from aftershock.harness.labs.minimise.search import Cache, Story, source_of
    from aftershock.harness.run.progress import Progress
    from aftershock.harness.run.runs import find_run
    from aftershock.results.report.page import write_report

    budget_s = _seconds_cli_minimise(budget)
    source = source_of(find_run(run, out), check or ())
    folder = _folder(out / "minimise" / source.run_id)
    say, command = Progress().say, shlex.join(["aftershock", *sys.argv[1:]])
    say(f"to watch: tail -f {folder / 'progress.log'}")
    with WarmClusters(source, folder, spark, command, allow_exec=allow_exec) as perform:
        cache = Cache(folder / "cache.jsonl", say)
        story = Story(source, cache, perform, time.monotonic, say, lambda so_far: execution.write(so_far, folder))
        found = story.play(budget_s)
    execution.write(found, folder)
    last = folder / "runs" / found.last_failing
    if found.last_failing and (last / "analysis.json").exists():
        write_report(last)
        say(f"report: {last / 'report.html'}")
    if kept := execution.keep(found, folder, out / corpus.NAME, datetime.now(UTC).date()):
        say(f"in the corpus: {kept}")
    print(json.dumps(execution.to_json(found, folder), indent=1) if as_json else execution.text(found, folder))
    return found.exit_code


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AftershockError(f"can't write to {path}: {error.strerror}; choose another --out") from error
    return path


def _seconds_cli_minimise(text: str) -> float:
    from pydantic_core import PydanticCustomError

    from aftershock.faults.plan.units import parse_duration_ms

    try:
        return parse_duration_ms(text) / 1000
    except PydanticCustomError as error:
        raise AftershockError(f"--budget {error}") from error


def register_kip(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(kip)


def kip(
    which: Annotated[str, typer.Argument(metavar="N|all", help="Which KIP: its number, or all of them.")],
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="30m, say: fewer blocks, so wider intervals. `all`: 60m.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="What was run with another seed is run again.")] = 1,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the runs.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Put a KIP's claims on trial: run what has no judged run yet, and say what the evidence says of each."""
    from aftershock.harness.labs.kip import output, runner
    from aftershock.harness.labs.kip.output import tell
    from aftershock.harness.labs.kip.runner import afforded
    from aftershock.harness.labs.kip.trials import chosen
    from aftershock.harness.run.progress import Progress
    from aftershock.harness.run.run import Request, perform
    from aftershock.results.trials.claim import exit_code

    progress = Progress()

    def performed(request: Request) -> Path:
        return perform(request, progress)[0]

    trials = chosen(which)
    allotted = afforded(trials, _budget_s(budget or ("60m" if len(trials) > 1 else None)))
    progress.say(f"about {allotted.takes_s / 60:.0f} min, but for what was run before")
    told = []
    for trial in trials:
        runner.run_missing(trial, allotted, out, seed, performed, progress.say)
        told.append(tell(trial, runner.home_of(trial, out)))
        progress.say(f"report: {output.write(trial, told[-1], runner.home_of(trial, out))}")
    print(json.dumps(output.document(told), indent=1) if as_json else "\n\n".join(map(output.text, told)))
    return exit_code([each.verdict.word for each in told])


def _budget_s(text: str | None) -> float | None:
    """``30m`` in seconds; None: whatever it takes."""
    if text is None:
        return None
    try:
        return parse_duration_ms(text) / 1000
    except ValueError as wrong:
        raise AftershockError(f"--budget {text}: {wrong}") from wrong

"""``aftershock minimise``: a failing plan made small. Streams as in ``cli.py``.

Exit codes: 0 a failing plan as small as it gets, or at least smaller, was written; 2 a flake, or the budget was over
before anything smaller failed, or what is left does not come back reliably; 3 a run that is no failure, or an error.
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


def register(app: typer.Typer) -> None:
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
    from aftershock.harness import corpus
    from aftershock.harness.minimise import written
    from aftershock.harness.minimise.cache import Cache
    from aftershock.harness.minimise.source import source_of
    from aftershock.harness.minimise.story import Story
    from aftershock.harness.minimise.warm import WarmClusters
    from aftershock.harness.progress import Progress
    from aftershock.harness.runs import find_run
    from aftershock.results.report import write as write_report

    budget_s = _seconds(budget)
    source = source_of(find_run(run, out), check or ())
    folder = _folder(out / "minimise" / source.run_id)
    say, command = Progress().say, shlex.join(["aftershock", *sys.argv[1:]])
    say(f"to watch: tail -f {folder / 'progress.log'}")
    with WarmClusters(source, folder, spark, command, allow_exec=allow_exec) as perform:
        cache = Cache(folder / "cache.jsonl", say)
        story = Story(source, cache, perform, time.monotonic, say, lambda so_far: written.write(so_far, folder))
        found = story.play(budget_s)
    written.write(found, folder)
    last = folder / "runs" / found.last_failing
    if found.last_failing and (last / "analysis.json").exists():
        write_report(last)
        say(f"report: {last / 'report.html'}")
    if kept := written.keep(found, folder, out / corpus.NAME, datetime.now(UTC).date()):
        say(f"in the corpus: {kept}")
    print(json.dumps(written.to_json(found, folder), indent=1) if as_json else written.text(found, folder))
    return found.exit_code


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AftershockError(f"can't write to {path}: {error.strerror}; choose another --out") from error
    return path


def _seconds(text: str) -> float:
    from pydantic_core import PydanticCustomError

    from aftershock.faults.units import parse_duration_ms

    try:
        return parse_duration_ms(text) / 1000
    except PydanticCustomError as error:
        raise AftershockError(f"--budget {error}") from error

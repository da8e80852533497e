"""The half of the command line that puts KIPs on trial.

Streams as in ``cli.py``; exit codes are 0 confirmed, 1 contradicted, 2 not seen or inconclusive, 3 an error.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from aftershock.errors import AftershockError
from aftershock.faults.units import parse_duration_ms


def register(app: typer.Typer) -> None:
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
    from aftershock.harness.progress import Progress
    from aftershock.harness.run import Request, perform
    from aftershock.harness.trials import page, runner, text
    from aftershock.harness.trials.budget import afforded
    from aftershock.harness.trials.catalogue import chosen
    from aftershock.harness.trials.told import tell
    from aftershock.results.trials.trial import exit_code

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
        progress.say(f"report: {page.write(trial, told[-1], runner.home_of(trial, out))}")
    print(json.dumps(text.document(told), indent=1) if as_json else "\n\n".join(map(text.text, told)))
    return exit_code([each.verdict.word for each in told])


def _budget_s(text: str | None) -> float | None:
    """``30m`` in seconds; None: whatever it takes."""
    if text is None:
        return None
    try:
        return parse_duration_ms(text) / 1000
    except ValueError as wrong:
        raise AftershockError(f"--budget {text}: {wrong}") from wrong

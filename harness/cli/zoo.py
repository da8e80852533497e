"""Commands ``zoo list``, ``zoo run`` and ``zoo all``: bugs of released clients, broken and fixed version side by side.

The exit code is 0 if each bug that ran was found by its registered checks and the fixed version passed, 1 if a fixed
version was blamed, and 2 if a bug was not found or is undecided. Exit code 3 means an error.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from aftershock.harness.cli.options import BudgetOption, JsonOption, KafkaOption, OutOption, RunsSeedOption, budget_s

zoo = typer.Typer(
    name="zoo", no_args_is_help=True, help="Bugs that released clients really had: does the verdict find them?"
)


@zoo.command("list")
def list_bugs(as_json: JsonOption = False) -> int:
    """List the registered bugs: versions, the broken promise, and the checks that must find it."""
    from dataclasses import asdict

    from aftershock.results.studies.zoo import read_bugs

    bugs = read_bugs().values()
    if as_json:
        print(json.dumps([asdict(bug) for bug in bugs], indent=1))
        return 0
    for bug in bugs:
        obstacle = f"; not run: {bug.obstacle}" if bug.obstacle else ""
        print(f"{bug.id}\n  {bug.title}\n  {bug.versions} ({bug.tracker}); promise: {bug.promise}{obstacle}")
    return 0


@zoo.command("run")
def run_bug(
    bug: Annotated[str, typer.Argument(metavar="BUG", help="Id of a bug, as `aftershock zoo list` prints it.")],
    seed: RunsSeedOption = 1,
    kafka: KafkaOption = None,
    out: OutOption = Path("runs"),
    as_json: JsonOption = False,
) -> int:
    """Run the plan of one bug on a new cluster, and say whether the verdict tells the two versions apart."""
    from aftershock.harness.campaigns import store
    from aftershock.harness.campaigns import zoo as lab
    from aftershock.harness.campaigns.runner import on_new_clusters
    from aftershock.harness.run.progress import Progress

    home, planned = out / lab.NAME, lab.planned(lab.find_bug(bug), kafka)
    run = on_new_clusters(home, seed, Progress())(planned)
    record = store.read(home, lab.NAME, seed=seed).with_run(planned, run.name)
    store.write(home, record)
    (entry,) = [entry for entry in lab.of_record(record, home) if entry.bug.id == bug]
    print(json.dumps(lab.document([entry]), indent=1) if as_json else lab.text(entry))
    print(f"run: {run}", file=sys.stderr)
    return lab.exit_code([entry])


@zoo.command("all")
def run_all(
    budget: BudgetOption = None,
    seed: RunsSeedOption = 1,
    kafka: KafkaOption = None,
    out: OutOption = Path("runs"),
    as_json: JsonOption = False,
) -> int:
    """Run the plans of all bugs that have no run yet, as far as the budget goes."""
    from aftershock.harness.campaigns import store
    from aftershock.harness.campaigns import zoo as lab
    from aftershock.harness.campaigns.runner import on_new_clusters
    from aftershock.harness.run.progress import Progress

    progress, home = Progress(), out / lab.NAME
    limit_s = budget_s(budget) if budget else None
    runs = [lab.planned(bug, kafka) for bug in lab.runnable()]
    record = store.read(home, lab.NAME, seed=seed)
    record = store.run_missing(record, home, runs, on_new_clusters(home, seed, progress), progress.log, limit_s)
    entries = [entry for entry in lab.of_record(record, home) if entry.outcome]
    print(json.dumps(lab.document(entries), indent=1) if as_json else "\n".join(map(lab.text, entries)))
    return lab.exit_code(entries)

"""The ad-hoc half of the command line: kept clusters, faults by hand, healing, and the runs that pile up.

Streams and exit codes as in ``cli.py``; what `inject` gives is 0 witnessed and healed, 2 not witnessed, 3 not injected
or not healed, 130 stopped (and healed).
"""

import json
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aftershock.errors import AftershockError, EngineError

if TYPE_CHECKING:
    from docker import DockerClient

    from aftershock.harness.cluster.ownership import Standing


_ERROR = 3

clusters = typer.Typer(help="Keep a cluster for ad-hoc work.", no_args_is_help=True)
runs = typer.Typer(help="List the runs, or prune them.")

OutOption = Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the runs.")]
RunOption = Annotated[str | None, typer.Option("--run", metavar="ID", help="Which cluster, where several are kept.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register_adhoc(app: typer.Typer, plans: typer.Typer) -> None:
    """Add these commands to the command line and to its ``plan``."""
    app.add_typer(clusters, name="cluster")
    app.add_typer(runs, name="runs")
    app.command()(inject)
    app.command()(heal)
    plans.command("faults")(plan_faults)
    plans.command("from")(plan_from)


@clusters.command()
def up(
    spec: Annotated[
        str | None, typer.Argument(metavar="[SPEC]", help="A YAML file with `cluster` and `topics`, or a plan.")
    ] = None,
    kafka: Annotated[str | None, typer.Option(metavar="VERSION", help="Kafka version, 4.1.2 say.")] = None,
    out: OutOption = Path("runs"),
) -> int:
    """Launch a cluster that stays until it is taken down."""
    from aftershock.faults.plan.command_line import Outline, read_outline
    from aftershock.faults.plans import find
    from aftershock.harness.adhoc import kept as cluster_up
    from aftershock.harness.cluster import engine
    from aftershock.harness.run.progress import Progress

    say = Progress().say
    outline = Outline() if spec is None else read_outline(find(spec))
    if outline.ignored:
        say(f"of {spec} only `cluster` and `topics` are used, not: {', '.join(outline.ignored)}")
    command = shlex.join(["aftershock", *sys.argv[1:]])
    found = cluster_up.up(engine.connect(), outline, kafka, out, command, say)
    print(found.text(), flush=True)
    print(f"run: {out / found.run_id}", file=sys.stderr)
    return 0


@clusters.command()
def status(as_json: JsonOption = False, run_id: RunOption = None) -> int:
    """Show the kept clusters: nodes, faults in force, time left, how to heal. With --json: one of them, or null."""
    from rich.console import Console

    from aftershock.harness.adhoc import kept as status
    from aftershock.harness.adhoc.kept import kept, the_one
    from aftershock.harness.cluster import engine

    client = engine.connect()
    there = kept(client)
    if as_json:
        none = run_id is None and not there
        print(json.dumps(None if none else status.status(client, the_one(client, run_id)).to_json(), indent=1))
        return 0
    if run_id is None and not there:
        print("no cluster is kept; start one with: aftershock cluster up")
        return 0
    chosen = there if run_id is None else [the_one(client, run_id)]
    return 0 if status.show(client, chosen, Console(highlight=False)) else _ERROR


@clusters.command()
def down(run_id: RunOption = None) -> int:
    """Remove a kept cluster; its run directory stays."""
    from aftershock.harness.adhoc import kept as cluster_up
    from aftershock.harness.cluster import engine

    print(f"took down {cluster_up.down(engine.connect(), run_id)}")
    return 0


def inject(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="See `aftershock plan faults`.")],
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE…", help='Parameters: broker="leader of orders/0".')
    ] = None,
    lasting: Annotated[str | None, typer.Option("--for", metavar="DURATION", help="How long: 10s, 500ms.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be hit; touch nothing.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    run_id: RunOption = None,
) -> int:
    """Inject one fault into the kept cluster, and heal it on time and on Ctrl-C."""
    from aftershock.harness.adhoc import inject as injection
    from aftershock.harness.cluster import engine
    from aftershock.harness.run.progress import Progress

    client, progress = engine.connect(), Progress()
    wish = injection.Wish(kind, tuple(pairs or ()), lasting, seed)
    if dry_run:
        print(injection.dry_run(client, run_id, wish, progress.say))
        return 0
    outcome = injection.inject(client, run_id, wish, progress)
    print(outcome.text)
    return outcome.exit_code


def heal(
    run_id: Annotated[str | None, typer.Option("--run", metavar="ID", help="Only this run's.")] = None,
    out: OutOption = Path("runs"),
) -> int:
    """Undo what dead processes left broken, and remove what dead runs left behind; what lives is left alone."""
    from aftershock.harness.cluster import engine, ownership
    from aftershock.harness.cluster.attached import is_attached
    from aftershock.harness.run.progress import Progress
    from aftershock.harness.safety import heal as healing

    say, home = Progress().say, out / run_id if run_id else None
    if home and is_attached(home):
        print("\n".join(healing.heal(None, run_id, say, home=home)) or "nothing to heal")
        return 0
    client = engine.connect()
    if home and not (_is_here(client, home.name) or (home / "run.json").is_file()):
        raise AftershockError(
            f"nothing of a run {run_id} is on this machine, nor in {out}; `aftershock runs` lists them"
        )
    done = healing.heal(client, run_id, say)
    for cluster in ownership.standing(client):
        if cluster.owned and run_id is None:
            say(healing.driven(cluster))
    print("\n".join(done) or "nothing to heal")
    return 0


def plan_faults(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print docs/FAULTS.md: our own kinds, as a page.")
    ] = False,
) -> int:
    """List the kinds of faults: what each does and takes, what proves it, what heals it."""
    from aftershock.faults.plan.catalogue import catalogue, page

    print(page() if markdown else catalogue(), end="" if markdown else "\n")
    return 0


def plan_from(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or a run id under --out.")],
    out: OutOption = Path("runs"),
) -> int:
    """Print what was injected by hand into a run, or into a kept cluster, as a plan that runs."""
    from aftershock.harness.adhoc.kept import plan_of
    from aftershock.harness.run.runs import find_run

    written = plan_of(find_run(run, out))
    for fault in written.left_out:
        print(f"{fault} is left out: it never took hold", file=sys.stderr)
    print(written.text, end="")
    return 0


@runs.callback(invoke_without_command=True)
def list_runs(context: typer.Context, out: OutOption = Path("runs"), as_json: JsonOption = False) -> int:
    """List the runs, newest first."""
    if context.invoked_subcommand is not None:
        return 0
    from aftershock.harness.run.runs import listed, runs_in

    found = runs_in(out)
    if as_json:
        print(json.dumps([run.to_json() for run in found], indent=1))
    else:
        print(listed(found, _standing_if_known()) if found else f"no runs in {out}")
    return 0


@runs.command()
def prune(
    keep: Annotated[int | None, typer.Option(min=0, metavar="N", help="Keep the newest N runs.")] = None,
    older_than: Annotated[str | None, typer.Option(metavar="AGE", help="Only runs older than 30d, 12h, 90m.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; remove nothing.")] = False,
    out: OutOption = Path("runs"),
) -> int:
    """Remove old run directories; never one whose process lives or whose cluster stands."""
    from aftershock.harness.cluster import engine, ownership
    from aftershock.harness.run.runs import Criteria, age, pruning, remove, runs_in, size

    if keep is None and older_than is None:
        raise AftershockError("say which runs may go: --keep N (all but the newest N), --older-than 30d, or both")
    criteria = Criteria(keep, None if older_than is None else datetime.now(UTC) - age(older_than))
    verdict = pruning(runs_in(out), criteria, ownership.standing(engine.connect()))
    for run, why in verdict.spared:
        print(f"kept {run.run_id}: {why}", file=sys.stderr)
    for run in verdict.condemned:
        if not dry_run:
            remove(run)
        print(f"{'would remove' if dry_run else 'removed'} {run.run_id}  {size(run.size_bytes)}")
    print(f"{size(verdict.size_bytes)} {'would be' if dry_run else ''} freed".replace("  ", " "))
    return 0


def _is_here(client: "DockerClient", run_id: str) -> bool:
    """Whether anything of a run is left on this machine."""
    from aftershock.harness.cluster import ownership
    from aftershock.harness.run import client_processes

    left = {cluster.run_id for cluster in ownership.standing(client)} | {
        spool.run_id for spool in client_processes.orphaned()
    }
    return run_id in left


def _standing_if_known() -> "list[Standing]":
    """The clusters on the engine; none where there is no engine to ask."""
    from aftershock.harness.cluster import engine, ownership

    try:
        return ownership.standing(engine.connect())
    except EngineError:
        return []

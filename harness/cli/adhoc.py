"""Commands for ad-hoc work: kept clusters, faults by hand, healing, runs, and the conformance of client programs.

The exit code of ``inject`` is 0 if the fault was witnessed and healed, 2 if it was not witnessed, 3 if it was not
injected or not healed, and 130 if an interrupt ended the fault and it was healed.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aftershock.errors import AftershockError, EngineError, PlanError
from aftershock.harness.cli.options import (
    ERROR,
    AllowAttachOption,
    AllowContainerOption,
    AllowExecOption,
    AllowNamespaceOption,
    JsonOption,
    KafkaOption,
    OutOption,
    RunArgument,
    RunOption,
    SecretOption,
)
from aftershock.redaction import redact

if TYPE_CHECKING:
    from aftershock.faults.sections.cluster import Attach
    from aftershock.harness.lifecycle.heal import Healing
    from aftershock.harness.safety.ownership import LabelledCluster

clusters = typer.Typer(help="Keep a cluster for ad-hoc work.", no_args_is_help=True)
runs = typer.Typer(help="List the runs, or prune them.")


@clusters.command()
def up(
    spec: Annotated[
        str | None, typer.Argument(metavar="[SPEC]", help="A YAML file with `cluster` and `topics`, or a plan.")
    ] = None,
    kafka: KafkaOption = None,
    out: OutOption = Path("runs"),
    allow_exec: AllowExecOption = False,
) -> int:
    """Launch a cluster that stays until `cluster down` removes it."""
    from aftershock.faults.plan.command_line import ClusterDocument, read_cluster_spec
    from aftershock.faults.plans import find
    from aftershock.harness.adhoc import kept
    from aftershock.harness.cluster import engine
    from aftershock.harness.run.job import refused_image
    from aftershock.harness.run.progress import Progress

    log = Progress().log
    cluster_spec = ClusterDocument() if spec is None else read_cluster_spec(find(spec))
    if (image := cluster_spec.cluster.image) and not allow_exec:
        raise PlanError([refused_image(f"{spec}: `cluster.image`", image)])
    if cluster_spec.ignored:
        log(f"only `cluster` and `topics` of {spec} are used; ignored: {', '.join(cluster_spec.ignored)}")
    run_id, text = kept.up(engine.connect(), cluster_spec, kafka, out, log)
    print(text, flush=True)
    print(f"run: {out / run_id}", file=sys.stderr)
    return 0


@clusters.command()
def status(as_json: JsonOption = False, run_id: RunOption = None) -> int:
    """Show the kept clusters, their nodes and faults in force; with --json, print one cluster, or null if none."""
    from rich.console import Console

    from aftershock.harness.adhoc import kept
    from aftershock.harness.cluster import engine

    client = engine.connect()
    selected = kept.kept_clusters(client) if run_id is None else [kept.resolve(client, run_id)]
    if not selected:
        print("null" if as_json else "no cluster is kept; start one with: aftershock cluster up")
        return 0
    if as_json:
        print(json.dumps(kept.status(client, kept.resolve(client, run_id)).to_json(), indent=1))
        return 0
    return 0 if kept.show(client, selected, Console(highlight=False)) else ERROR


@clusters.command()
def down(run_id: RunOption = None) -> int:
    """Remove a kept cluster; its run directory stays."""
    from aftershock.harness.adhoc import kept
    from aftershock.harness.cluster import engine

    print(f"took down {kept.down(engine.connect(), run_id)}")
    return 0


def inject(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="A fault kind; `aftershock plan faults` lists them.")],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE…", help='Parameters of the fault, for example broker="leader of orders/0".'),
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="Duration of the fault, for example 10s or 500ms.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the fault's targets, undo and witness, and inject nothing.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    run_id: RunOption = None,
) -> int:
    """Inject a fault into the kept cluster; heal the fault at the end of its duration, or after Ctrl-C."""
    from aftershock.harness.adhoc import inject as injection
    from aftershock.harness.cluster import engine
    from aftershock.harness.run.progress import Progress

    client, progress = engine.connect(), Progress()
    request = injection.Request(kind, tuple(pairs or ()), duration, seed)
    if dry_run:
        print(injection.dry_run(client, run_id, request, progress.log))
        return 0
    outcome = injection.inject(client, run_id, request, progress)
    print(outcome.text)
    return outcome.exit_code


def heal(
    run_id: Annotated[
        str | None,
        typer.Option("--run", metavar="ID", help="Id of the run to heal (default: all runs of dead processes)."),
    ] = None,
    out: OutOption = Path("runs"),
    allow_attach: AllowAttachOption = None,
    allow_container: AllowContainerOption = None,
    allow_namespace: AllowNamespaceOption = None,
    secret: SecretOption = None,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Heal the runs on a Kubernetes cluster, also those of other machines.")
    ] = False,
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Context of the kubeconfig for --kubernetes (default: its current one)."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --kubernetes: look only there, as with a role for one namespace."),
    ] = None,
) -> int:
    """Undo the faults of dead processes, and remove the containers, processes and files of dead runs."""
    from aftershock.harness.attach.attached import DESCRIPTOR_FILE, is_attached, read_descriptor
    from aftershock.harness.cluster import engine
    from aftershock.harness.cluster.kubernetes.api import IN_CLUSTER, Api
    from aftershock.harness.cluster.kubernetes.cluster import read_place
    from aftershock.harness.lifecycle import heal as healing
    from aftershock.harness.run.job import Permissions, permitted_attachment
    from aftershock.harness.run.progress import Progress
    from aftershock.harness.safety import ownership
    from aftershock.harness.world import client_processes

    log, home = Progress().log, out / run_id if run_id else None
    lists = (allow_attach, secret, allow_container, allow_namespace)
    given = Permissions(*(tuple(options or ()) for options in lists))
    if (context or namespace) and not kubernetes:
        raise AftershockError("--context and --namespace belong to --kubernetes: add it, or leave them out")
    if place := read_place(home) if home else None:
        kubernetes, context = True, context or (None if place.context == IN_CLUSTER else place.context)
    if kubernetes:
        namespace = place.namespace if place and not place.own_namespace else namespace

        def permit(attach: "Attach", where: str) -> None:
            permitted_attachment(attach, lambda _: where, given)

        api = Api(context)
        _print_healing(healing.heal_kubernetes(api, run_id, log, namespace=namespace, listen=True, permit=permit))
        return 0
    if home and is_attached(home):
        # the run directory may come from a stranger, and healing connects to the addresses that it names
        permitted_attachment(read_descriptor(home).attach, lambda _: f"{home / DESCRIPTOR_FILE}", given)
        print(redact("\n".join(healing.heal(None, run_id, log, home=home).actions)) or "nothing to heal")
        return 0
    client = engine.connect()
    if home and not (home / "run.json").is_file():
        run_ids = [cluster.run_id for cluster in ownership.list_clusters(client)]
        run_ids += [spool.run_id for spool in client_processes.orphaned_spools()]
        if home.name not in run_ids:
            raise AftershockError(
                f"there is no run {run_id} on this machine or in {out}; `aftershock runs` lists the runs"
            )
    result = healing.heal(client, run_id, log, home=home)
    for cluster in ownership.list_clusters(client):
        if cluster.liveness == "alive" and run_id is None:
            log(healing.in_use(cluster))
    _print_healing(result)
    return 0


def _print_healing(result: "Healing") -> None:
    """Print what a clean-up did; raise AftershockError if it is not complete."""
    if result.actions or not result.problems:
        print(redact("\n".join(result.actions)) or "nothing to heal")
    if result.problems:
        raise AftershockError(f"{len(result.problems)} runs are not wholly healed; the lines above say why")


def conformance(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND…", help="Command that starts the client program; write it last, after `--`."),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(metavar="CLIENT@VERSION", help="Check the shipped program around this version, not a COMMAND."),
    ] = None,
    operation: Annotated[
        list[str] | None,
        typer.Option(
            "--op",
            metavar="NAME",
            help="Checks to make: produce, consume, commit, group, transaction; default: the first two, or all of a "
            "shipped program.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the client program; repeatable.")
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Check against this cluster, without outages (default: launch one of one node)."
        ),
    ] = None,
    allow_attach: AllowAttachOption = None,
    patience_s: Annotated[
        float, typer.Option("--patience", metavar="SECONDS", help="Time limit for every report of the program.")
    ] = 30.0,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
    as_schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of the protocol's messages, and check nothing.")
    ] = False,
) -> int:
    """Check that a client program follows the protocol of `client: exec`; exit code 1 if it does not."""
    from contextlib import nullcontext

    from aftershock.harness.adhoc.conformance import LACKED_AS, document, leased_cluster, table, text
    from aftershock.harness.clients.build import built
    from aftershock.harness.clients.catalogue import parse
    from aftershock.harness.run.job import Permissions, normalise, permitted_addresses, read_project_file
    from aftershock.harness.run.progress import Progress
    from aftershock.workloads.adapters.conformance.bench import Bench, StandingCluster
    from aftershock.workloads.adapters.conformance.checks import CHECKS, examine
    from aftershock.workloads.adapters.exec_protocol import schema
    from aftershock.workloads.load.assignment import parse_setting

    if as_schema:
        print(json.dumps(schema(), indent=1))
        return 0
    operations = operation or (list(CHECKS) if client else ["produce", "consume"])
    if bool(command) == bool(client):
        raise AftershockError("name one program to check: its command after --, or --client CLIENT@VERSION")
    if unknown := [name for name in operations if name not in CHECKS]:
        raise AftershockError(f"--op {unknown[0]} is no operation; write one of {', '.join(CHECKS)}")
    try:
        typed = dict(map(parse_setting, settings or ()))
    except ValueError as error:
        raise AftershockError(f"--settings {error} is not KEY=VALUE; write for example acks=all") from error
    permitted = permitted_addresses(Permissions(tuple(allow_attach or ())), read_project_file(Path.cwd()))
    for address in (bootstrap or "").split(","):
        if address and normalise(address) not in permitted:
            option = f"--allow-attach {normalise(address)}"
            raise AftershockError(
                f"--bootstrap {address}: the checks create topics and groups there; add {option} to allow that"
            )
    log = Progress().log
    lacks: Mapping[str, str] = {}
    if client:
        program = built(*parse(client), log)
        command, lacks = [*program.command], program.lacks
        operations = [name for name in operations if LACKED_AS.get(name, name) not in lacks]
        for word, reason in lacks.items():
            print(f"lacks   {word}: {reason}", file=sys.stderr if as_json else sys.stdout, flush=True)
        if not operations:
            raise AftershockError(f"{client} offers none of the operations that --op names")
    with nullcontext(StandingCluster(bootstrap)) if bootstrap else leased_cluster(kafka, log) as cluster:
        results = []
        for result in examine(Bench(command or (), cluster, patience_s, typed), operations):
            results.append(result)
            print(text(result), file=sys.stderr if as_json else sys.stdout, flush=True)
    if as_json:
        print(json.dumps(document(results, command or (), cluster.bootstrap) | {"lacks": lacks}, indent=1))
    else:
        print(f"\n{table(results)}")
    return 1 if any(result.outcome == "failed" for result in results) else 0


def attach(
    bootstrap: Annotated[
        str | None,
        typer.Argument(
            metavar="[HOST:PORT[,…]]", help="Addresses of your cluster, plain text; optional with --compose."
        ),
    ] = None,
    compose: Annotated[
        str | None, typer.Option(metavar="FILE", help="The compose file whose running containers are the brokers.")
    ] = None,
    insert_proxy: Annotated[
        bool, typer.Option("--insert-proxy", help="Print how a Toxiproxy comes before the brokers of a compose file.")
    ] = False,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Look for the brokers' pods, with the kubeconfig's current context.")
    ] = False,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --kubernetes: look only there (default: everywhere).")
    ] = None,
) -> int:
    """Survey your cluster: its brokers and their containers, which faults are possible, and the lines for a plan."""
    from aftershock.harness.adhoc.survey import survey

    if (namespace and not kubernetes) or (kubernetes and (compose or insert_proxy)):
        raise AftershockError("--namespace belongs to --kubernetes, and --compose and --insert-proxy to Docker")
    if kubernetes:
        from aftershock.harness.cluster.kubernetes.api import Api

        found = survey(bootstrap, api=Api(), namespace=namespace)
    else:
        found = survey(bootstrap, compose)
    print(*(found.proxy_lines() if insert_proxy else found.lines()), sep="\n")
    return 0


def plan_faults(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the built-in fault kinds as the page docs/FAULTS.md.")
    ] = False,
) -> int:
    """List the fault kinds, with effect, parameters, witness, and undo."""
    from aftershock.faults.plan.catalogue import catalogue, page

    print(page() if markdown else catalogue(), end="" if markdown else "\n")
    return 0


def plan_from(run: RunArgument, out: OutOption = Path("runs")) -> int:
    """Print a plan with the faults that were injected by hand into a run or a kept cluster."""
    from aftershock.harness.adhoc.kept import plan_of
    from aftershock.harness.run.runs import find_run

    written = plan_of(find_run(run, out))
    for fault in written.omitted:
        print(f"the plan omits the fault {fault}, which was never in force", file=sys.stderr)
    print(written.text, end="")
    return 0


@runs.callback(invoke_without_command=True)
def list_runs(context: typer.Context, out: OutOption = Path("runs"), as_json: JsonOption = False) -> int:
    """List the runs, newest first."""
    if context.invoked_subcommand is not None:
        return 0
    from aftershock.harness.cluster import engine
    from aftershock.harness.run.runs import runs_in, table
    from aftershock.harness.safety import ownership

    run_list = runs_in(out)
    if as_json:
        print(json.dumps([run.to_json() for run in run_list], indent=1))
        return 0
    if not run_list:
        print(f"no runs in {out}")
        return 0
    standing: list[LabelledCluster] = []
    with suppress(EngineError):  # without an engine the list lacks only the remarks on clusters
        standing = ownership.list_clusters(engine.connect())
    print(table(run_list, standing))
    return 0


@runs.command()
def prune(
    keep: Annotated[int | None, typer.Option(min=0, metavar="N", help="Remove all runs except the newest N.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Remove only runs older than this age, for example 30d, 12h or 90m."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs that would be removed, and remove nothing.")
    ] = False,
    out: OutOption = Path("runs"),
) -> int:
    """Remove old run directories, except of runs whose process is alive or whose cluster exists."""
    from aftershock.harness.cluster import engine
    from aftershock.harness.run.runs import parse_age, pruning, remove, runs_in, size
    from aftershock.harness.safety import ownership

    if keep is None and older_than is None:
        raise AftershockError("name the runs to remove: --keep N (all but the newest N), --older-than 30d, or both")
    before = None if older_than is None else datetime.now(UTC) - parse_age(older_than)
    removable, in_use = pruning(runs_in(out), ownership.list_clusters(engine.connect()), keep, before)
    for run, reason in in_use:
        print(f"kept {run.run_id}: {reason}", file=sys.stderr)
    for run in removable:
        if not dry_run:
            remove(run)
        print(f"{'would remove' if dry_run else 'removed'} {run.run_id}  {size(run.size_bytes)}")
    print(f"{size(sum(run.size_bytes for run in removable))} {'would be freed' if dry_run else 'freed'}")
    return 0

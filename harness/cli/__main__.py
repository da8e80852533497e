"""The command line. Progress and prose go to stderr, the result to stdout; exit codes are `design.md` 5.1's.

0 PASS, 1 FAIL, 2 INCONCLUSIVE, 3 ERROR (usage, plan, engine or harness), 130 interrupted.
"""

import json
import shlex
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from aftershock.errors import AftershockError
from aftershock.harness.cli import adhoc, analysis, search
from aftershock.harness.run.progress import Progress
from aftershock.results.checks.check import Verdict

ERROR = 3
INTERRUPTED = 130

app = typer.Typer(
    name="aftershock",
    help="Break a real Kafka cluster on purpose, and say with evidence whether its clients kept their promises.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
plans = typer.Typer(help="Validate, draw and describe plans.", no_args_is_help=True)
app.add_typer(plans, name="plan")

PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help="A path, or the name of a plan that ships (demo).")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or a run id under --out.")]
SeedOption = Annotated[int, typer.Option(help="Seed of every random choice in the plan.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change the plan: timing.steady=5s, topics.0.partitions=6."),
]
OutOption = Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the runs.")]
SparkOption = Annotated[
    str | None, typer.Option(metavar="MASTER", help="A Spark master, or sc://host:port; by default here.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the verdict document instead of the summary.")]


@app.command()
def run(
    plan: PlanArgument,
    seed: SeedOption = 0,
    out: OutOption = Path("runs"),
    changes: SetOption = None,
    as_json: JsonOption = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster running.")] = False,
    kafka: Annotated[str | None, typer.Option(metavar="VERSION", help="Kafka version, 4.1.2 say.")] = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Full load, nothing injected: all must be calm.")
    ] = False,
    allow_exec: Annotated[
        bool, typer.Option("--allow-exec", help="The plan may start programs of yours (client: exec).")
    ] = False,
    spark: SparkOption = None,
) -> int:
    """Launch a cluster, drive the load, inject the faults, and judge what happened."""
    from aftershock.faults.plans import find
    from aftershock.harness.run.run import Request, perform

    command = shlex.join(["aftershock", *sys.argv[1:]])
    request = Request(
        find(plan),
        tuple(changes or ()),
        seed,
        out,
        kafka,
        keep=keep,
        rehearse=rehearse,
        allow_exec=allow_exec,
        spark=spark,
        command=command,
    )
    return _show(*perform(request, Progress()), as_json=as_json)


@app.command()
def verdict(
    run_dir: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run directory, or a run id.")] = None,
    out: OutOption = Path("runs"),
    as_json: JsonOption = False,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Look at every record; the gate clears none.")
    ] = False,
    evidence: analysis.EvidenceOption = None,
    spark: SparkOption = None,
) -> int:
    """Judge a run again, from its evidence alone, wherever that lies."""
    from aftershock.harness.run.runs import find_run
    from aftershock.results.judge import judge, judge_at

    if evidence:
        run_id = Path(run_dir).name if run_dir else None
        return _show(*judge_at(evidence, run_id, out, spark, Progress().say, exhaustive=exhaustive), as_json=as_json)
    if run_dir is None:
        raise AftershockError("say which run to judge: RUN, or --evidence URI")
    path = find_run(run_dir, out)
    return _show(path, judge(path, spark, Progress().say, exhaustive=exhaustive), as_json=as_json)


@app.command()
def images(
    ensure: Annotated[bool, typer.Option("--ensure", help="Get what is missing: pull it, or build it.")] = False,
    kafka: Annotated[str | None, typer.Option(metavar="VERSION", help="Kafka version, 4.1.2 say.")] = None,
) -> int:
    """Say which images are here, and with --ensure get those that are missing, and what lets Spark start quicker."""
    from aftershock.harness.cluster import engine
    from aftershock.results.spark.class_data_maker import ensure_archive

    progress = Progress()
    client = engine.connect()
    if ensure:
        engine.kafka_image(client, kafka or engine.DEFAULT_KAFKA, progress.say)
        engine.toxiproxy_image(client, progress.say)
        engine.java_client_image(client, kafka or engine.DEFAULT_KAFKA, progress.say)
        ensure_archive(progress.say)
    found = engine.images_here(client)
    for image in found:
        print(f"{image.name}  {image.size_bytes / 1e6:.0f} MB  {image.digest}")
    if not found:
        progress.say("no images here yet; `aftershock images --ensure` gets them, and so does a run")
    return 0


@app.command()
def doctor() -> int:
    """Say what is there, what is missing, and what to do about it."""
    from aftershock.harness.cli.doctor import examine

    findings = examine()
    for finding in findings:
        print(f"{'ok     ' if finding.ok else 'MISSING'} {finding.what}: {finding.detail}")
    return 0 if all(finding.ok for finding in findings) else ERROR


@plans.command("check")
def plan_check(plan: PlanArgument, changes: SetOption = None) -> int:
    """Validate a plan; every problem at once, each with its place and what to do."""
    from aftershock.faults.plan.check import load_plan
    from aftershock.faults.plans import find

    checked = load_plan(find(plan), tuple(changes or ()))
    for warning in checked.warnings:
        print(warning, file=sys.stderr)
    print(f"{checked.source}: {checked.plan.name} is a valid plan")
    return 0


@plans.command("show")
def plan_show(plan: PlanArgument, seed: SeedOption = 0, changes: SetOption = None) -> int:
    """Draw a plan's timeline as text lanes."""
    from aftershock.faults.plan.check import load_plan
    from aftershock.faults.plans import find
    from aftershock.faults.timeline.compile import compile_plan
    from aftershock.faults.timeline.lanes import lanes

    checked = load_plan(find(plan), tuple(changes or ()))
    print(lanes(compile_plan(checked.plan, seed, checked.source, checked.slo_positions, checked.places)))
    return 0


@plans.command("schema")
def schema() -> int:
    """Print the JSON Schema of plans, for editors."""
    from aftershock.faults.plan.catalogue import plan_schema

    print(json.dumps(plan_schema(), indent=1))
    return 0


adhoc.register_adhoc(app, plans)
analysis.register_compare(app)
search.register_explore(app)
search.register_kip(app)
search.register_minimise(app)
analysis.register_report(app)
analysis.register_sql(app, adhoc.runs)


def main() -> None:
    """The console script: runs a command and exits with its code."""
    # SIGTERM ends a run as Ctrl-C does: through the clean-up
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        code: Any = app(standalone_mode=False)
    except TyperException as error:
        print(f"{error.format_message()}; `aftershock --help` lists the commands", file=sys.stderr)
        code = ERROR
    except AftershockError as error:
        print(error, *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        code = ERROR
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception:  # noqa: BLE001  # ours to mend, and never to be taken for a verdict
        traceback.print_exc()
        code = ERROR
    sys.exit(code)


def _show(run_dir: Path, judged: Verdict, *, as_json: bool) -> int:
    from aftershock.harness.run import progress as github
    from aftershock.results.report.verdict_formats import summary

    github.tell([run_dir])
    print(judged.text() if as_json else summary(judged), end="" if as_json else "\n", flush=True)
    print(f"run: {run_dir}", file=sys.stderr)
    return judged.exit_code


if __name__ == "__main__":
    main()

"""Entry point of the ``aftershock`` command, with the commands that run, judge and check plans.

Progress and messages go to stderr, results to stdout. The exit code is 0 for PASS, 1 for FAIL, 2 for INCONCLUSIVE, 3
for ERROR (usage, plan, engine or harness), and 130 after an interrupt. Each command imports its modules only when the
command runs, so that ``--help`` and the plan commands start quickly.
"""

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from errno import EACCES, EISDIR, ELOOP, ENAMETOOLONG, ENOSPC, ENOTDIR, EPERM, EPIPE, EROFS
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from aftershock.errors import AftershockError
from aftershock.harness.cli import adhoc, analysis, clients, init, kubernetes, machine, plan_new, plans, search, zoo
from aftershock.harness.cli.options import (
    ERROR,
    INTERRUPTED,
    AllowAttachOption,
    AllowContainerOption,
    AllowExecOption,
    AllowNamespaceOption,
    EvidenceOption,
    JsonOption,
    KafkaOption,
    OutOption,
    PlanArgument,
    SecretOption,
    SeedOption,
    SetOption,
    SparkOption,
    StrictOption,
)
from aftershock.redaction import RedactingFormatter, redact
from aftershock.results.model.check import Verdict
from aftershock.results.model.text import visible

_OF_PATHS = (EACCES, EISDIR, ELOOP, ENAMETOOLONG, ENOTDIR, EPERM, EROFS)  # what the user named can't be used
app = typer.Typer(
    name="aftershock",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(plans.plans, name="plan")
app.add_typer(zoo.zoo, name="zoo")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"aftershock {version('aftershock')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and exit.")
    ] = False,
) -> None:
    """Break a real Kafka cluster on purpose, and judge from evidence whether its clients kept their promises."""


@app.command()
def run(
    plan: PlanArgument,
    seed: SeedOption = 0,
    out: OutOption = Path("runs"),
    changes: SetOption = None,
    as_json: JsonOption = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster running after the run.")] = False,
    kafka: KafkaOption = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Run on this kept cluster, which stays, in the place of launching one; with `kubernetes`, launch "
            "on the plan's Kubernetes cluster, by default that of the kubeconfig's current context.",
        ),
    ] = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Negative control: run the full load and inject no fault.")
    ] = False,
    allow_exec: AllowExecOption = False,
    allow_attach: AllowAttachOption = None,
    allow_container: AllowContainerOption = None,
    allow_namespace: AllowNamespaceOption = None,
    secret: SecretOption = None,
    spark: SparkOption = None,
    strict: StrictOption = False,
) -> int:
    """Launch a cluster, drive the load, inject the faults, and judge the evidence."""
    from contextlib import nullcontext

    from aftershock.faults.plans import find
    from aftershock.harness.adhoc.on_kept import occupied
    from aftershock.harness.cluster import engine
    from aftershock.harness.run.job import KUBERNETES, Permissions, on_kubernetes, prepare
    from aftershock.harness.run.progress import Progress
    from aftershock.harness.run.run import perform
    from aftershock.results.report.trace import export_run

    if on == KUBERNETES:
        on, changes = None, on_kubernetes(find(plan), changes or ())
    if on and (keep or kafka):
        raise AftershockError("--on runs on a cluster that stands and stays: leave out --keep and --kafka")
    progress = Progress()
    job = prepare(
        find(plan),
        changes or (),
        seed,
        progress.log,
        kafka=kafka,
        rehearse=rehearse,
        allow_exec=allow_exec,
        permissions=Permissions(allow_attach or (), secret or (), allow_container or (), allow_namespace or ()),
    )
    with occupied(engine.connect(), on, job, progress) if on else nullcontext(None) as drive:
        home, result = perform(job, out, progress, keep=keep, spark=spark, strict=strict, drive=drive)
    export_run(home, os.environ, progress.log)
    return _print_verdict(home, result, as_json=as_json)


@app.command()
def verdict(
    run_dir: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Run to judge: a run directory, or a run id under --out.")
    ] = None,
    out: OutOption = Path("runs"),
    as_json: JsonOption = False,
    exhaustive: Annotated[
        bool,
        typer.Option("--exhaustive", help="Examine every record, also those that a quick first test finds correct."),
    ] = False,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Judge evidence that was changed after the run, and mark the verdict."),
    ] = False,
    so_far: Annotated[
        bool, typer.Option("--so-far", help="Judge a run in progress by what it has saved; the verdict is provisional.")
    ] = False,
    evidence: EvidenceOption = None,
    spark: SparkOption = None,
    strict: StrictOption = False,
) -> int:
    """Judge a run again from its evidence alone, in a run directory or at a URI."""
    from aftershock.harness.run.progress import Progress
    from aftershock.harness.run.runs import find_run
    from aftershock.results.judge import judge, judge_at

    log = Progress().log
    if so_far and (evidence or trust or strict):
        raise AftershockError("--so-far judges a part of a run here; leave out --evidence, --trust and --strict")
    if evidence:
        run_id = Path(run_dir).name if run_dir else None
        judged = judge_at(evidence, run_id, out, spark, log, exhaustive=exhaustive, trust=trust, strict=strict)
        return _print_verdict(*judged, as_json=as_json)
    if run_dir is None:
        raise AftershockError("no run to judge: name a RUN, or --evidence URI")
    path = find_run(run_dir, out)
    if so_far:
        from aftershock.harness.run.so_far import judge_so_far
        from aftershock.results.report.verdict_formats import summary

        result = judge_so_far(path, spark, log, exhaustive=exhaustive)
        print(result.text() if as_json else summary(result), end="" if as_json else "\n", flush=True)
        return result.exit_code
    result = judge(path, spark, log, exhaustive=exhaustive, trust=trust, strict=strict)
    return _print_verdict(path, result, as_json=as_json)


app.add_typer(adhoc.clusters, name="cluster")
app.add_typer(adhoc.runs, name="runs")
app.add_typer(clients.clients, name="clients")
app.add_typer(kubernetes.kubernetes, name="kubernetes")
_COMMANDS: tuple[Callable[..., int], ...] = (
    machine.images,
    machine.doctor,
    init.init,
    adhoc.attach,
    adhoc.inject,
    adhoc.heal,
    adhoc.conformance,
    analysis.compare,
    analysis.trend,
    search.audit,
    search.explore,
    search.kip,
    search.durability,
    search.minimise,
    analysis.report,
    analysis.explain,
    analysis.sql,
)
for _command in _COMMANDS:
    app.command()(_command)
plans.plans.command("faults")(adhoc.plan_faults)
plans.plans.command("new")(plan_new.new)
plans.plans.command("from")(adhoc.plan_from)
adhoc.runs.command()(analysis.archive)
adhoc.runs.command()(analysis.pack)
adhoc.runs.command()(analysis.export)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End the command as Ctrl-C does, after the clean-up; also a background job of a shell, which ignores Ctrl-C.

    A closed terminal (SIGHUP) does the same, unless `nohup` lets the command ignore it.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.default_int_handler(number, frame)
    signal.raise_signal(signal.SIGINT)


def main() -> None:
    """Run the command in ``sys.argv``, and exit with the command's exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)
    if logging.lastResort:  # which prints the warnings of libraries
        logging.lastResort.setFormatter(RedactingFormatter())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a POSIX locale has no ✓
    try:
        code: Any = app(standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        if message := error.format_message():  # empty after the help, which a command without arguments prints
            print(visible(redact(f"{message.rstrip('.')}; `aftershock --help` lists the commands")), file=sys.stderr)
        code = ERROR
    except AftershockError as error:
        print(visible(redact("\n".join([str(error), *getattr(error, "__notes__", ())]))), file=sys.stderr)
        code = ERROR
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001
        from aftershock.harness.cluster.engine import engine_error

        code = ERROR
        if isinstance(error, OSError) and error.filename is None and error.errno in (EPIPE, ENOSPC):
            # of the output, because files have names; the interpreter must not try again when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if error.errno == ENOSPC:
                print(f"the output can't be written: {error.strerror}; redirect it elsewhere", file=sys.stderr)
        elif isinstance(error, OSError) and error.filename is not None and error.errno in _OF_PATHS:
            print(visible(redact(f"can't use {error.filename}: {error.strerror}; name another path")), file=sys.stderr)
        else:  # a bug of the harness, which must not be mistaken for a verdict
            print(redact(str(engine_error(error) or traceback.format_exc())), file=sys.stderr)
    sys.exit(code)


def _print_verdict(run_dir: Path, result: Verdict, *, as_json: bool) -> int:
    from aftershock.harness.run.progress import annotate_github
    from aftershock.results.report.verdict_formats import summary

    annotate_github([run_dir])
    print(result.text() if as_json else summary(result), end="" if as_json else "\n", flush=True)
    print(f"run: {run_dir}", file=sys.stderr)
    return result.exit_code


if __name__ == "__main__":
    main()

"""Entry point of the ``aftershock`` command, with the commands that run, judge and check plans.

Progress and messages go to stderr, results to stdout. The exit code is 0 for PASS, 1 for FAIL, 2 for INCONCLUSIVE, 3
for ERROR (usage, plan, engine or harness), and 130 after an interrupt. Each command imports its modules only when the
command runs, so that ``--help`` and the plan commands start quickly.
"""

import json
import logging
import os
import re
import shutil
import signal
import subprocess
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

from aftershock.errors import AftershockError, EngineError, ImageError
from aftershock.harness.cli import adhoc, analysis, init, search
from aftershock.harness.cli.options import (
    ERROR,
    INTERRUPTED,
    AllowAttachOption,
    AllowExecOption,
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

_JAVA_MIN = 17
_MEMORY_GIB_MIN = 4
_DISK_GIB_MIN = 5
_GIB = 1 << 30
_OF_PATHS = (EACCES, EISDIR, ELOOP, ENAMETOOLONG, ENOTDIR, EPERM, EROFS)  # what the user named can't be used
_NO_IMAGES = "no local images yet: a run pulls or builds them, or `aftershock images --ensure` does so now"
app = typer.Typer(
    name="aftershock",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
plans = typer.Typer(help="Validate plans, draw their timelines, and describe fault kinds.", no_args_is_help=True)
app.add_typer(plans, name="plan")


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
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Negative control: run the full load and inject no fault.")
    ] = False,
    allow_exec: AllowExecOption = False,
    allow_attach: AllowAttachOption = None,
    secret: SecretOption = None,
    spark: SparkOption = None,
    strict: StrictOption = False,
) -> int:
    """Launch a cluster, drive the load, inject the faults, and judge the evidence."""
    from aftershock.faults.plans import find
    from aftershock.harness.run.job import Permissions, prepare
    from aftershock.harness.run.progress import Progress
    from aftershock.harness.run.run import perform
    from aftershock.results.report.trace import export_run

    progress = Progress()
    job = prepare(
        find(plan),
        changes or (),
        seed,
        progress.log,
        kafka=kafka,
        rehearse=rehearse,
        allow_exec=allow_exec,
        permissions=Permissions(allow_attach or (), secret or ()),
    )
    home, result = perform(job, out, progress, keep=keep, spark=spark, strict=strict)
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


@app.command()
def images(
    ensure: Annotated[bool, typer.Option("--ensure", help="Pull or build the missing images.")] = False,
    plan: Annotated[
        str | None, typer.Option("--for", metavar="PLAN", help="Pull or build only the images that a plan needs.")
    ] = None,
    kafka: KafkaOption = None,
    check: Annotated[
        str | None,
        typer.Option(
            "--check", metavar="NAME", help="Test an image against the contract of node images, line by line."
        ),
    ] = None,
) -> int:
    """List Aftershock's local Docker images; with --ensure, get missing images, and prepare a faster Spark start.

    With --check, the exit code is 0 if the image keeps the contract of docs/KAFKA.md, 1 if it breaks a line, and 2 if
    the image is not on the Docker engine.
    """
    from aftershock.faults.plans import find
    from aftershock.harness.cluster import engine
    from aftershock.harness.cluster.image_contract import check_image
    from aftershock.harness.lifecycle.launch import images_for
    from aftershock.harness.run.job import prepare
    from aftershock.harness.run.progress import Progress
    from aftershock.results.spark.session import ensure_archive

    log = Progress().log
    if check and (ensure or plan or kafka):
        raise AftershockError("--check tests one image: leave out --ensure, --for and --kafka")
    job = prepare(find(plan), (), 0, log, kafka=kafka, allow_exec=True) if plan else None
    client = engine.connect()
    if check:
        try:
            engine.local_image(client, check)
        except ImageError as error:
            log(str(error))
            return 2
        broken = False
        for result in check_image(client, check):
            print(result, flush=True)
            broken = broken or bool(result.problem)
        return int(broken)
    if job:
        images_for(client, job.spec, log)
        if job.has_java_clients:
            engine.java_client_image(client, job.spec.kafka, log)
        ensure_archive(log)
    elif ensure:
        engine.kafka_image(client, kafka or engine.DEFAULT_KAFKA, log)
        engine.toxiproxy_image(client, log)
        engine.java_client_image(client, kafka or engine.DEFAULT_KAFKA, log)
        engine.tools_image(client, log)
        ensure_archive(log)
    local_images = engine.images_here(client)
    for image in local_images:
        print(f"{image.name}  {image.size_bytes / 1e6:.0f} MB  {image.digest}")
    if not local_images:
        log(_NO_IMAGES)
    return 0


@app.command()
def doctor(
    plan: Annotated[
        str | None, typer.Argument(metavar="[PLAN]", help="Plan for which this machine needs space and speed.")
    ] = None,
    changes: SetOption = None,
    out: OutOption = Path("runs"),
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure which rates this machine drives, and store them; about 30 s.")
    ] = False,
) -> int:
    """Check the prerequisites on this machine, and those of a plan, and say how to install missing ones."""
    from aftershock.faults.kinds.registry import EXTERNAL, KINDS
    from aftershock.faults.plan.check import load_plan
    from aftershock.faults.plans import find
    from aftershock.faults.timeline.compile import compile_checked
    from aftershock.harness.cluster import engine
    from aftershock.harness.run import calibration, preflight

    timeline = compile_checked(load_plan(find(plan), tuple(changes or ())), 0) if plan else None
    if calibrate:
        from aftershock.harness.run.progress import Progress

        calibration.store_limits(calibration.calibrate(Progress().log))
    limits, docker_root = calibration.read_limits(), None
    findings: list[tuple[str, bool, str]] = []  # name, present, detail or advice
    try:
        client = engine.connect()
    except EngineError as error:
        findings.append(("Docker engine", False, str(error)))
    else:
        local_images = ", ".join(image.name for image in engine.images_here(client))
        findings.append(("Docker engine", True, str(client.version()["Version"])))
        findings.append(("images", True, local_images or _NO_IMAGES))
        docker_root = engine.volumes_folder(client)
        kinds = [name for name, kind in KINDS.items() if {"block_device", "disk_layer"} & {*kind.needs}]
        wanted = any(step.kind in kinds for step in timeline.steps) if timeline else False
        refusal = engine.block_device_refusal(client)
        possible = f"can't run: {refusal}" if refusal else "can run"
        findings.append(("block devices", not (refusal and wanted), f"{', '.join(kinds)} {possible}"))

    java_home = os.environ.get("JAVA_HOME")
    java = str(Path(java_home, "bin", "java")) if java_home else shutil.which("java")
    java_ok, java_detail = False, "not found"
    if java:
        try:
            answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=20).stderr
        except (OSError, subprocess.SubprocessError) as error:
            java_detail = f"{java} does not run ({error})"
        else:
            version, java_detail = re.search(r'version "(\d+)', answer), answer.splitlines()[0]
            java_ok = version is not None and int(version[1]) >= _JAVA_MIN
    advice = f"Spark needs Java {_JAVA_MIN} or later; install Java (openjdk-17-jre-headless) or set JAVA_HOME"
    findings.append(("Java", java_ok, java_detail if java_ok else f"{java_detail}; {advice}"))

    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    memory_ok = memory_gib >= _MEMORY_GIB_MIN
    advice = "" if memory_ok else f"; three brokers and Spark need {_MEMORY_GIB_MIN} GiB"
    findings.append(("memory", memory_ok, f"{memory_gib:.0f} GiB, {os.cpu_count()} cores{advice}"))
    disk_gib = shutil.disk_usage(Path.cwd()).free / _GIB
    disk_ok = disk_gib >= _DISK_GIB_MIN
    advice = "" if disk_ok else f"; images and a run need {_DISK_GIB_MIN} GiB"
    findings.append(("disk", disk_ok, f"{disk_gib:.0f} GiB free in the current folder{advice}"))

    rates = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in limits.items())
    findings.append(("rates", True, rates or "not measured; measure with: aftershock doctor --calibrate"))
    if timeline:
        sentence, problems = preflight.compare(timeline, out, docker_root, limits)
        findings.append(("plan", True, sentence))
        findings += [("plan", False, problem) for problem in problems]

    findings += [("fault kind", True, f"{kind} of {package}") for kind, package in EXTERNAL.packages.items()]
    findings += [("fault kind", False, reason) for reason in EXTERNAL.refused.values()]
    for name, ok, detail in findings:
        print(f"{'ok     ' if ok else 'MISSING'} {name}: {detail}")
    return 0 if all(ok for _, ok, _ in findings) else ERROR


@plans.command("check")
def plan_check(plan: PlanArgument, changes: SetOption = None) -> int:
    """Validate a plan, and report all its problems at once, each with its position and a remedy."""
    from aftershock.faults.plan.check import load_plan
    from aftershock.faults.plans import find
    from aftershock.harness.run.required_progress import share_warnings

    checked = load_plan(find(plan), tuple(changes or ()))
    for warning in (*checked.warnings, *share_warnings(checked)):
        print(warning, file=sys.stderr)
    print(f"{checked.source}: {checked.plan.name} is a valid plan")
    return 0


@plans.command("show")
def plan_show(plan: PlanArgument, seed: SeedOption = 0, changes: SetOption = None) -> int:
    """Draw the timeline of a plan as text lanes."""
    from aftershock.faults.plan.check import load_plan
    from aftershock.faults.plans import find
    from aftershock.faults.timeline.compile import compile_checked
    from aftershock.faults.timeline.lanes import lanes

    checked = load_plan(find(plan), tuple(changes or ()))
    print(lanes(compile_checked(checked, seed)))
    return 0


@plans.command("schema")
def schema() -> int:
    """Print the JSON Schema of plans, for editors."""
    from aftershock.faults.plan.catalogue import plan_schema

    print(json.dumps(plan_schema(), indent=1))
    return 0


app.add_typer(adhoc.clusters, name="cluster")
app.add_typer(adhoc.runs, name="runs")
_COMMANDS: tuple[Callable[..., int], ...] = (
    init.init,
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
plans.command("faults")(adhoc.plan_faults)
plans.command("from")(adhoc.plan_from)
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
            print(visible(redact(f"{message}; `aftershock --help` lists the commands")), file=sys.stderr)
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

"""Commands ``images`` and ``doctor``: what this machine has of what runs need."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from aftershock.errors import AftershockError, EngineError, ImageError
from aftershock.harness.cli.options import ERROR, KafkaOption, OutOption, SetOption

_JAVA_MIN = 17
_MEMORY_GIB_MIN = 4
_DISK_GIB_MIN = 5
_GIB = 1 << 30
_NO_IMAGES = "no local images yet: a run pulls or builds them, or `aftershock images --ensure` does so now"


def images(
    ensure: Annotated[bool, typer.Option("--ensure", help="Pull or build the missing images.")] = False,
    plan: Annotated[
        str | None, typer.Option("--for", metavar="PLAN", help="Pull or build only the images that a plan needs.")
    ] = None,
    runner: Annotated[
        bool, typer.Option("--runner", help="Build the image in which `aftershock` runs in a pod (docs/KUBERNETES.md).")
    ] = False,
    kafka: KafkaOption = None,
    check: Annotated[
        str | None,
        typer.Option(
            "--check", metavar="NAME", help="Test an image against the contract of node images, line by line."
        ),
    ] = None,
) -> int:
    """List Aftershock's local Docker images; with --ensure, get missing images.

    With --check, the exit code is 0 if the image keeps the contract of docs/KAFKA.md, 1 if it breaks a line, and 2 if
    the image is not on the Docker engine.
    """
    from aftershock.faults.plans import find
    from aftershock.harness.cluster import engine
    from aftershock.harness.cluster.image_contract import check_image
    from aftershock.harness.lifecycle.launch import images_for
    from aftershock.harness.run.job import prepare
    from aftershock.harness.run.progress import Progress

    log = Progress().log
    if check and (ensure or plan or kafka or runner):
        raise AftershockError("--check tests one image: leave out --ensure, --for, --runner and --kafka")
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
        job.service_images(log)
        if job.has_worker_pods:
            engine.worker_image(client, log)
    elif ensure:
        engine.kafka_image(client, kafka or engine.DEFAULT_KAFKA, log)
        engine.toxiproxy_image(client, log)
        engine.java_client_image(client, kafka or engine.DEFAULT_KAFKA, log)
        engine.tools_image(client, log)
    if runner:
        engine.runner_image(client, log)
    local_images = engine.images_here(client)
    for image in local_images:
        print(f"{image.name}  {image.size_bytes / 1e6:.0f} MB  {image.digest}")
    if not local_images:
        log(_NO_IMAGES)
    return 0


def doctor(
    plan: Annotated[
        str | None, typer.Argument(metavar="[PLAN]", help="Plan for which this machine needs space and speed.")
    ] = None,
    changes: SetOption = None,
    out: OutOption = Path("runs"),
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure which rates this machine drives, and store them; about 30 s.")
    ] = False,
    install: Annotated[
        bool,
        typer.Option("--install", help="As root on Debian or Ubuntu, install a missing Java or Docker engine first."),
    ] = False,
    kubernetes: Annotated[
        bool,
        typer.Option("--kubernetes", help="Check the Kubernetes cluster of the plan, or of the kubeconfig, as well."),
    ] = False,
) -> int:
    """Check the prerequisites on this machine, and those of a plan, and say how to install missing ones."""
    from aftershock.faults.kinds.registry import EXTERNAL, KINDS
    from aftershock.faults.plan.check import load_plan
    from aftershock.faults.plans import find
    from aftershock.faults.timeline.compile import compile_checked
    from aftershock.harness import lifecycle
    from aftershock.harness.cluster import engine
    from aftershock.harness.run import calibration, estimate, preflight

    timeline = compile_checked(load_plan(find(plan), tuple(changes or ())), 0) if plan else None
    if install:
        script = Path(lifecycle.__path__[0]) / "prerequisites.sh"
        if subprocess.run(["bash", script], env=os.environ | {"PYTHON": sys.executable}, check=False).returncode:
            return ERROR  # the script has said what is missing
    if calibrate:
        from aftershock.harness.run.progress import Progress

        estimate.store_limits(calibration.calibrate(Progress().log))
    limits, docker_root = estimate.read_limits(), None
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

    findings.append(("Java", True, _java()))
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    memory_ok = memory_gib >= _MEMORY_GIB_MIN
    advice = "" if memory_ok else f"; three brokers and Spark need {_MEMORY_GIB_MIN} GiB"
    findings.append(("memory", memory_ok, f"{memory_gib:.0f} GiB, {os.cpu_count()} cores{advice}"))
    disk_gib = shutil.disk_usage(Path.cwd()).free / _GIB
    disk_ok = disk_gib >= _DISK_GIB_MIN
    advice = "" if disk_ok else f"; images and a run need {_DISK_GIB_MIN} GiB"
    findings.append(("disk", disk_ok, f"{disk_gib:.0f} GiB free in the current folder{advice}"))

    if kubernetes:
        findings += _kubernetes(plan, tuple(changes or ()))
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


def _kubernetes(plan: str | None, changes: tuple[str, ...]) -> list[tuple[str, bool, str]]:
    """Return whether runs can be launched on a Kubernetes cluster, and which of our images its nodes have."""
    from aftershock.faults.plan.check import load_plan
    from aftershock.faults.plans import find
    from aftershock.faults.sections.cluster import Cluster, Kubernetes
    from aftershock.harness.cluster.kubernetes.api import Api
    from aftershock.harness.cluster.topology import ClusterSpec
    from aftershock.harness.lifecycle import launch_kubernetes

    cluster = load_plan(find(plan), changes).plan.cluster if plan else Cluster()
    planned, lines = cluster.kubernetes or Kubernetes(), list[str]()
    try:
        api = Api(planned.context)
        launch_kubernetes.preflight(planned, {planned.namespace}, api, lines.append)
        images = launch_kubernetes.images_for(api, ClusterSpec.of(cluster))
    except AftershockError as error:
        return [("Kubernetes", False, str(error))]
    return [("Kubernetes", True, f"{lines[0]}; images {images.kafka}, {images.toxiproxy}")]


def _java() -> str:
    """Return the version of Java if Spark can use it, or else what lacks it."""
    java_home = os.environ.get("JAVA_HOME")
    java = str(Path(java_home, "bin", "java")) if java_home else shutil.which("java")
    usable, detail = False, "not found"
    if java:
        try:
            answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=20).stderr
        except (OSError, subprocess.SubprocessError) as error:
            detail = f"{java} does not run ({error})"
        else:
            version, detail = re.search(r'version "(\d+)', answer), answer.splitlines()[0]
            usable = version is not None and int(version[1]) >= _JAVA_MIN
    advice = f"only `aftershock sql` and verdicts in Spark need Java {_JAVA_MIN} or later (openjdk-17-jre-headless)"
    return detail if usable else f"{detail}; {advice}"

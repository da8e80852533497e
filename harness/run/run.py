"""One run, from the plan to the verdict.

::

    plan ─▶ timeline ─▶ cluster ─▶ load, faults, samples ─▶ evidence ─▶ verdict, report

The live half and the judging half share nothing but the run directory. Even after an error or Ctrl-C, the clients
end, the evidence so far is kept and readable, and the cluster is removed unless it is to be kept. During the clean-up
Ctrl-C and SIGTERM wait, because half a clean-up would leave things behind.

A plan may start programs: ``client: exec`` needs the user's permission, Kafka's Java clients need an image.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import docker

from aftershock.errors import AftershockError, EvidenceError, PlanError
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import CheckedPlan, load_plan
from aftershock.faults.plan.cluster import Attach
from aftershock.faults.timeline.compile import compile_checked
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.cluster import engine, ownership
from aftershock.harness.cluster.attached import AttachedCluster, AttachmentDescriptor
from aftershock.harness.cluster.cluster import DESCRIPTOR_FILE, Cluster, collect_logs
from aftershock.harness.cluster.launch import Images, Log, images_for, launch, provenance
from aftershock.harness.cluster.target import Target
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.run.assignments import java_command
from aftershock.harness.run.client_processes import spool_for
from aftershock.harness.run.drive import drive
from aftershock.harness.run.progress import Progress
from aftershock.harness.run.rundir import RunClock, RunDir
from aftershock.harness.safety import watchdog
from aftershock.harness.safety.heal import sweep
from aftershock.harness.safety.lease import host_lease, lease_kind
from aftershock.results.checks.check import Verdict
from aftershock.results.judge import judge
from aftershock.results.report.page import write_report


@dataclass(frozen=True)
class Request:
    """Arguments of ``aftershock run``.

    ``changes`` are ``key=value`` changes to the plan, and ``kafka`` replaces its version. ``rehearse`` runs the full
    load and injects nothing. ``allow_exec`` lets the plan start programs of the user's own.
    """

    plan: Path
    changes: tuple[str, ...]
    seed: int
    out: Path
    kafka: str | None
    keep: bool
    rehearse: bool
    allow_exec: bool
    spark: str | None
    command: str


@dataclass(frozen=True)
class Job:
    """A compiled plan. ``file`` is the plan's file, None for a text; ``kafka`` replaces the plan's version."""

    file: Path | None
    checked: CheckedPlan
    timeline: Timeline
    kafka: str | None
    rehearse: bool

    @property
    def attach(self) -> Attach | None:
        """The existing cluster to attach to; None if the plan's cluster is to be launched."""
        return self.checked.plan.cluster.attach

    @property
    def spec(self) -> ClusterSpec:
        """The cluster to launch. Raises PlanError if the plan attaches to an existing cluster."""
        if self.attach:
            raise PlanError(
                ["a plan with `cluster: attach` runs only with `aftershock run`, without --keep and without --kafka"]
            )
        needs_wire_proxy = any(KINDS[step.kind].family == "protocol" for step in self.timeline.steps)
        cluster = self.checked.plan.cluster
        wire_proxy = cluster.wire_proxy or needs_wire_proxy
        return ClusterSpec.of(cluster.model_copy(update={"wire_proxy": wire_proxy}), self.kafka)


def prepare(
    plan: Path | str,
    changes: Sequence[str],
    seed: int,
    log: Log,
    *,
    kafka: str | None = None,
    rehearse: bool = False,
    allow_exec: bool = False,
) -> Job:
    """Read, check and compile a plan: a file (Path) or its text (str). Raises PlanError if it can't be run."""
    checked = load_plan(plan, changes)
    if not allow_exec:
        refuse_programs(checked)
    for warning in checked.warnings:
        log(f"warning: {warning}")
    timeline = compile_checked(checked, seed)
    if rehearse:
        log("rehearsal: full load, no fault is injected")
    file = plan.resolve() if isinstance(plan, Path) else None
    return Job(file, checked, timeline, kafka, rehearse)


def refuse_programs(checked: CheckedPlan) -> None:
    """Raise PlanError if an arm starts a program, because a plan may come from an untrusted source.

    Such a program has all the user's privileges.
    """
    problems = [
        f"{checked.source}: the arm `{name}` of workload `{workload.name}` would start a program "
        f"({' '.join(arm.command)}); add --allow-exec (in Python: allow_exec=True) if you trust it"
        for workload in checked.plan.workloads
        for name, arm in workload.arms.items()
        if arm.client == "exec"
    ]
    if problems:
        raise PlanError(problems)


def perform(request: Request, progress: Progress) -> tuple[Path, Verdict]:
    """Run a plan and judge it; return the run directory and the verdict.

    A run judged on latency has the host to itself meanwhile, and waits until it is free.

    Raises:
        PlanError: the plan can't be run; nothing was started.
        EngineError: there is no engine, or no image.
        ClusterError: the cluster did not come up.
        FaultError: a fault could not be healed.
        WorkloadError: a client process died.
        LeaseError: the host's lease can't be had.
        KeyboardInterrupt: interrupted, after the clean-up.
    """
    log = progress.log
    job = prepare(
        request.plan,
        request.changes,
        request.seed,
        log,
        kafka=request.kafka,
        rehearse=request.rehearse,
        allow_exec=request.allow_exec,
    )
    run_live: Callable[[RunDir], None]
    if job.attach and not request.keep and not request.kafka:
        sweep(None, log)
        run_live = partial(_run_attached, job, job.attach, progress)
    else:
        spec, client = job.spec, engine.connect()
        sweep(client, log)
        images = images_for(client, spec, log)
        for version in sorted({version for step in job.timeline.steps for version in step.fault().kafka_versions()}):
            engine.kafka_image(client, version, log)
        run_live = partial(_run_launched, job, spec, client, images, progress, request.keep)
    kind = lease_kind([objective.slo for objective in job.checked.plan.objectives])
    with host_lease(kind, f"aftershock run {job.timeline.name}", log):
        home = RunDir.create(request.out, job.timeline.name, request.seed, request.command)
        run_live(home)
        log("judging the evidence with Spark")
        verdict = judge(home.path, request.spark, log)
    write_report(home.path)
    log(f"report: {home.path / 'report.html'}")
    return home.path, verdict


def _run_launched(
    job: Job,
    spec: ClusterSpec,
    client: docker.DockerClient,
    images: Images,
    progress: Progress,
    keep: bool,  # noqa: FBT001 -- bound by `partial`
    home: RunDir,
) -> None:
    """Launch the cluster, drive the job on it, and remove it unless it is to be kept."""
    with record_outcome(home, progress):
        try:
            with closing(launch(spec, home.run_id, home.path, images, progress.log, keep=keep)) as cluster:
                drive_on(job, cluster, home, images, progress)
        finally:
            with defer_interrupts(progress.log):
                collect_logs(client, home.run_id, home.path / "logs")
                if not (keep and (home.path / DESCRIPTOR_FILE).exists()):
                    ownership.remove_run(client, home.run_id)
    if keep:
        down = f"aftershock cluster down --run {home.run_id}"
        progress.log(f"the cluster is kept: bootstrap {cluster.bootstrap(None)}; remove it with: {down}")


def _run_attached(job: Job, attach: Attach, progress: Progress, home: RunDir) -> None:
    """Drive the job on an existing cluster, and restore it.

    Records in its topics and committed offsets of groups stay.
    """
    with record_outcome(home, progress):
        descriptor = AttachmentDescriptor.of(home.run_id, attach, job.timeline)
        descriptor.write(home.path)
        watchdog.watch(ownership.owner(), home.run_id, home.path)
        progress.log(f"attaching to {attach.bootstrap}: only what the plan names is changed")
        with closing(AttachedCluster(descriptor, home.path)) as cluster:
            cluster.check()
            versions = {**home.facts["versions"], **cluster.versions()}
            try:
                _drive(job, cluster, home, {"versions": versions}, progress)
            finally:
                with defer_interrupts(progress.log):
                    cluster.clear()


def drive_on(job: Job, cluster: Cluster, home: RunDir, images: Images, progress: Progress) -> None:
    """Drive a job on a launched cluster, to be called within `record_outcome`. Raises as `perform` does."""
    _drive(job, cluster, home, provenance(home, cluster, images), progress)


def _drive(job: Job, cluster: Target, home: RunDir, cluster_facts: Mapping[str, Any], progress: Progress) -> None:
    """Write plan, timeline and clock to disk before the first record is sent, and drive the job.

    ``cluster_facts`` go to ``run.json``; its ``versions`` are among them.
    """
    (home.path / "plan.yaml").write_text(job.checked.text, encoding="utf-8")
    (home.path / "timeline.json").write_bytes(job.timeline.to_json())
    java: tuple[str, ...] = ()
    if any(arm.client == "java" for workload in job.checked.plan.workloads for arm in workload.arms.values()):
        kafka = cluster_facts["versions"].get("kafka", engine.DEFAULT_KAFKA)
        image = engine.java_client_image(engine.connect(), kafka, progress.log)
        java = java_command(image.name, ownership.labels_of(home.run_id, home.path, keep=False))
    clock = RunClock.starting_now()
    home.update(
        plan_file=str(job.file) if job.file else None,
        origin_ns=clock.origin_ns,
        rehearse=job.rehearse,
        **cluster_facts,
    )
    spool = spool_for(home.run_id, home.path)
    try:
        asyncio.run(drive(job.timeline, cluster, home, spool.path, clock, progress, java, rehearse=job.rehearse))
    finally:
        with defer_interrupts(progress.log):
            spool.salvage()


@contextmanager
def record_outcome(home: RunDir, progress: Progress) -> Iterator[None]:
    """Write the final status of the live half to ``run.json``, and print where the evidence is if it failed.

    Enter it as soon as the run directory exists: a run that is interrupted before it would seem to be in progress.
    """
    try:
        yield
        home.update(status="complete")
        home.seal()
    except KeyboardInterrupt:
        home.update(status="interrupted", why="interrupted")
        progress.log(f"interrupted; everything is cleaned up, the evidence so far is kept\nrun: {home.path}")
        raise
    except OSError as error:
        # the run directory itself may be unwritable: then run.json stays at "running", and there is no manifest
        with suppress(OSError):
            home.update(status="failed", why=str(error))
        raise EvidenceError(
            f"can't write evidence to {home.path}: {error.strerror or error}; make room there, or choose another --out"
            f"\nrun: {home.path}"
        ) from error
    except Exception as error:
        home.update(status="failed", why=str(error) if isinstance(error, AftershockError) else repr(error))
        error.add_note(f"run: {home.path}")
        raise


@contextmanager
def defer_interrupts(log: Callable[[str], None]) -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM until the block is left, and log a line for each."""

    def answer(*_: object) -> None:
        log("still cleaning up; a few seconds more")

    before = {number: signal.signal(number, answer) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Execution of ``aftershock run``, from the plan through the load with faults to the verdict and the report.

Producing the evidence and judging the evidence are separate steps that share only the run directory. After an error or
Ctrl-C in a run, its clients end, the evidence so far stays readable, and the cluster is removed, except with
``--keep``. Ctrl-C and SIGTERM do not interrupt the clean-up after a run.
"""

import asyncio
import errno
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from aftershock.errors import AftershockError, EvidenceError, Log, PlanError
from aftershock.faults.plan.check import CheckedPlan, check_version, load_plan
from aftershock.faults.sections.cluster import Attach, BlockDevice
from aftershock.faults.timeline.compile import compile_checked
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.assignments import java_command
from aftershock.harness.cluster.attached import AttachedCluster, AttachmentDescriptor
from aftershock.harness.cluster.cluster import DESCRIPTOR_FILE, collect_logs
from aftershock.harness.cluster.target import Target
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.lifecycle import watchdog
from aftershock.harness.lifecycle.heal import defer_interrupts, sweep
from aftershock.harness.lifecycle.launch import images_for, launch, provenance
from aftershock.harness.run.calibration import read_limits
from aftershock.harness.run.drive import drive
from aftershock.harness.run.permissions import Permissions, refuse_attachment, refuse_programs
from aftershock.harness.run.preflight import preflight
from aftershock.harness.run.progress import Progress
from aftershock.harness.run.required_apis import refuse_missing_apis
from aftershock.harness.safety import ownership
from aftershock.harness.safety.lease import host_lease, lease_kind
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.harness.world.client_processes import spool_for
from aftershock.results.model.check import Verdict

if TYPE_CHECKING:
    from aftershock.results.judge import Judge


@dataclass(frozen=True)
class Request:
    """Arguments of ``aftershock run``.

    ``changes`` has the values of ``--set``, such as ``timing.steady=5s``, and ``kafka`` a Kafka version that overrides
    that of the plan. With ``rehearse`` the run injects no faults. With ``allow_exec`` arms with the client ``exec`` may
    start programs. ``permissions`` has the addresses to which the plan may attach, and the environment variables that
    it may read.
    """

    plan: Path
    changes: tuple[str, ...]
    seed: int
    out: Path
    kafka: str | None = None
    keep: bool = False
    rehearse: bool = False
    allow_exec: bool = False
    permissions: Permissions = field(default_factory=Permissions)
    spark: str | None = None
    strict: bool = False


@dataclass(frozen=True)
class Job:
    """A compiled plan to run; a plan given as YAML text has no ``file``."""

    file: Path | None
    checked: CheckedPlan
    timeline: Timeline
    kafka: str | None
    rehearse: bool

    @property
    def attach(self) -> Attach | None:
        """Address of the existing cluster that the plan uses; None if the plan launches a cluster."""
        return self.checked.plan.cluster.attach

    @property
    def has_java_clients(self) -> bool:
        arms = [arm for workload in self.checked.plan.workloads for arm in workload.arms.values()]
        return any(arm.client == "java" for arm in arms)

    @property
    def spec(self) -> ClusterSpec:
        """Specification of the cluster to launch. Raises PlanError if the plan uses an existing cluster."""
        if self.attach:
            allowed = "`aftershock run` without --keep and without --kafka"
            raise PlanError(
                [f"a plan with `cluster: attach`, which uses an existing cluster, runs only with {allowed}"]
            )
        cluster = self.checked.plan.cluster
        needs = {need for step in self.timeline.steps for need in step.fault().cluster_needs()}
        block_device = cluster.block_device
        if needs & {"block_device", "disk_layer"}:
            block_device = block_device or BlockDevice()
            block_device = block_device.model_copy(update={"layer": block_device.layer or "disk_layer" in needs})
        needed = {
            "wire_proxy": cluster.wire_proxy or "wire_proxy" in needs,
            "block_device": block_device,
            "packets": cluster.packets or "packets" in needs,
            "clocks": cluster.clocks or "clocks" in needs,
            "hosts": cluster.hosts or "hosts" in needs,
            "gc_pauses": cluster.gc_pauses or "gc_pauses" in needs,
        }
        return ClusterSpec.of(cluster.model_copy(update=needed), self.kafka)


def prepare(
    plan: Path | str,
    changes: Sequence[str],
    seed: int,
    log: Log,
    *,
    kafka: str | None = None,
    rehearse: bool = False,
    allow_exec: bool = False,
    permissions: Permissions = Permissions(),  # noqa: B008 -- frozen
) -> Job:
    """Compile a plan from a file (Path) or YAML text (str); raise PlanError if the plan can't or may not be run."""
    checked = load_plan(plan, changes)
    if kafka:
        check_version(checked, kafka)
    if not allow_exec:
        refuse_programs(checked)
    if attach := checked.plan.cluster.attach:
        refuse_attachment(attach, checked.source_map.position, permissions)
    for warning in checked.warnings:
        log(f"warning: {warning}")
    timeline = compile_checked(checked, seed)
    if rehearse:
        log("rehearsal: full load, no fault is injected")
    file = plan.resolve() if isinstance(plan, Path) else None
    return Job(file, checked, timeline, kafka, rehearse)


def perform(request: Request, progress: Progress) -> tuple[Path, Verdict]:
    """Run a plan and judge it; return the run directory and the verdict.

    A run whose plan has SLOs on latency waits until no other run uses the host.

    Raises PlanError, before anything starts, if the plan can't be run or this host can't drive it (`preflight`),
    EngineError if Docker does not answer or an image is not available, ClusterError if the cluster did not start,
    FaultError if a fault could not be healed, WorkloadError if a client process died, and LeaseError if the lock files
    of the host's lease can't be used.
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
        permissions=request.permissions,
    )
    attach = None if request.keep or request.kafka else job.attach
    limits = read_limits()
    if attach:
        sweep(None, log)
        preflight(job.timeline, request.out, None, limits, log)
    else:
        spec, client = job.spec, engine.connect()
        sweep(client, log)
        preflight(job.timeline, request.out, engine.volumes_folder(client), limits, log)
        images = images_for(client, spec, log)
        for version in sorted({version for step in job.timeline.steps for version in step.fault().kafka_versions()}):
            engine.kafka_image(client, version, log)
    kind = lease_kind([objective.slo for objective in job.checked.plan.objectives])
    with host_lease(kind, f"aftershock run {job.timeline.name}", log), ExitStack() as resources:
        home = RunDir.create(request.out, job.timeline.name, request.seed)
        with record_outcome(home, progress):
            if attach:
                _drive_attached(job, attach, home, progress)
                judge = resources.enter_context(_prepared_judge(home.path, request, log))
            else:
                try:
                    with closing(launch(spec, home.run_id, home.path, images, log, keep=request.keep)) as cluster:
                        drive_on(job, cluster, home, provenance(home, cluster, images), progress)
                        judge = resources.enter_context(_prepared_judge(home.path, request, log))
                finally:
                    with defer_interrupts(log):
                        collect_logs(client, home.run_id, home.path / "logs")
                        if not (request.keep and (home.path / DESCRIPTOR_FILE).exists()):
                            ownership.remove_run(client, home.run_id)
        if request.keep:
            down = f"aftershock cluster down --run {home.run_id}"
            log(f"the cluster is kept: bootstrap {cluster.bootstrap(None)}; remove it with: {down}")
        log("judging the evidence with Spark")
        from aftershock.results.report.page import write_report  # noqa: PLC0415 -- imported as late as the judge

        verdict = judge(home.path)
    write_report(home.path)
    log(f"report: {home.path / 'report.html'}")
    return home.path, verdict


def _prepared_judge(home: Path, request: Request, log: Log) -> "Judge":
    """Return a judge of a run whose load is over; Spark starts, and Matplotlib loads, while the cluster is removed."""
    # imported late: Spark and Matplotlib would double the memory of the runner during a long load
    from aftershock.results.judge import Judge  # noqa: PLC0415

    judge = Judge(home / "logs" / "spark.log", request.spark, log, strict=request.strict)
    judge.prepare(home)
    Thread(target=import_module, args=("aftershock.results.report.page",), daemon=True).start()  # takes a second
    return judge


def _drive_attached(job: Job, attach: Attach, home: RunDir, progress: Progress) -> None:
    """Run a plan on an existing cluster; afterwards undo all changes, except records and committed offsets."""
    descriptor = AttachmentDescriptor.of(home.run_id, attach, job.timeline)
    descriptor.write(home.path)
    watchdog.watch(ownership.owner(), home.run_id, home.path)
    progress.log(f"attaching to {attach.bootstrap}: only topics and settings named in the plan are changed")
    with closing(AttachedCluster(descriptor, home.path)) as cluster:
        cluster.check()
        refuse_missing_apis(job.timeline, attach, cluster.api_versions())
        versions = {**home.facts["versions"], **cluster.versions()}
        try:
            drive_on(job, cluster, home, {"versions": versions}, progress)
        finally:
            with defer_interrupts(progress.log):
                cluster.clear()


def drive_on(job: Job, cluster: Target, home: RunDir, cluster_facts: Mapping[str, Any], progress: Progress) -> None:
    """Run a compiled plan on a ready cluster; call within ``with record_outcome(...)``. Raises the errors of `perform`.

    ``cluster_facts`` are added to ``run.json`` before the first record is sent.
    """
    (home.path / "plan.yaml").write_text(job.checked.text, encoding="utf-8")
    (home.path / "timeline.json").write_bytes(job.timeline.to_json())
    java: tuple[str, ...] = ()
    if job.has_java_clients:
        kafka = cluster_facts["versions"].get("kafka", engine.DEFAULT_KAFKA)
        image = engine.java_client_image(engine.connect(), kafka, progress.log)
        java = java_command(image.name, ownership.labels_of(home.run_id, home.path, keep=False))
    clock = RunClock.starting_now()
    plan_file = str(job.file) if job.file else None
    origin_unix_us = time.time_ns() // 1000 - clock.now_us()
    times = {"origin_ns": clock.origin_ns, "origin_unix_us": origin_unix_us}
    home.update(plan_file=plan_file, rehearse=job.rehearse, **times, **cluster_facts)
    spool = spool_for(home.run_id, home.path)
    try:
        asyncio.run(drive(job.timeline, cluster, home, spool.path, clock, progress, java, rehearse=job.rehearse))
    except AftershockError as error:
        for sentence in cluster.exits():
            error.add_note(sentence)
        raise
    finally:
        with defer_interrupts(progress.log):
            spool.salvage()


@contextmanager
def record_outcome(home: RunDir, progress: Progress) -> Iterator[None]:
    """Write the run's status to ``run.json`` after the ``with`` block; add the run directory to an error message.

    The ``with`` block must start as soon as the run directory exists; otherwise the status of an interrupted run would
    stay ``running``.
    """
    try:
        yield
        home.update(status="complete")
        home.seal()
    except KeyboardInterrupt:
        home.update(status="interrupted", why="interrupted")
        progress.log(f"interrupted; the clean-up is complete, and the evidence so far is stored\nrun: {home.path}")
        raise
    except Exception as error:
        known = error if isinstance(error, AftershockError) else engine.engine_error(error) or _file_error(error, home)
        # if the run directory is not writable, run.json stays at "running", and there is no manifest
        with suppress(OSError):
            home.update(status="failed", why=str(known) if known else repr(error))
        (known or error).add_note(f"run: {home.path}")
        if known and known is not error:
            raise known from error
        raise


def _file_error(error: Exception, home: RunDir) -> EvidenceError | None:
    """Return the EvidenceError for an error of the file system; None for another error, such as of a connection."""
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EvidenceError(
            f"can't write evidence to {home.path}: {error.strerror}; free disk space, or choose another --out"
        )
    if error.filename is not None or error.errno in (errno.EIO, errno.EROFS):
        path = error.filename or home.path
        return EvidenceError(f"can't read or write {path}: {error.strerror}; correct this, or choose another --out")
    return None

"""Execution of ``aftershock run``, from the plan through the load with faults to the verdict and the report.

Producing the evidence and judging the evidence are separate steps that share only the run directory. After an error or
Ctrl-C in a run, its clients end, the evidence so far stays readable, and the cluster is removed, except with
``--keep``. Ctrl-C and SIGTERM do not interrupt the clean-up after a run.
"""

from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from aftershock.errors import Log
from aftershock.faults.sections.cluster import Attach
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.attached import AttachedCluster, AttachmentDescriptor
from aftershock.harness.cluster.cluster import DESCRIPTOR_FILE, collect_logs
from aftershock.harness.lifecycle import watchdog
from aftershock.harness.lifecycle.heal import defer_interrupts, sweep
from aftershock.harness.lifecycle.launch import images_for, launch, provenance
from aftershock.harness.run.calibration import read_limits
from aftershock.harness.run.drive import drive_on, record_outcome
from aftershock.harness.run.job import Job, Permissions, prepare
from aftershock.harness.run.preflight import preflight, refuse_missing_apis
from aftershock.harness.run.progress import Progress
from aftershock.harness.safety import ownership
from aftershock.harness.safety.lease import host_lease, lease_kind
from aftershock.harness.safety.rundir import RunDir
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

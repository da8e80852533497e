"""Execution of a compiled plan: on a new or an attached cluster, judged (``aftershock run``), or on a warm cluster.

Producing the evidence and judging the evidence are separate steps that share only the run directory. After an error or
Ctrl-C in a run, its clients end, the evidence so far stays readable, and the cluster is removed, except with
``--keep``. Ctrl-C and SIGTERM do not interrupt the clean-up after a run.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from rich.console import Console

from aftershock.errors import Log
from aftershock.faults.plan.check import IN_NETWORKS
from aftershock.faults.sections.cluster import Attach
from aftershock.harness.cluster import engine, inserted_proxy
from aftershock.harness.cluster.attached import AttachedCluster, AttachmentDescriptor
from aftershock.harness.cluster.cluster import DESCRIPTOR_FILE, collect_logs
from aftershock.harness.lifecycle import watchdog
from aftershock.harness.lifecycle.heal import defer_interrupts, sweep
from aftershock.harness.lifecycle.launch import images_for, launch, provenance
from aftershock.harness.lifecycle.pool import Pool
from aftershock.harness.run.drive import drive_on, record_outcome
from aftershock.harness.run.estimate import read_limits
from aftershock.harness.run.job import Job
from aftershock.harness.run.preflight import preflight, refuse_missing_apis
from aftershock.harness.run.progress import Progress
from aftershock.harness.run.session import Suite
from aftershock.harness.safety import ownership
from aftershock.harness.safety.lease import Kind, host_lease, lease_kind
from aftershock.harness.safety.ownership import owner
from aftershock.harness.safety.rundir import RunDir
from aftershock.results.model.check import Verdict

if TYPE_CHECKING:
    from aftershock.results.judge import Judge


def perform(
    job: Job,
    out: Path,
    progress: Progress,
    *,
    keep: bool = False,
    spark: str | None = None,
    strict: bool = False,
    drive: Callable[[RunDir], None] | None = None,
) -> tuple[Path, Verdict]:
    """Run a compiled plan and judge it; return the run directory, below ``out``, and the verdict.

    A run whose plan has SLOs on latency waits until no other run uses the host. With ``keep`` the launched cluster runs
    on. ``spark`` is a Spark master. ``drive`` runs the plan on a cluster that stands already.

    Raises PlanError, before anything starts, if this host can't drive the plan (`preflight`), ProgramError
    if a version of a client is not available, EngineError if Docker
    does not answer or an image is not available, ClusterError if the cluster did not start, FaultError if a fault could
    not be healed, WorkloadError if a client process died, and LeaseError if the host's lock files can't be used.
    """
    log = progress.log
    attach = None if keep or job.kafka else job.attach
    job.programs(log)
    limits = read_limits()
    if attach:
        sweep(None, log)
        preflight(job.timeline, out, None, limits, log)
    else:
        spec, client = job.spec, engine.connect()
        sweep(client, log)
        preflight(job.timeline, out, engine.volumes_folder(client), limits, log)
        images = images_for(client, spec, log)
        for version in sorted({version for step in job.timeline.steps for version in step.fault().kafka_versions()}):
            engine.kafka_image(client, version, log)
    job.service_images(log)
    kind = lease_kind([objective.slo for objective in job.checked.plan.objectives])
    with host_lease(kind, f"aftershock run {job.timeline.name}", log), ExitStack() as resources:
        home = RunDir.create(out, job.timeline.name, job.timeline.seed)
        with record_outcome(home, progress):
            if attach or drive:
                if attach:
                    _drive_attached(job, attach, home, progress)
                elif drive:
                    drive(home)
                judge = resources.enter_context(_prepared_judge(home.path, spark, log, strict=strict))
            else:
                try:
                    with closing(launch(spec, home.run_id, home.path, images, log, keep=keep)) as cluster:
                        drive_on(job, cluster, home, provenance(home, cluster, images), progress)
                        judge = resources.enter_context(_prepared_judge(home.path, spark, log, strict=strict))
                finally:
                    with defer_interrupts(log):
                        collect_logs(client, home.run_id, home.path / "logs")
                        if not (keep and (home.path / DESCRIPTOR_FILE).exists()):
                            ownership.remove_run(client, home.run_id)
        if keep:
            down = f"aftershock cluster down --run {home.run_id}"
            log(f"the cluster is kept: bootstrap {cluster.bootstrap(None)}; remove it with: {down}")
        log("judging the evidence with Spark")
        from aftershock.results.report.page import write_report  # noqa: PLC0415 -- imported as late as the judge

        verdict = judge(home.path)
    write_report(home.path)
    log(f"report: {home.path / 'report.html'}")
    return home.path, verdict


def _prepared_judge(home: Path, spark: str | None, log: Log, *, strict: bool) -> "Judge":
    """Return a judge of a run whose load is over; Spark starts, and Matplotlib loads, while the cluster is removed."""
    # imported late: Spark and Matplotlib would double the memory of the runner during a long load
    from aftershock.results.judge import Judge  # noqa: PLC0415

    judge = Judge(home / "logs" / "spark.log", spark, log, strict=strict)
    judge.prepare(home)
    Thread(target=import_module, args=("aftershock.results.report.page",), daemon=True).start()  # takes a second
    return judge


def _drive_attached(job: Job, attach: Attach, home: RunDir, progress: Progress) -> None:
    """Run a plan on an existing cluster; afterwards undo all changes, except records and committed offsets."""
    descriptor, log = AttachmentDescriptor.of(home.run_id, attach, job.timeline), progress.log
    descriptor.write(home.path)
    watchdog.watch(ownership.owner(), home.run_id, home.path)
    changed = "topics, settings and containers" if attach.containers else "topics and settings"
    log(f"attaching to {attach.bootstrap}: only {changed} named in the plan are changed")
    with ExitStack() as resources:
        if attach.proxy:
            with closing(AttachedCluster(descriptor, home.path)) as bare:
                resources.callback(inserted_proxy.remove, engine.connect(), home.run_id)
                bare.insert_proxy(log)
        cluster = resources.enter_context(closing(AttachedCluster(descriptor, home.path)))
        cluster.check()
        if attach.containers and any(step.fault().kind in IN_NETWORKS for step in job.timeline.steps):
            cluster.packets.check(log)
        refuse_missing_apis(job.timeline, attach, cluster.api_versions())
        versions = {**home.facts["versions"], **cluster.versions()}
        try:
            drive_on(job, cluster, home, {"versions": versions}, progress)
        finally:
            with defer_interrupts(log):
                cluster.clear()


def pool_of(suite: Suite) -> Pool:
    """Return the pool of warm clusters that all processes of a session share."""
    return Pool(suite.folder / "pool", owner(suite.owner_pid), keep_dirty=suite.keep_failed)


def drive_leased(
    job: Job,
    kind: Kind,
    suite: Suite,
    test: str,
    begin: Callable[[], RunDir],
    console: Console,
    pool: Pool | None = None,
) -> RunDir:
    """Run a compiled plan on a warm cluster of ``pool``, by default the pool of ``suite``; return the run directory.

    The host is leased before the cluster, because the launch of a cluster would disturb other measurements, and because
    a process that waits for the host while it holds a cluster could deadlock. The host is released after the load,
    because nothing is measured while the cluster is restored.

    ``begin`` creates the run directory after host and cluster are leased. Other processes see ``test`` as the holder of
    the leases. Raises the errors of `perform`.
    """
    progress, client = Progress(console), engine.connect()
    if not (suite.folder / "pool").exists():
        sweep(client, progress.log)
    job.programs(progress.log)
    preflight(job.timeline, suite.folder, engine.volumes_folder(client), read_limits(), progress.log)
    with ExitStack() as quiet_host:
        quiet_host.enter_context(host_lease(kind, test, progress.log))
        with (pool or pool_of(suite)).lease(job.spec, test, progress.log) as leased:
            home = begin()
            with record_outcome(home, progress):
                progress.log(f"run: {home.path}")
                leased.run(home.path)
                try:
                    drive_on(job, leased.cluster, home, provenance(home, leased.cluster, leased.images), progress)
                finally:
                    quiet_host.close()
                    collect_logs(client, leased.cluster.run_id, home.path / "logs", leased.since)
    return home

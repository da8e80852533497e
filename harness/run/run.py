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
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console

from aftershock.errors import Log, PlanError
from aftershock.faults.plan.check import IN_NETWORKS
from aftershock.faults.sections.cluster import Attach
from aftershock.harness.attach import inserted_proxy
from aftershock.harness.attach.attached import AttachedCluster, AttachmentDescriptor
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import DESCRIPTOR_FILE, Cluster, collect_logs
from aftershock.harness.lifecycle import watchdog
from aftershock.harness.lifecycle.heal import defer_interrupts, sweep
from aftershock.harness.lifecycle.launch import Images, images_for, launch, provenance
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
        launcher = _launcher(job, keep=keep)
        launcher.sweep(log)
        preflight(job.timeline, out, launcher.volumes_folder(), limits, log)
        launcher.prepare(log)
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
                    with closing(launcher.launch(home, log)) as cluster:
                        drive_on(job, cluster, home, launcher.provenance(home, cluster), progress)
                        judge = resources.enter_context(_prepared_judge(home.path, spark, log, strict=strict))
                finally:
                    with defer_interrupts(log):
                        launcher.clean_up(home)
        if keep:
            down = f"aftershock cluster down --run {home.run_id}"
            log(f"the cluster is kept: bootstrap {cluster.bootstrap(None)}; remove it with: {down}")
        log("judging the evidence with Spark")
        from aftershock.results.report.page import write_report  # noqa: PLC0415 -- imported as late as the judge

        verdict = judge(home.path)
    write_report(home.path)
    log(f"report: {home.path / 'report.html'}")
    return home.path, verdict


class Launcher(Protocol):
    """Launch of a plan's cluster by one engine, and removal of what it left."""

    def sweep(self, log: Log) -> None:
        """Heal and remove what dead runs left on the engine."""

    def volumes_folder(self) -> Path | None:
        """Return the folder of the brokers' records on this host, None if they are elsewhere."""

    def prepare(self, log: Log) -> None:
        """Provide all images; raise an AftershockError if the cluster can't be launched."""

    def launch(self, home: RunDir, log: Log) -> Cluster:
        """Launch the cluster, and wait until it is ready."""

    def provenance(self, home: RunDir, cluster: Cluster) -> dict[str, Any]:
        """Return the facts for ``run.json`` about the cluster."""

    def clean_up(self, home: RunDir) -> None:
        """Store the nodes' logs in the run directory, and remove the cluster unless it is kept."""


class DockerLauncher:
    """Launch on the Docker engine; with ``keep``, a launched cluster stays."""

    def __init__(self, job: Job, *, keep: bool) -> None:
        self._job, self._spec, self._keep = job, job.spec, keep
        self._client = engine.connect()
        self._images: Images

    def sweep(self, log: Log) -> None:
        sweep(self._client, log)

    def volumes_folder(self) -> Path | None:
        return engine.volumes_folder(self._client)

    def prepare(self, log: Log) -> None:
        self._images = images_for(self._client, self._spec, log)
        steps = self._job.timeline.steps
        for version in sorted({version for step in steps for version in step.fault().kafka_versions()}):
            engine.kafka_image(self._client, version, log)

    def launch(self, home: RunDir, log: Log) -> Cluster:
        return launch(self._spec, home.run_id, home.path, self._images, log, keep=self._keep)

    def provenance(self, home: RunDir, cluster: Cluster) -> dict[str, Any]:
        return provenance(home, cluster, self._images)

    def clean_up(self, home: RunDir) -> None:
        collect_logs(self._client, home.run_id, home.path / "logs")
        if not (self._keep and (home.path / DESCRIPTOR_FILE).exists()):
            ownership.remove_run(self._client, home.run_id)


def _launcher(job: Job, *, keep: bool) -> Launcher:
    plan = job.spec.kubernetes
    if plan is None:
        return DockerLauncher(job, keep=keep)
    if keep:
        raise PlanError([f"{job.timeline.plan_source}: a cluster on Kubernetes can't be kept: leave out --keep"])
    from aftershock.harness.lifecycle.launch_kubernetes import KubernetesLauncher  # noqa: PLC0415 -- an extra

    return KubernetesLauncher(job.spec, plan, job.namespaces, workers=job.has_worker_pods)


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
    if attach.kubernetes:
        changed = "topics, settings and pods"
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
            with cluster.agents():
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

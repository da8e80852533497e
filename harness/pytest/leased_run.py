"""Run on a warm cluster of a pool, for chaos tests, ``explore`` and ``minimise``.

A leased run leases the host, leases a cluster, creates the run directory, drives load and faults, releases the host,
collects the broker logs, and releases the cluster. The host is leased first, because the launch of a cluster would
disturb other measurements, and because a process that waits for the host while it holds a cluster could deadlock. The
host is released after the load, because nothing is measured while the cluster is restored.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from rich.console import Console

from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import collect_logs
from aftershock.harness.cluster.launch import provenance
from aftershock.harness.cluster.ownership import owner
from aftershock.harness.cluster.pool import Pool
from aftershock.harness.pytest.session import Suite
from aftershock.harness.run.progress import Progress
from aftershock.harness.run.run import Job, drive_on, record_outcome
from aftershock.harness.run.rundir import RunDir
from aftershock.harness.safety.heal import sweep
from aftershock.harness.safety.lease import Kind, host_lease


@dataclass(frozen=True)
class LeasedJob:
    """Compiled plan to run on a leased cluster, and whether the run needs the host alone or shares it.

    ``test`` is the name, for example a test's node id, that other processes see as the holder of the leases. ``begin``
    is called after host and cluster are leased, and creates the run directory.
    """

    job: Job
    kind: Kind
    suite: Suite
    test: str
    begin: Callable[[], RunDir]
    console: Console


def pool_of(suite: Suite) -> Pool:
    """Open the cluster pool that all processes of a pytest session share; its clusters belong to the controller."""
    return Pool(suite.folder / "pool", owner(suite.owner_pid), keep_dirty=suite.keep_failed)


def drive(leased_job: LeasedJob, pool: Pool | None = None) -> RunDir:
    """Run a compiled plan on a cluster of ``pool`` (default: the session's pool); return the run directory.

    Raises the errors of ``aftershock.harness.run.run.perform`` except PlanError.
    """
    progress = Progress(leased_job.console)
    if not (leased_job.suite.folder / "pool").exists():
        sweep(engine.connect(), progress.log)
    with ExitStack() as quiet_host:
        quiet_host.enter_context(host_lease(leased_job.kind, leased_job.test, progress.log))
        with (pool or pool_of(leased_job.suite)).lease(leased_job.job.spec, leased_job.test, progress.log) as leased:
            home = leased_job.begin()
            with record_outcome(home, progress):
                progress.log(f"run: {home.path}")
                leased.run(home.path)
                try:
                    facts = provenance(home, leased.cluster, leased.images)
                    drive_on(leased_job.job, leased.cluster, home, facts, progress)
                finally:
                    quiet_host.close()
                    collect_logs(engine.connect(), leased.cluster.run_id, home.path / "logs", leased.since)
    return home

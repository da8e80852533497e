"""Run on a warm cluster of a pool, for chaos tests, ``explore`` and ``minimise``.

The host is leased before the cluster, because the launch of a cluster would disturb other measurements, and because a
process that waits for the host while it holds a cluster could deadlock. The host is released after the load, because
nothing is measured while the cluster is restored.
"""

from collections.abc import Callable
from contextlib import ExitStack

from rich.console import Console

from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import collect_logs
from aftershock.harness.lifecycle.heal import sweep
from aftershock.harness.lifecycle.launch import provenance
from aftershock.harness.lifecycle.pool import Pool
from aftershock.harness.run.calibration import read_limits
from aftershock.harness.run.drive import drive_on, record_outcome
from aftershock.harness.run.job import Job
from aftershock.harness.run.preflight import preflight
from aftershock.harness.run.progress import Progress
from aftershock.harness.run.session import Suite
from aftershock.harness.safety.lease import Kind, host_lease
from aftershock.harness.safety.ownership import owner
from aftershock.harness.safety.rundir import RunDir


def pool_of(suite: Suite) -> Pool:
    """Return the pool of warm clusters that all processes of a session share."""
    return Pool(suite.folder / "pool", owner(suite.owner_pid), keep_dirty=suite.keep_failed)


def drive(
    job: Job,
    kind: Kind,
    suite: Suite,
    test: str,
    begin: Callable[[], RunDir],
    console: Console,
    pool: Pool | None = None,
) -> RunDir:
    """Run a compiled plan on a cluster of ``pool``, by default the pool of ``suite``; return the run directory.

    ``begin`` creates the run directory after host and cluster are leased. Other processes see ``test`` as the holder of
    the leases. Raises the errors of ``aftershock.harness.run.run.perform``.
    """
    progress, client = Progress(console), engine.connect()
    if not (suite.folder / "pool").exists():
        sweep(client, progress.log)
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

"""One run on a warm cluster: what a chaos test drives, where `aftershock run` launches a cluster of its own.

::

    host's lease ─▶ cluster's lease ─▶ run directory ─▶ load and faults ─▶ host let go ─▶ broker logs ─▶ cluster let go

Rules: the host's lease comes first, since a launch would disturb the measurements of a neighbour, and whoever held a
cluster while waiting for the host could wait for ever. It is let go of when the load is over; healing and clearing the
cluster needs no quiet.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from aftershock.harness import engine
from aftershock.harness.cluster import collect_logs
from aftershock.harness.heal import sweep
from aftershock.harness.labels import owner
from aftershock.harness.lease import Kind, host_lease
from aftershock.harness.pool.pool import Pool
from aftershock.harness.progress import Progress
from aftershock.harness.run import Job, accounted_for, live
from aftershock.harness.rundir import RunDir
from aftershock.harness.suite.session import Suite


@dataclass(frozen=True)
class Errand:
    """A job to be driven for a test: ``begin`` makes its run directory once all that it needs is there.

    ``console``: where the progress goes, in lines.
    """

    job: Job
    kind: Kind
    suite: Suite
    test: str
    begin: Callable[[], RunDir]
    console: Console


def pool_of(suite: Suite) -> Pool:
    """The session's clusters; all of its processes share them, and they belong to the controller."""
    return Pool(_pool(suite), owner(suite.owner_pid), keep_dirty=suite.keep_failed)


def drive(errand: Errand, pool: Pool | None = None) -> RunDir:
    """Drive a job on a cluster of the session's pool, or of another; the evidence is complete when it returns.

    Raises:
        EngineError: there is no engine, or no image.
        ClusterError: a cluster did not come up.
        FaultError: a fault could not be healed.
        WorkloadError: a client process died.
        LeaseError: a lease can't be had.
    """
    progress = Progress(errand.console)
    if not _pool(errand.suite).exists():
        sweep(engine.connect(), progress.say)
    with ExitStack() as alone:
        alone.enter_context(host_lease(errand.kind, errand.test, progress.say))
        with (pool or pool_of(errand.suite)).lease(errand.job.spec, errand.test, progress.say) as leased:
            home = errand.begin()
            with accounted_for(home, progress):
                progress.say(f"run: {home.path}")
                leased.run(home.path)
                try:
                    live(errand.job, leased.cluster, home, leased.images, progress)
                finally:
                    alone.close()
                    collect_logs(engine.connect(), leased.cluster.run_id, home.path / "logs", leased.since)
    return home


def _pool(suite: Suite) -> Path:
    return suite.folder / "pool"

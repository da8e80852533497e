"""Execution of many plans, one after another: each on a new cluster, or all on one warm cluster.

On a warm cluster, one Spark session judges all runs.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from aftershock.faults.plans import find
from aftershock.harness.campaigns.store import Perform, Planned
from aftershock.harness.cluster import engine
from aftershock.harness.lifecycle.heal import defer_interrupts, sweep
from aftershock.harness.lifecycle.pool import Pool
from aftershock.harness.run.job import Job, prepare
from aftershock.harness.run.progress import Progress
from aftershock.harness.run.run import drive_leased, perform
from aftershock.harness.run.session import Suite
from aftershock.harness.safety.lease import lease_kind
from aftershock.harness.safety.ownership import owner
from aftershock.harness.safety.rundir import RunDir
from aftershock.results.judge import Judge
from aftershock.results.model.check import Status, Verdict
from aftershock.results.report.page import write_report


def on_new_clusters(home: Path, seed: int, progress: Progress, *, allow_exec: bool = False) -> Perform:
    """Return a function that makes a planned run below ``home`` on a cluster of its own, and judges it."""

    def run(planned: Planned) -> Path:
        plan = find(planned.plan)
        job = prepare(plan, planned.settings, seed, progress.log, kafka=planned.kafka, allow_exec=allow_exec)
        return perform(job, home, progress)[0]

    return run


@contextmanager
def warm_cluster(
    name: str, out: Path, spark: str | None, progress: Progress, console: Console, *, reports: bool = False
) -> Iterator[Callable[[Job], tuple[Path, Verdict]]]:
    """Yield a function that runs a compiled plan, judges the run, and returns the run directory and the verdict.

    All runs use one cluster, which is restored after each run. The cluster and the Spark session end with the ``with``
    block. ``name`` is the command; with ``reports`` each run gets its report, otherwise only those that fail. The
    yielded function raises the errors of ``drive_leased`` and ``Judge``.
    """
    sweep(engine.connect(), progress.log)
    suite = Suite.new(out, name, keep_failed=False)
    pool = Pool(suite.folder / "pool", owner(suite.owner_pid), 1)

    def run_plan(job: Job) -> tuple[Path, Verdict]:
        slos = [objective.slo for objective in job.checked.plan.objectives if objective.gate == "verdict"]
        kind = lease_kind(slos) if slos else "integrity"  # a shared host is enough for record counts
        plan = job.timeline.name
        begin = partial(RunDir.create, suite.out, plan, job.timeline.seed)
        home = drive_leased(job, kind, suite, f"{name} {plan}", begin, console, pool).path
        verdict = judge(home)
        if reports or verdict.status is Status.FAIL:
            write_report(home)
        return home, verdict

    try:
        with Judge(out / f"{name}-spark.log", spark, progress.log) as judge:
            yield run_plan
    finally:
        with defer_interrupts(progress.log):
            pool.close(progress.log)
            shutil.rmtree(suite.folder, ignore_errors=True)

"""What plans are run on and judged by: one warm cluster and one Spark session, for as long as a search goes on."""

import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from aftershock.harness import engine
from aftershock.harness.heal import sweep
from aftershock.harness.interrupts import undisturbed
from aftershock.harness.labels import owner
from aftershock.harness.lease import judged_on
from aftershock.harness.pool.pool import Pool
from aftershock.harness.progress import Progress
from aftershock.harness.run import Job
from aftershock.harness.rundir import RunDir
from aftershock.harness.suite.leased_run import Errand, drive
from aftershock.harness.suite.session import Suite
from aftershock.results.check import Status
from aftershock.results.judge import Judge
from aftershock.results.report import write as write_report
from aftershock.results.verdict import Verdict


class Stage:
    """Runs a job and judges it; the cluster is as new for each."""

    def __init__(self, suite: Suite, pool: Pool, judge: Judge, console: Console) -> None:
        self._suite, self._pool, self._judge, self._console = suite, pool, judge, console

    def run(self, job: Job) -> tuple[Path, Verdict]:
        """The run directory and the verdict. Raises as ``leased_run.drive`` and ``Judge`` do."""
        slos = [each.slo for each in job.checked.plan.objectives if each.gate == "verdict"]
        kind = judged_on(slos) if slos else "integrity"  # what is counted can be counted beside others
        errand = Errand(job, kind, self._suite, f"explore {job.timeline.name}", lambda: self._begun(job), self._console)
        home = drive(errand, self._pool).path
        verdict = self._judge(home)
        if verdict.status is Status.FAIL:
            write_report(home)
        return home, verdict

    def _begun(self, job: Job) -> RunDir:
        command = shlex.join(["aftershock", *sys.argv[1:]])
        return RunDir.create(self._suite.out, job.timeline.name, job.timeline.seed, command)


@contextmanager
def stage(out: Path, spark: str | None, progress: Progress, console: Console) -> Iterator[Stage]:
    """A stage whose cluster and session end with the block; nothing of either is left."""
    sweep(engine.connect(), progress.say)
    name = f"explore-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    suite = Suite(out / name, os.getpid(), keep_failed=False)
    pool = Pool(suite.folder / "pool", owner(suite.owner_pid), 1)
    try:
        with Judge(out / "explore-spark.log", spark, progress.say) as judge:
            yield Stage(suite, pool, judge, console)
    finally:
        with undisturbed(progress.say):
            pool.close(progress.say)
            shutil.rmtree(suite.folder, ignore_errors=True)

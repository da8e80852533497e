"""Stage and output of an exploration: one warm cluster with one Spark session, and the final report of a search.

The report lists the failures with the command that repeats each, and the cells that are covered, stale or never run.
"""

import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from aftershock.faults.search.coverage import Cell, matrix, tally_cells, uncovered_cells
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.ownership import owner
from aftershock.harness.cluster.pool import Pool
from aftershock.harness.labs.explore.search import ERRORS_MAX, ExploredRun, Ledger, SearchRequest
from aftershock.harness.pytest.leased_run import LeasedJob, drive
from aftershock.harness.pytest.session import Suite
from aftershock.harness.run.progress import Progress
from aftershock.harness.run.run import Job, defer_interrupts
from aftershock.harness.run.rundir import RunDir
from aftershock.harness.safety.heal import sweep
from aftershock.harness.safety.lease import lease_kind
from aftershock.results.checks.check import Status, Verdict
from aftershock.results.judge import Judge
from aftershock.results.report.page import write_report


class PlanStage:
    """Runs and judges jobs on one cluster, which is restored between them."""

    def __init__(self, suite: Suite, pool: Pool, judge: Judge, console: Console) -> None:
        self._suite, self._pool, self._judge, self._console = suite, pool, judge, console

    def run(self, job: Job) -> tuple[Path, Verdict]:
        """Return the run directory and the verdict. Raises the errors of ``leased_run.drive`` and ``Judge``."""
        slos = [each.slo for each in job.checked.plan.objectives if each.gate == "verdict"]
        kind = lease_kind(slos) if slos else "integrity"  # record counts can be judged on a shared host
        errand = LeasedJob(
            job, kind, self._suite, f"explore {job.timeline.name}", lambda: self._begun(job), self._console
        )
        home = drive(errand, self._pool).path
        verdict = self._judge(home)
        if verdict.status is Status.FAIL:
            write_report(home)
        return home, verdict

    def _begun(self, job: Job) -> RunDir:
        command = shlex.join(["aftershock", *sys.argv[1:]])
        return RunDir.create(self._suite.out, job.timeline.name, job.timeline.seed, command)


@contextmanager
def stage(out: Path, spark: str | None, progress: Progress, console: Console) -> Iterator[PlanStage]:
    """Yield a stage; its cluster and Spark session are removed at the end of the block."""
    sweep(engine.connect(), progress.log)
    name = f"explore-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    suite = Suite(out / name, os.getpid(), keep_failed=False)
    pool = Pool(suite.folder / "pool", owner(suite.owner_pid), 1)
    try:
        with Judge(out / "explore-spark.log", spark, progress.log) as judge:
            yield PlanStage(suite, pool, judge, console)
    finally:
        with defer_interrupts(progress.log):
            pool.close(progress.log)
            shutil.rmtree(suite.folder, ignore_errors=True)


_SCHEMA_VERSION = 1


def exit_code(ran: Sequence[ExploredRun]) -> int:
    """Return 1 for a FAIL, 3 for only errors or a search ended by errors, 2 without a decision, 0 otherwise."""
    statuses = [each.status for each in ran]
    if Status.FAIL in statuses:
        return 1
    if Status.ERROR in statuses and (set(statuses) == {Status.ERROR} or set(statuses[-ERRORS_MAX:]) == {Status.ERROR}):
        return 3
    return 0 if Status.PASS in statuses else 2


def text(asked: SearchRequest, read: Ledger, ran: Sequence[ExploredRun]) -> str:
    """Return the terminal's text, without a final newline."""
    cells, found = asked.frame.cells, tally_cells(read.lines, asked.today)
    lacking = uncovered_cells(cells, found, asked.today)
    fresh = len(cells) - sum(map(len, lacking.values()))
    counts = ", ".join(f"{n} {status.value}" for status, n in _counted(ran).items()) or "none"
    ran_said = f"{len(ran)} {'run' if len(ran) == 1 else 'runs'}: {counts}"
    cells_said = f"{len(cells)} cells of fault, role, phase and workload: {fresh} exercised"
    lacking_said = ", ".join(f"{len(of_it)} {word}" for word, of_it in lacking.items())
    lines = [matrix(cells, found, asked.today), "", ran_said, f"{cells_said}, {lacking_said}"]
    return "\n".join([*lines, *(line for each in ran for line in _failure(asked, each))])


def document(asked: SearchRequest, read: Ledger, ran: Sequence[ExploredRun]) -> dict[str, Any]:
    """Return the JSON document; ``never`` and ``stale`` list every cell."""
    lacking = uncovered_cells(asked.frame.cells, tally_cells(read.lines, asked.today), asked.today)
    return {
        "schema_version": _SCHEMA_VERSION,
        "seed": asked.seed,
        "runs": [_run(each) for each in ran],
        "cells": len(asked.frame.cells),
        "never": [_cell(cell) for cell in lacking["NEVER"]],
        "stale": [_cell(cell) for cell in lacking["STALE"]],
        "broken_lines": list(read.broken),
    }


def repeat_command(asked: SearchRequest, one: ExploredRun) -> str:
    """Return the command that repeats a run."""
    options = ["--allow-exec"] if asked.allow_exec else []
    return shlex.join(["aftershock", "run", str(one.plan), "--seed", str(one.seed), *options])


def _failure(asked: SearchRequest, one: ExploredRun) -> Iterable[str]:
    if one.status is Status.FAIL:
        yield f"{one.name} FAILED {', '.join(one.failed)}; evidence: {one.home}\n  again: {repeat_command(asked, one)}"
    if one.status is Status.ERROR:
        yield f"{one.name} has no verdict: {one.why}"
    if one.plan and one.status is Status.PASS:
        yield f"{one.plan} passed this time; remove it when its cause is fixed for good"


def _counted(ran: Sequence[ExploredRun]) -> dict[Status, int]:
    return {status: n for status in Status if (n := sum(each.status is status for each in ran))}


def _run(one: ExploredRun) -> dict[str, Any]:
    paths = {"run": str(one.home) if one.home else None, "plan": str(one.plan) if one.plan else None}
    return {"name": one.name, "status": one.status.value, "failed": list(one.failed), "why": one.why, **paths}


def _cell(cell: Cell) -> dict[str, str]:
    return dict(cell._asdict())

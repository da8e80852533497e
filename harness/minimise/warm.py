"""Runs candidates on warm clusters of a pool of their own, and judges them in one Spark session.

So a candidate costs little beyond its load: no launch, no JVM to start. The pool dies with this process.
"""

import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from aftershock.errors import ClusterError, EvidenceError, FaultError, WorkloadError
from aftershock.faults.document import dump
from aftershock.faults.minimise.candidate import Document
from aftershock.harness import engine
from aftershock.harness.heal import sweep
from aftershock.harness.interrupts import undisturbed
from aftershock.harness.lease import judged_on
from aftershock.harness.minimise.alike import Word, alike
from aftershock.harness.minimise.asking import Ran
from aftershock.harness.minimise.source import Source
from aftershock.harness.run import Job, prepare
from aftershock.harness.rundir import RunDir
from aftershock.harness.suite import leased_run
from aftershock.harness.suite.leased_run import Errand
from aftershock.harness.suite.session import Suite
from aftershock.results.judge import Judge


class WarmClusters:
    """A `Performer`; its clusters and its Spark session end with the block.

    Args:
        source: the run that is made small.
        folder: where its pool, its runs and its logs are.
        spark: a Spark master, if not here.
        command: what the runs say they come from.
        allow_exec: the plan may start programs of the user's own.
    """

    def __init__(self, source: Source, folder: Path, spark: str | None, command: str, *, allow_exec: bool) -> None:
        self._source, self._command, self._allow_exec = source, command, allow_exec
        self._folder, self._spark = folder, spark
        self._suite = Suite(folder, os.getpid(), keep_failed=False)
        self._open = ExitStack()
        self._alone = False

    def __enter__(self) -> Self:
        log = self._open.enter_context((self._folder / "progress.log").open("a", encoding="utf-8"))
        self._console = Console(file=log, highlight=False, force_terminal=False, width=200)
        self._open.callback(self._close_pool)
        self._judge = self._open.enter_context(Judge(self._folder / "spark.log", self._spark, self._say))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, broken: BaseException | None, at: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, broken, at)

    def __call__(self, document: Document) -> Ran:
        """Drive it and judge it; a run that broke down is told, not raised.

        Raises EngineError, LeaseError or EvidenceError where no other candidate would fare better.
        """
        source = self._source
        self._make_room()
        job = prepare(dump(document), (), source.seed, self._say, rehearse=source.rehearse, allow_exec=self._allow_exec)
        begun: list[RunDir] = []
        kind = judged_on([each.slo for each in job.checked.plan.objectives])
        errand = Errand(job, kind, self._suite, self._command, lambda: self._begin(job, begun), self._console)
        try:
            home = leased_run.drive(errand)
        except (ClusterError, FaultError, WorkloadError) as error:
            return Ran("broke", str(error).split("\n")[0], begun[-1].run_id if begun else "")
        return Ran(*self._judged(home), home.run_id)

    def _make_room(self) -> None:
        """Remove what a search that was killed left standing; LeaseError if it is not dead."""
        if not self._alone:
            leased_run.pool_of(self._suite)
            sweep(engine.connect(), self._say)
            self._alone = True

    def _judged(self, home: RunDir) -> tuple[Word, str]:
        try:
            return alike(self._judge(home.path), self._source.checks)
        except EvidenceError as error:
            return "broke", str(error)

    def _begin(self, job: Job, begun: list[RunDir]) -> RunDir:
        parent = self._folder / "runs"
        begun.append(RunDir.create(parent, job.timeline.name, job.timeline.seed, self._command))
        begun[-1].tell(minimises=self._source.run_id)
        return begun[-1]

    def _close_pool(self) -> None:
        if (self._folder / "pool").exists():
            with undisturbed(self._say):
                leased_run.pool_of(self._suite).close(self._say)

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False)

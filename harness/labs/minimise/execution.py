"""Runs candidates on warm clusters of a pool of their own, and judges them in one Spark session.

So a candidate costs little beyond its load: no launch, no JVM to start. The pool dies with this process.

What a search leaves: the small plan with its evidence, the log of what was tried, and all of it for programs.

The plan is written each time it gets smaller, whole or not at all, so there is always the best one so far.
"""

import json
import os
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console

from aftershock.errors import ClusterError, EvidenceError, FaultError, WorkloadError
from aftershock.faults.plan.document import dump_yaml
from aftershock.faults.search.candidates import Document
from aftershock.faults.search.sequential_test import Repeats
from aftershock.harness.cluster import engine
from aftershock.harness.labs import corpus
from aftershock.harness.labs.minimise.search import Minimised, Ran, Source, Word, alike
from aftershock.harness.pytest import leased_run
from aftershock.harness.pytest.leased_run import Errand
from aftershock.harness.pytest.session import Suite
from aftershock.harness.run.run import Job, prepare, undisturbed
from aftershock.harness.run.rundir import RunDir
from aftershock.harness.safety.heal import sweep
from aftershock.harness.safety.lease import judged_on
from aftershock.results.evidence.files import write_whole
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
        job = prepare(dump_yaml(document), (), source.seed, self._say, rehearse=source.rehearse, allow_exec=self._allow_exec)
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


_NAME_MAX = 34  # with what is added, a plan's name has 40 characters at most
_ENDINGS = {
    "minimal": "nothing more can be left out",
    "smaller": "the budget was over before all was tried; the same command goes on",
    "unsteady": "what is left does not come back reliably; run it again before you rely on it",
    "flake": "a flake: the plan does not come back reliably, so no smaller one could be trusted",
    "undecided": "the repetitions could not be judged; tried.md says why: mend that, and give the same command again",
    "unchanged": "the budget was over before anything smaller failed; the same command goes on",
}


def write(found: Minimised, folder: Path) -> None:
    """Everything; the plan only where there is a smaller one."""
    if found.is_smaller:
        write_whole(folder / "plan.yaml", plan_text(found))
    write_whole(folder / "tried.md", _tried(found))
    write_whole(folder / "result.json", json.dumps(to_json(found, folder), indent=1) + "\n")


def keep(found: Minimised, folder: Path, corpus_folder: Path, night: date) -> Path | None:
    """Add a small plan that comes back to the corpus, which runs first every night; what is no such plan is not added.

    A rehearsal is none: the corpus would inject.
    """
    steady = found.is_smaller and found.after.word == "steady" and found.ending in ("minimal", "smaller")
    if not steady or found.source.rehearse:
        return None
    last = str(folder / "runs" / found.last_failing)
    made_of = corpus.Found(found.source.seed, night.isoformat(), found.source.checks, last)
    return corpus.keep(corpus_folder, plan_text(found), made_of)


def plan_text(found: Minimised) -> str:
    """The small plan: it says in its ``why`` what it was made of, and in its first line how it is run."""
    source, document = found.source, found.document
    before, after = found.faults
    again = f" It failed again in {found.after}." if found.after.n else ""
    why = (
        f"{document.get('why') or ''} Made by `aftershock minimise` of {source.run_id}, {_faults(before)} then and "
        f"{after} now: FAILs {', '.join(source.checks)}.{again} Last seen in run {found.last_failing}."
    )
    said = {**document, "name": f"{str(document['name'])[:_NAME_MAX]}-small", "why": why.strip()}
    ordered: Document = {key: said[key] for key in ("name", "why", *said)}
    rehearse = " --rehearse" if source.rehearse else ""
    return f"# aftershock run plan.yaml --seed {source.seed}{rehearse}\n{dump_yaml(ordered)}"


def text(found: Minimised, folder: Path) -> str:
    """What the command prints."""
    before, after = found.faults
    lines = [
        f"{found.source.run_id}: {_ENDINGS[found.ending]}",
        f"fails: {', '.join(found.source.checks)}",
        f"came back: {found.before}" + (f"; made small: {found.after}" if found.is_smaller else ""),
        f"runs: {found.ran}, {found.took_s / 60:.1f} minutes",
    ]
    if found.is_smaller:
        none = "; it fails without any, so they are not to blame" if after == 0 else ""
        lines += [f"faults: {before} -> {after}{none}", f"plan: {folder / 'plan.yaml'}"]
        lines += [f"last failing run: {folder / 'runs' / found.last_failing}"]
    return "\n".join([*lines, f"tried: {folder / 'tried.md'}"])


def to_json(found: Minimised, folder: Path) -> dict[str, Any]:
    """The same as a document."""
    before, after = found.faults
    return {
        "schema_version": 1,
        "run_id": found.source.run_id,
        "ending": found.ending,
        "checks": list(found.source.checks),
        "seed": found.source.seed,
        "faults": {"before": before, "after": after},
        "came_back": {"before": _counted(found.before), "after": _counted(found.after)},
        "runs": found.ran,
        "took_s": found.took_s,
        "plan": str(folder / "plan.yaml") if found.is_smaller else None,
        "last_failing_run": str(folder / "runs" / found.last_failing) if found.last_failing else None,
    }


def _tried(found: Minimised) -> str:
    at_stake = ", ".join(found.source.checks)
    head = f"# What was tried to make {found.source.run_id} small\n\nFails the same way: {at_stake}\n"
    rows = ["| # | tried | outcome | took | run | why |", "|---|---|---|---|---|---|"]
    for number, one in enumerate(found.tried, 1):
        why = one.why.replace("|", "/").replace("\n", " ")
        rows.append(f"| {number} | {one.said} | {one.word} | {one.took_s:.0f} s | {one.run} | {why} |")
    return f"{head}\n{_ENDINGS[found.ending].capitalize()}.\n\n" + "\n".join(rows) + "\n"


def _counted(repeats: Repeats) -> dict[str, Any]:
    low, high = repeats.interval
    return {"failed": repeats.failed, "n": repeats.n, "low": round(low, 3), "high": round(high, 3)}


def _faults(count: int) -> str:
    return "1 fault" if count == 1 else f"{count} faults"

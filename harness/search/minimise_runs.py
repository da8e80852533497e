"""Execution and output of ``aftershock minimise``, with runs of candidate plans, and the reduced plan."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from aftershock.errors import ClusterError, EvidenceError, FaultError, WorkloadError
from aftershock.faults.search.candidates import Document
from aftershock.faults.search.sequential_test import Repeats
from aftershock.faults.sections.document import dump_yaml
from aftershock.harness.cluster import engine
from aftershock.harness.lifecycle.heal import defer_interrupts, sweep
from aftershock.harness.run import run as running
from aftershock.harness.run.job import prepare
from aftershock.harness.run.session import Suite
from aftershock.harness.safety.lease import lease_kind
from aftershock.harness.safety.rundir import RunDir, command_line
from aftershock.harness.search import corpus
from aftershock.harness.search.minimise import CandidateRun, Minimised, Performer, Source, same_failure
from aftershock.results.evidence.files import write_whole
from aftershock.results.judge import Judge


@contextmanager
def warm_clusters(source: Source, folder: Path, spark: str | None, *, allow_exec: bool) -> Iterator[Performer]:
    """Yield a function that runs and judges candidate plans; clusters and Spark end with the ``with`` block.

    The yielded function returns the result ``broke`` if the cluster, a fault or a client of the run failed, and raises
    EngineError, LeaseError or EvidenceError for errors that would affect every candidate plan.
    """
    suite = Suite(folder, os.getpid(), keep_failed=False)
    swept = False

    def perform(document: Document) -> CandidateRun:
        nonlocal swept
        if not swept:  # remove the clusters of an earlier search that was killed
            running.pool_of(suite)  # LeaseError if that search is still alive
            sweep(engine.connect(), log)
            swept = True
        job = prepare(dump_yaml(document), (), source.seed, log, rehearse=source.rehearse, allow_exec=allow_exec)
        kind = lease_kind([objective.slo for objective in job.checked.plan.objectives])
        run_id = ""

        def begin() -> RunDir:
            nonlocal run_id
            home = RunDir.create(folder / "runs", job.timeline.name, job.timeline.seed)
            home.update(minimises=source.run_id)
            run_id = home.run_id
            return home

        try:
            home = running.drive_leased(job, kind, suite, command_line(), begin, console)
        except (ClusterError, FaultError, WorkloadError) as error:
            return CandidateRun("broke", str(error).split("\n")[0], run_id)
        try:
            word, why = same_failure(judge(home.path), source.checks)
        except EvidenceError as error:
            word, why = "broke", str(error)
        return CandidateRun(word, why, run_id)

    with (folder / "progress.log").open("a", encoding="utf-8") as log_file:
        console = Console(file=log_file, highlight=False, force_terminal=False, width=200)
        log = partial(console.print, markup=False)
        try:
            with Judge(folder / "spark.log", spark, log) as judge:
                yield perform
        finally:
            if (folder / "pool").exists():
                with defer_interrupts(log):
                    running.pool_of(suite).close(log)


_NAME_MAX = 34  # plus "-small"; a plan's name has at most 40 characters
_ENDINGS = {
    "minimal": "nothing more can be removed from the plan",
    "smaller": "the budget ended before all reductions of the plan were tried; the same command continues the search",
    "unsteady": "the reduced plan does not fail in every run; repeat the reduced plan before you rely on its failure",
    "flake": "a flake: the plan does not fail reliably, so a smaller plan would prove nothing",
    "undecided": "the repetitions of the plan could not be judged; fix the causes in tried.md, and repeat the command",
    "unchanged": "the budget ended before a smaller plan failed; the same command continues the search",
}


def write(result: Minimised, folder: Path) -> None:
    """Write ``tried.md``, ``result.json`` and, if a reduced plan fails, ``plan.yaml``."""
    if result.is_smaller:
        write_whole(folder / "plan.yaml", plan_text(result))
    checks = ", ".join(result.source.checks)
    head = f"# Reductions of {result.source.run_id}\n\nFailed checks to reproduce: {checks}\n"
    rows = ["| # | tried | outcome | took | run | why |", "|---|---|---|---|---|---|"]
    for number, outcome in enumerate(result.tried, 1):
        why = outcome.why.replace("|", "/").replace("\n", " ")
        cells = (number, outcome.change, outcome.word, f"{outcome.took_s:.0f} s", outcome.run, why)
        rows.append(f"| {' | '.join(map(str, cells))} |")
    ending = _ENDINGS[result.ending].capitalize()
    write_whole(folder / "tried.md", f"{head}\n{ending}.\n\n" + "\n".join(rows) + "\n")
    write_whole(folder / "result.json", json.dumps(to_json(result, folder), indent=1) + "\n")


def keep(result: Minimised, folder: Path, corpus_folder: Path, night: date) -> Path | None:
    """Add the reduced plan to the corpus if it fails reliably, with faults injected; return the path of the plan."""
    steady = result.is_smaller and result.after.word == "steady" and result.ending in ("minimal", "smaller")
    if not steady or result.source.rehearse:
        return None
    last = str(folder / "runs" / result.last_failing)
    origin = corpus.Origin(result.source.seed, night.isoformat(), result.source.checks, last)
    return corpus.keep(corpus_folder, plan_text(result), origin)


def plan_text(result: Minimised) -> str:
    """Return the reduced plan as YAML; line 1 has a command to run the plan, the key ``why`` the plan's origin."""
    source, document = result.source, result.document
    before, after = result.faults
    again = f" The reduced plan failed again in {result.after}." if result.after.n else ""
    why = (
        f"{document.get('why') or ''} Made by `aftershock minimise` from {source.run_id}, with {after} of {before} "
        f"{'fault' if before == 1 else 'faults'}: FAILs {', '.join(source.checks)}.{again} "
        f"Last seen in run {result.last_failing}."
    )
    renamed = {**document, "name": f"{str(document['name'])[:_NAME_MAX]}-small", "why": why.strip()}
    ordered: Document = {key: renamed[key] for key in ("name", "why", *renamed)}
    rehearse = " --rehearse" if source.rehearse else ""
    return f"# aftershock run plan.yaml --seed {source.seed}{rehearse}\n{dump_yaml(ordered)}"


def text(result: Minimised, folder: Path) -> str:
    before, after = result.faults
    lines = [
        f"{result.source.run_id}: {_ENDINGS[result.ending]}",
        f"fails: {', '.join(result.source.checks)}",
        f"failed again: {result.before}" + (f"; reduced plan: {result.after}" if result.is_smaller else ""),
        f"runs: {len(result.tried)}, {result.took_s / 60:.1f} minutes",
    ]
    if result.is_smaller:
        faults = f"faults: {before} -> {after}"
        if after == 0:
            faults = f"{faults}; the plan fails without faults, so the faults are not the cause"
        lines += [faults, f"plan: {folder / 'plan.yaml'}"]
        lines += [f"last failing run: {folder / 'runs' / result.last_failing}"]
    return "\n".join([*lines, f"tried: {folder / 'tried.md'}"])


def to_json(result: Minimised, folder: Path) -> dict[str, Any]:
    before, after = result.faults
    return {
        "schema_version": 1,
        "run_id": result.source.run_id,
        "ending": result.ending,
        "checks": list(result.source.checks),
        "seed": result.source.seed,
        "faults": {"before": before, "after": after},
        "came_back": {"before": _repeats_json(result.before), "after": _repeats_json(result.after)},
        "runs": len(result.tried),
        "took_s": result.took_s,
        "plan": str(folder / "plan.yaml") if result.is_smaller else None,
        "last_failing_run": str(folder / "runs" / result.last_failing) if result.last_failing else None,
    }


def _repeats_json(repeats: Repeats) -> dict[str, Any]:
    low, high = repeats.interval
    return {"failed": repeats.failed, "n": repeats.n, "low": round(low, 3), "high": round(high, 3)}

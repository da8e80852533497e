"""Output of ``aftershock explore``: the report of the search, and its exit code."""

import shlex
from collections.abc import Sequence
from typing import Any

from aftershock.faults.search.coverage import matrix, tally_cells, uncovered_cells
from aftershock.harness.search.explore import ERRORS_MAX, ExploredRun, Ledger, SearchRequest
from aftershock.results.model.check import Status


def exit_code(runs: Sequence[ExploredRun]) -> int:
    """Return the exit code of a search, which is 1 if any run failed, else 3 after repeated errors, else 0 or 2.

    Repeated errors means that all runs, or the last three runs, are errors. The exit code is 0 if a run passed, and 2
    if no run passed.
    """
    statuses = [run.status for run in runs]
    if Status.FAIL in statuses:
        return 1
    if set(statuses[-ERRORS_MAX:]) == {Status.ERROR}:
        return 3
    return 0 if Status.PASS in statuses else 2


def text(request: SearchRequest, coverage: Ledger, runs: Sequence[ExploredRun]) -> str:
    cells, tallies = request.frame.cells, tally_cells(coverage.lines, request.today)
    uncovered = uncovered_cells(cells, tallies, request.today)
    exercised = len(cells) - sum(map(len, uncovered.values()))
    by_status = {status: n for status in Status if (n := sum(run.status is status for run in runs))}
    counts = ", ".join(f"{n} {status.value}" for status, n in by_status.items()) or "none"
    uncovered_text = ", ".join(f"{len(group)} {word}" for word, group in uncovered.items())
    lines = [
        matrix(cells, tallies, request.today),
        "",
        f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}: {counts}",
        f"{len(cells)} combinations of fault, role, phase and workload: {exercised} exercised, {uncovered_text}",
    ]
    for run in runs:
        if run.status is Status.FAIL:
            lines.append(f"{run.name} FAILED {', '.join(run.failed)}; evidence: {run.home}")
            lines.append(f"  repeat it with: {repeat_command(request, run)}")
        if run.status is Status.ERROR:
            lines.append(f"{run.name} has no verdict: {run.why}")
        if run.plan and run.status is Status.PASS:
            advice = "remove the file when the cause is fixed"
            lines.append(f"the plan {run.plan}, which failed earlier, passed this time; {advice}")
    return "\n".join(lines)


def document(request: SearchRequest, coverage: Ledger, runs: Sequence[ExploredRun]) -> dict[str, Any]:
    """Return the JSON document that ``aftershock explore --json`` prints."""
    cells = request.frame.cells
    uncovered = uncovered_cells(cells, tally_cells(coverage.lines, request.today), request.today)
    return {
        "schema_version": 1,
        "seed": request.seed,
        "runs": [
            {
                "name": run.name,
                "status": run.status.value,
                "failed": list(run.failed),
                "why": run.why,
                "run": str(run.home) if run.home else None,
                "plan": str(run.plan) if run.plan else None,
            }
            for run in runs
        ],
        "cells": len(cells),
        "never": [dict(cell._asdict()) for cell in uncovered["NEVER"]],
        "stale": [dict(cell._asdict()) for cell in uncovered["STALE"]],
        "broken_lines": list(coverage.broken),
    }


def repeat_command(request: SearchRequest, run: ExploredRun) -> str:
    options = ["--allow-exec"] if request.allow_exec else []
    return shlex.join(["aftershock", "run", str(run.plan), "--seed", str(run.seed), *options])

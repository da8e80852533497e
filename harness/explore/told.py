"""What a search says in the end: what failed and how to repeat it, what was covered, and what never was."""

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from aftershock.faults.coverage.cell import Cell
from aftershock.faults.coverage.matrix import matrix, missing
from aftershock.faults.coverage.tally import tallies
from aftershock.harness.explore.ledger import Ledger
from aftershock.harness.explore.search import ERRORS_MAX, Asked, Ran
from aftershock.results.check import Status

_SCHEMA_VERSION = 1


def exit_code(ran: Sequence[Ran]) -> int:
    """1 something failed; 3 nothing but errors, or it was given up for them; 2 nothing was decided; 0 none failed."""
    statuses = [each.status for each in ran]
    if Status.FAIL in statuses:
        return 1
    if Status.ERROR in statuses and (set(statuses) == {Status.ERROR} or set(statuses[-ERRORS_MAX:]) == {Status.ERROR}):
        return 3
    return 0 if Status.PASS in statuses else 2


def text(asked: Asked, read: Ledger, ran: Sequence[Ran]) -> str:
    """For a terminal, without a newline at the end."""
    cells, found = asked.frame.cells, tallies(read.lines, asked.today)
    lacking = missing(cells, found, asked.today)
    fresh = len(cells) - sum(map(len, lacking.values()))
    counts = ", ".join(f"{n} {status.value}" for status, n in _counted(ran).items()) or "none"
    ran_said = f"{len(ran)} {'run' if len(ran) == 1 else 'runs'}: {counts}"
    cells_said = f"{len(cells)} cells of fault, role, phase and workload: {fresh} exercised"
    lacking_said = ", ".join(f"{len(of_it)} {word}" for word, of_it in lacking.items())
    lines = [matrix(cells, found, asked.today), "", ran_said, f"{cells_said}, {lacking_said}"]
    return "\n".join([*lines, *(line for each in ran for line in _failure(asked, each))])


def document(asked: Asked, read: Ledger, ran: Sequence[Ran]) -> dict[str, Any]:
    """For programs; ``never`` and ``stale`` name every cell."""
    lacking = missing(asked.frame.cells, tallies(read.lines, asked.today), asked.today)
    return {
        "schema_version": _SCHEMA_VERSION,
        "seed": asked.seed,
        "runs": [_run(each) for each in ran],
        "cells": len(asked.frame.cells),
        "never": [_cell(cell) for cell in lacking["NEVER"]],
        "stale": [_cell(cell) for cell in lacking["STALE"]],
        "broken_lines": list(read.broken),
    }


def again(asked: Asked, one: Ran) -> str:
    """The line that repeats a failure."""
    options = ["--allow-exec"] if asked.allow_exec else []
    return shlex.join(["aftershock", "run", str(one.plan), "--seed", str(one.seed), *options])


def _failure(asked: Asked, one: Ran) -> Iterable[str]:
    if one.status is Status.FAIL:
        yield f"{one.name} FAILED {', '.join(one.failed)}; evidence: {one.home}\n  again: {again(asked, one)}"
    if one.status is Status.ERROR:
        yield f"{one.name} came to no verdict: {one.why}"
    if one.plan and one.status is Status.PASS:
        yield f"{one.plan} passed this time; once what it found is mended for good, it may go"


def _counted(ran: Sequence[Ran]) -> dict[Status, int]:
    return {status: n for status in Status if (n := sum(each.status is status for each in ran))}


def _run(one: Ran) -> dict[str, Any]:
    paths = {"run": str(one.home) if one.home else None, "plan": str(one.plan) if one.plan else None}
    return {"name": one.name, "status": one.status.value, "failed": list(one.failed), "why": one.why, **paths}


def _cell(cell: Cell) -> dict[str, str]:
    return dict(cell._asdict())

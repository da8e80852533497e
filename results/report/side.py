"""Writes ``comparison.html``: several runs side by side, a row a check and a column a run. It judges nothing.

Rules: a check is the same in two runs if its id and its subject are; one that a run doesn't have leaves an empty cell.
Rows in which runs differ in status come first, then those that a run lacks. Whether a difference in figures is more
than chance is what ``aftershock compare`` says.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from aftershock.results.check import Check, Status
from aftershock.results.files import write_whole
from aftershock.results.report.judged import Run, run_at
from aftershock.results.report.template import filled
from aftershock.results.shown import sentence
from aftershock.results.verdict import worst


@dataclass(frozen=True)
class Row:
    """One check in every run, in the runs' order; None where a run doesn't have it."""

    id: str
    subject: str
    checks: tuple[Check | None, ...]

    @property
    def differs(self) -> bool:
        """Whether the runs that have the check have different statuses."""
        return len({check.status for check in self.checks if check}) > 1

    @property
    def lacking(self) -> bool:
        """Whether a run doesn't have it."""
        return None in self.checks


def write_comparison(run_dirs: Sequence[Path], folder: Path, title: str) -> Path:
    """Writes ``folder/comparison.html`` over the judged ones of these runs and returns its path."""
    runs = [run for run in map(run_at, run_dirs) if run.verdict]
    page = filled(
        "side.html",
        title=title,
        status=worst([run.verdict.status for run in runs if run.verdict]) if runs else Status.ERROR,
        runs=[(run, link(run.home / "report.html", folder)) for run in runs],
        rows=sorted(side_by_side(runs), key=lambda row: (not row.differs, not row.lacking)),
        sentence=sentence,
    )
    return write_whole(folder / "comparison.html", page)


def side_by_side(runs: Sequence[Run]) -> list[Row]:
    """Every check that any of the runs has, in the order in which they come first."""
    found = [{(check.id, check.subject): check for check in run.verdict.checks} for run in runs if run.verdict]
    keys = dict.fromkeys(key for checks in found for key in checks)
    return [Row(*key, tuple(checks.get(key) for checks in found)) for key in keys]


def link(page: Path, folder: Path) -> str | None:
    """Quoted whole, so that no folder's name is taken for a scheme (``javascript:``) or a query; None if not there."""
    if not page.exists():
        return None
    return quote(Path(os.path.relpath(page.resolve(), folder.resolve())).as_posix())

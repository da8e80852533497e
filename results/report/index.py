"""Writes ``index.html`` over several runs: of each its verdict, what did not pass, and the way to its report."""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from aftershock.results.check import Status
from aftershock.results.files import write_whole
from aftershock.results.report.judged import Run, run_at
from aftershock.results.report.template import filled
from aftershock.results.shown import sentence, troubled
from aftershock.results.verdict import worst


def write_index(run_dirs: Sequence[Path], folder: Path, title: str) -> Path:
    """Writes ``folder/index.html`` and returns its path; links are relative, so that the folder can be moved.

    Runs that were not judged are listed with the reason, and count as ERROR.
    """
    runs = [run_at(home) for home in run_dirs]
    statuses = [run.verdict.status if run.verdict else Status.ERROR for run in runs]
    page = filled(
        "index.html",
        title=title,
        status=worst(statuses),
        statuses=statuses,
        runs=[(run, _link(run, folder)) for run in runs],
        sentence=sentence,
        troubled=troubled,
    )
    return write_whole(folder / "index.html", page)


def _link(run: Run, folder: Path) -> str | None:
    """Quoted whole, so that no folder's name is taken for a scheme (``javascript:``) or a query."""
    report = run.home / "report.html"
    return quote(Path(os.path.relpath(report.resolve(), folder.resolve())).as_posix()) if report.exists() else None

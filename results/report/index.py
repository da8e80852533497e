"""Writes ``index.html`` over several runs: of each its verdict, what did not pass, and the way to its report."""

from collections.abc import Sequence
from pathlib import Path

from aftershock.results.check import Status
from aftershock.results.files import write_whole
from aftershock.results.report.judged import run_at
from aftershock.results.report.side import link
from aftershock.results.report.template import filled
from aftershock.results.shown import sentence, troubled
from aftershock.results.verdict import worst


def write_index(run_dirs: Sequence[Path], folder: Path, title: str, comparison: Path | None = None) -> Path:
    """Writes ``folder/index.html`` and returns its path; links are relative, so that the folder can be moved.

    ``comparison`` is a page that has the same runs side by side. Runs that were not judged are listed with the reason,
    and count as ERROR.
    """
    runs = [run_at(home) for home in run_dirs]
    statuses = [run.verdict.status if run.verdict else Status.ERROR for run in runs]
    page = filled(
        "index.html",
        title=title,
        status=worst(statuses),
        statuses=statuses,
        comparison=comparison and link(comparison, folder),
        runs=[(run, link(run.home / "report.html", folder)) for run in runs],
        sentence=sentence,
        troubled=troubled,
    )
    return write_whole(folder / "index.html", page)

"""What a list of runs says of each, whatever state it is in.

Writes ``comparison.html``: several runs side by side, a row a check and a column a run. It judges nothing.

Rules: a check is the same in two runs if its id and its subject are; one that a run doesn't have leaves an empty cell.
Rows in which runs differ in status come first, then those that a run lacks. Whether a difference in figures is more
than chance is what ``aftershock compare`` says.

Writes ``index.html`` over several runs: of each its verdict, what did not pass, and the way to its report.

Verdicts as Markdown, for a pull request or a job's summary: of one run every check, of several one table first.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aftershock.errors import EvidenceError
from aftershock.results.checks.check import Check, Status, Verdict, worst
from aftershock.results.evidence.files import read_object, write_whole
from aftershock.results.evidence.stored import verdict_of
from aftershock.results.report.page import filled
from aftershock.results.text import cell, observed, problems, run_s, seconds, sentence, status, table, threshold


@dataclass(frozen=True)
class Run:
    """A run of several: its verdict, or ``why`` it has none. ``took_s`` is None where it did not get that far.

    ``rehearsal``: nothing was injected.
    """

    home: Path
    id: str
    verdict: Verdict | None
    why: str
    took_s: float | None
    rehearsal: bool = False


def run_at(home: Path) -> Run:
    """The run in ``home``, whatever state it is in: a list of runs must not end at a broken one."""
    try:
        told = read_object(home / "run.json")
    except EvidenceError as broken:
        return Run(home, home.name, None, str(broken), None)
    name, rehearsal = str(told.get("run_id", home.name)), told.get("rehearse") is True
    try:
        return Run(home, name, verdict_of(home), "", run_s(told), rehearsal)
    except EvidenceError as unjudged:
        return Run(home, name, None, _why(told, unjudged), run_s(told), rehearsal)


def _why(told: Mapping[str, Any], unjudged: EvidenceError) -> str:
    """The run's own reason if it did not finish, else that it was not judged."""
    status = told.get("status")
    return str(unjudged) if status == "complete" else f"the run is {status}: {told.get('why') or 'it does not say why'}"


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
        troubled=problems,
    )
    return write_whole(folder / "index.html", page)


SUMMARY_BYTES_MAX = 1_000_000  # GitHub refuses a step's summary of more than 1 MiB, the whole of it
_COLUMNS = ("status", "check", "subject", "observed", "threshold", "n", "why", "next")
_RUNS = ("status", "run", "took", "verdict")


def markdown(run_dir: Path) -> str:
    """The sentence and a table of the checks. Raises EvidenceError where the run was not judged."""
    return "".join(_whole(verdict_of(run_dir)))


def step_summary(run_dirs: Sequence[Path]) -> str:
    """For ``$GITHUB_STEP_SUMMARY``: a table of the runs, then those that did not PASS in full, as far as GitHub allows.

    Runs that were not judged stand in the table with the reason.
    """
    runs = [run_at(home) for home in run_dirs]
    lines = [*table(_RUNS, map(_run, runs))]
    for run in runs:
        if run.verdict and run.verdict.status is not Status.PASS:
            lines += [f"\n### {cell(run.id)}\n\n", *_whole(run.verdict)]
    return _capped(lines)


def _run(run: Run) -> tuple[str, ...]:
    took = "" if run.took_s is None else seconds(run.took_s)
    if run.verdict is None:
        return "NOT JUDGED", run.id, took, run.why
    return run.verdict.status.value, run.id, took, sentence(run.verdict)


def _whole(verdict: Verdict) -> Iterable[str]:
    yield f"**{cell(sentence(verdict))}**\n\n"
    checks = verdict.checks
    yield from table(
        _COLUMNS,
        [(status(c), c.id, c.subject, observed(c), threshold(c), str(c.n), c.why, c.next or "") for c in checks],
    )


def _capped(lines: Sequence[str]) -> str:
    """As many whole lines as fit, so that no table's row is cut."""
    kept: list[str] = []
    left = SUMMARY_BYTES_MAX
    for line in lines:
        left -= len(line.encode())
        if left < 0:
            return "".join([*kept, f"\nCut here: {len(lines) - len(kept)} lines more are in the runs' own reports.\n"])
        kept.append(line)
    return "".join(kept)

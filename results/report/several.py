"""Pages about several runs (``comparison.html``, ``index.html``), and Markdown for a pull request or a CI summary.

``comparison.html`` shows runs side by side, with a row per check and a column per run, but does not judge differences;
``aftershock compare`` decides whether a difference in figures is significant. Two runs have the same check if its id
and its subject are equal; a run without the check has an empty cell. Rows of checks whose status differs between runs
come first, then rows with an empty cell. ``index.html`` lists the verdict of each run, its problems, and a link to its
report.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aftershock.errors import EvidenceError
from aftershock.results.evidence.evidence import verify
from aftershock.results.evidence.files import read_object, write_whole
from aftershock.results.evidence.stored import verdict_of
from aftershock.results.model.answer import answer_lines
from aftershock.results.model.check import Check, Status, Verdict, worst
from aftershock.results.model.text import cell, observed, problems, run_s, seconds, sentence, status, table, threshold
from aftershock.results.report.page import filled


@dataclass(frozen=True)
class Run:
    """Run in a list of runs, with the verdict, or ``why`` there is none; the duration ``took_s`` is None if unknown."""

    home: Path
    id: str
    verdict: Verdict | None
    why: str
    took_s: float | None
    rehearsal: bool = False


def run_at(home: Path) -> Run:
    """Read the run in ``home`` in any state, because a damaged run must not prevent a list of the other runs."""
    run: Mapping[str, Any] = {"status": "complete"}
    try:
        run = read_object(home / "run.json")
        verdict, why = verdict_of(home), ""
    except EvidenceError as error:
        verdict, why = None, str(error)
        if run.get("status") != "complete":
            why = f"the run is {run.get('status')}: {run.get('why') or 'without a recorded reason'}"
    return Run(home, str(run.get("run_id", home.name)), verdict, why, run_s(run), run.get("rehearse") is True)


@dataclass(frozen=True)
class Row:
    """The results of one check in several runs, in the order of the runs; None for a run without the check."""

    id: str
    subject: str
    checks: tuple[Check | None, ...]

    @property
    def differs(self) -> bool:
        return len({check.status for check in self.checks if check}) > 1

    @property
    def lacking(self) -> bool:
        return None in self.checks


def write_comparison(run_dirs: Sequence[Path], folder: Path, title: str) -> Path:
    """Write ``folder/comparison.html`` about the runs that were judged, and return its path."""
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
    """Return a row for each check that any of the runs has, in order of first appearance."""
    by_run = [{(check.id, check.subject): check for check in run.verdict.checks} for run in runs if run.verdict]
    keys = dict.fromkeys(key for checks in by_run for key in checks)
    return [Row(*key, tuple(checks.get(key) for checks in by_run)) for key in keys]


def link(page: Path, folder: Path) -> str | None:
    """Return a relative, quoted link from ``folder`` to a page; None if the page does not exist."""
    if not page.exists():
        return None
    return quote(Path(os.path.relpath(page.resolve(), folder.resolve())).as_posix())


def write_index(run_dirs: Sequence[Path], folder: Path, title: str, comparison: Path | None = None) -> Path:
    """Write ``folder/index.html`` and return its path; its links are relative, so that the folder can be moved.

    ``comparison`` is the path of a page that compares the same runs. The index lists a run that was not judged with the
    reason, and counts the run as ERROR.
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


def markdown(run_dir: Path) -> str:
    """Return a run's verdict and checks as Markdown. Raises EvidenceError if the run was not judged."""
    verdict = verdict_of(run_dir)
    verify(run_dir, verdict.trusted)
    return "".join(_verdict_lines(verdict))


def step_summary(run_dirs: Sequence[Path]) -> str:
    """Return text for ``$GITHUB_STEP_SUMMARY`` (a table of runs, then each run that did not pass) up to GitHub's limit.

    A run that was not judged is in the table of runs with the reason. The summary is cut at the end of a line, so that
    every table row is whole.
    """
    runs = [run_at(home) for home in run_dirs]
    rows = []
    for run in runs:
        duration = "" if run.took_s is None else seconds(run.took_s)
        result = ("NOT JUDGED", run.why) if run.verdict is None else (run.verdict.status.value, sentence(run.verdict))
        rows.append((result[0], run.id, duration, result[1]))
    lines = [*table(("status", "run", "took", "verdict"), rows)]
    for run in runs:
        if run.verdict:
            is_pass = run.verdict.status is Status.PASS
            text = [*(_answer_table(run.verdict) if is_pass else _verdict_lines(run.verdict, whole=False))]
            lines += [f"\n### {cell(run.id)}\n\n", *text] if text else []
    size_bytes = 0
    for number, line in enumerate(lines):
        size_bytes += len(line.encode())
        if size_bytes > SUMMARY_BYTES_MAX:
            note = f"\nCut here: {len(lines) - number} more lines are in the reports of the runs.\n"
            return "".join([*lines[:number], note])
    return "".join(lines)


def _answer_table(verdict: Verdict) -> Iterable[str]:
    """Yield the answers as a table, a row per client and fault."""
    yield from (f"* {cell(text)}\n" for text in (*verdict.unplanned, *verdict.figures))
    lines, omitted = answer_lines(verdict.answers)
    if lines:
        yield from table(("client", "fault", "what happened"), lines)
        yield f"\n{omitted} more are in the report.\n\n" if omitted else "\n"


def _verdict_lines(verdict: Verdict, *, whole: bool = True) -> Iterable[str]:
    """Yield a verdict as Markdown; unless ``whole``, only with the checks that did not pass."""
    yield f"**{cell(sentence(verdict))}**\n\n"
    if verdict.trusted:
        yield "".join(f"* judged with --trust: {cell(difference)}\n" for difference in verdict.trusted) + "\n"
    yield from _answer_table(verdict)
    checks = verdict.checks if whole else problems(verdict)
    yield from table(
        ("status", "check", "subject", "observed", "threshold", "n", "why", "next"),
        [(status(c), c.id, c.subject, observed(c), threshold(c), str(c.n), c.why, c.next or "") for c in checks],
    )
    if not whole:
        passed = len(verdict.checks) - len(checks)
        yield f"\n{passed} more checks passed; the report has them.\n"

"""Verdicts as Markdown, for a pull request or a job's summary: of one run every check, of several one table first."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from aftershock.results.check import Status
from aftershock.results.judged import verdict_of
from aftershock.results.marked import cell, table
from aftershock.results.report.judged import Run, run_at
from aftershock.results.shown import observed, seconds, sentence, status, threshold
from aftershock.results.verdict import Verdict

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

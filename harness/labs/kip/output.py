"""Output of trials, from their records and judged runs: terminal text, JSON, the HTML page, and tables for the docs.

Everything comes from stored evidence, so ``aftershock verdict`` on a run and a repetition of the command give the same
output. A part with fewer blocks than the full number is named, because its interval is wider. A run is ignored if its
plan has changed since then.

* ``kip-951.html`` beside the runs is one file without a script.
* The terminal's text has 80 columns.
* ``python -m aftershock.harness.labs.kip.output OUT PAGE README`` writes the result tables of ``docs/KIPS.md``, and
  their digest in the README, without running anything. A trial without runs has one line that says so. Only the text
  between the two marks of a page is replaced.
"""

import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError
from aftershock.harness.labs.kip import runner
from aftershock.harness.labs.kip.runner import Record, home_of
from aftershock.harness.labs.kip.trials import TRIALS, Planned, Trial
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.stored import read_judged_run
from aftershock.results.report.page import filled
from aftershock.results.report.several import link
from aftershock.results.trials import statement
from aftershock.results.trials import statement as statement_format
from aftershock.results.trials.claim import Verdict, state_claims, verdict
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Statement, Word


@dataclass(frozen=True)
class TrialResult:
    """A trial's result. ``shortened``: sentences about parts with fewer blocks than the full number."""

    kip: int
    title: str
    verdict: Verdict
    statements: tuple[Statement, ...]
    parts: Mapping[str, Part]
    left_out: Mapping[str, str]
    shortened: tuple[str, ...]

    @property
    def about(self) -> tuple[str, ...]:
        """Hosts and versions of its runs, without duplicates."""
        return tuple(dict.fromkeys(_environment(part.run.run) for part in self.parts.values()))


def read_result(trial: Trial, home: Path) -> TrialResult:
    """Read and judge the trial's runs in ``home``. Raises EvidenceError if a run's documents are damaged."""
    record = runner.read(home, trial.kip)
    runs = {part: finished for part in trial.parts if (finished := record.done(part, None, home))}
    parts = {part.name: Part(part.name, read_judged_run(home / finished.run)) for part, finished in runs.items()}
    left_out = {part.name: _reason_left_out(part, record) for part in trial.parts if part not in runs}
    statements = state_claims(trial.claims, parts, left_out)
    shortened = tuple(
        _shortened_text(part, finished.blocks)
        for part, finished in runs.items()
        if (finished.blocks or 0) < (part.blocks or 0)
    )
    return TrialResult(trial.kip, trial.title, verdict(statements), statements, parts, left_out, shortened)


def _reason_left_out(part: Planned, record: Record) -> str:
    changed = "its plan or seed has changed since"
    return record.left_out.get(part.name) or (changed if record.stale(part) else "not requested yet")


def _shortened_text(part: Planned, blocks: int | None) -> str:
    return f"{part.name}: {blocks} of {part.blocks} blocks"


def _environment(run: Mapping[str, Any]) -> str:
    host, profile = run.get("host") or {}, run.get("profile") or {}
    versions = {"kafka": "unknown", **(run.get("versions") or {})}
    content = [f"Kafka {versions['kafka']}", f"profile {profile.get('name', 'unknown')}"]
    host_text = [f"{host.get('cores', '?')} cores", f"{host.get('memory_bytes', 0) / 2**30:.0f} GiB"]
    return ", ".join([*content, *host_text, str(host.get("kernel", "unknown")), f"Aftershock {run.get('git')}"])


_HEADERS: dict[Word, str] = {
    "confirmed": "pass",
    "contradicted": "fail",
    "not seen": "inconclusive",
    "inconclusive": "inconclusive",
}


def write(trial: Trial, result: TrialResult, home: Path) -> Path:
    """Write the page and return its path."""
    runs = [(name, part.run.run_id, link(part.home / "report.html", home)) for name, part in result.parts.items()]
    usable = {name: part for name, part in result.parts.items() if part.doubt() is None}
    page = filled(
        "trial.html",
        kip=result.kip,
        title=result.title,
        verdict=result.verdict,
        status=_HEADERS[result.verdict.word],
        statements=result.statements,
        plots=trial.plots(usable),
        runs=runs,
        left_out=list(result.left_out.items()),
        shortened=result.shortened,
        about=result.about,
        figure=statement.figure,
        word=statement.word,
    )
    return write_whole(home / f"kip-{result.kip}.html", page)


SCHEMA_VERSION = 1
WIDTH = 80
_INDENT = 14


def text(result: TrialResult) -> str:
    """Return the verdict, each statement with its figures, parts left out or shortened, and the environment."""
    return "\n".join(
        [
            *_wrapped(f"KIP-{result.kip} {result.title}: {result.verdict.word.upper()}", ""),
            *_wrapped(result.verdict.why, "  "),
            *(line for statement in result.statements for line in _statement(statement)),
            "",
            *_lines("not run", [f"{name}: {why}" for name, why in result.left_out.items()]),
            *_lines("shorter", [f"{content}, so the interval is wider" for content in result.shortened]),
            *_lines("measured on", result.about),
            *_lines("runs", [f"{name}: {part.run.run_id}" for name, part in result.parts.items()]),
        ]
    )


def document(results: Sequence[TrialResult]) -> dict[str, Any]:
    """Return the ``--json`` document: all figures of all trials."""
    return {"schema_version": SCHEMA_VERSION, "trials": [_trial(result) for result in results]}


def _trial(result: TrialResult) -> dict[str, Any]:
    return {
        "kip": result.kip,
        "title": result.title,
        "verdict": result.verdict.word,
        "why": result.verdict.why,
        "statements": [asdict(statement) for statement in result.statements],
        "runs": {name: part.run.run_id for name, part in result.parts.items()},
        "not_run": dict(result.left_out),
        "shortened": list(result.shortened),
        "measured_on": list(result.about),
    }


def _statement(statement: Statement) -> Iterator[str]:
    yield ""
    yield from _text_row(statement.role, statement.claim)
    if statement.published:
        yield from _text_row("published", statement.published)
    yield from _text_row("ours", statement_format.figure(statement.ours))
    if statement.bound:
        yield from _text_row("word", f"{statement.word} (asked: {statement.bound})")
    yield from _text_row("why", statement.why)


def _text_row(name: str, content: str) -> list[str]:
    return _wrapped(content, f"  {name:<{_INDENT - 2}}")


def _lines(name: str, content: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(content):
        yield from _text_row("" if number else name, line)


def _wrapped(content: str, prefix: str) -> list[str]:
    later = " " * (_INDENT if prefix.strip() else len(prefix))
    return textwrap.wrap(content, WIDTH, initial_indent=prefix, subsequent_indent=later, break_on_hyphens=False)


BEGIN = "<!-- results: written by `make kips` from stored evidence -->"
END = "<!-- results end -->"
_HEAD = "| | claim | published | ours | asked | word |\n| --- | --- | --- | --- | --- | --- |"


def digest(trials: list[TrialResult]) -> str:
    """Return a Markdown table with a row for each trial: first claim, word, and the number of confirmed claims."""
    rows = [_digest_row(result) for result in trials]
    return "\n".join(["| KIP | its first claim | published | ours | the trial |", "|" + " --- |" * 5, *rows])


def table(trials: list[TrialResult]) -> str:
    """Return a Markdown heading and table for each trial."""
    return "\n".join(line for result in trials for line in _trial_section(result))


def replace_results(page: str, results: str) -> str:
    """Return the page with new results between its marks. Raises AftershockError if a mark is missing."""
    before, begin, remainder = page.partition(BEGIN)
    _, end, after = remainder.partition(END)
    if not (begin and end):
        raise AftershockError(f"the page lacks {BEGIN} and {END}: put both where the table belongs")
    return f"{before}{BEGIN}\n\n{results}\n\n{END}{after}"


def main(out: str, page: str, readme: str) -> None:
    """Replace the results in ``page`` and their digest in ``readme`` with those under ``out``."""
    trial_results = [read_result(trial, home_of(trial, Path(out))) for trial in TRIALS.values()]
    for path, results in ((Path(page), table(trial_results)), (Path(readme), digest(trial_results))):
        write_whole(path, replace_results(path.read_text(encoding="utf-8"), results))


def _digest_row(result: TrialResult) -> str:
    first_claim = result.statements[0]
    words = [claim.word for claim in result.statements if claim.role == "claim"]
    whole = f"{result.verdict.word}: {words.count('confirmed')} of {len(words)} claims confirmed"
    ours = statement.figure(first_claim.ours), whole if result.parts else "not run"
    return _cells((f"{result.kip}, {result.title}", first_claim.claim, first_claim.published, *ours))


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _trial_section(result: TrialResult) -> Iterator[str]:
    if not result.parts:
        yield f"### KIP-{result.kip}, {result.title}: not run yet\n"
        return
    yield f"### KIP-{result.kip}, {result.title}: {result.verdict.word}\n"
    yield f"{result.verdict.why}.\n"
    yield _HEAD
    for claim_row in result.statements:
        yield _cells(
            (
                claim_row.role,
                claim_row.claim,
                claim_row.published,
                statement.figure(claim_row.ours),
                claim_row.bound,
                statement.word(claim_row),
            )
        )
    yield ""
    yield from (f"* not run: {name}: {why}" for name, why in result.left_out.items())
    yield from (f"* {content}" for content in (*result.shortened, *result.about))
    yield ""


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AftershockError as error:
        sys.exit(str(error))

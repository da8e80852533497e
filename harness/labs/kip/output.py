"""Output of KIP trials, from stored runs, as terminal text, JSON, the HTML page, and tables for the docs.

``python -m aftershock.harness.labs.kip.output OUT PAGE README`` writes the result tables into PAGE (``docs/KIPS.md``)
and a shorter table into README, from the runs below the folder OUT.
"""

import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError
from aftershock.harness.labs.kip import runner
from aftershock.harness.labs.kip.runner import home_of
from aftershock.harness.labs.kip.trials import TRIALS, Trial
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.stored import read_judged_run
from aftershock.results.report.page import filled
from aftershock.results.report.several import link
from aftershock.results.trials import statement
from aftershock.results.trials.claim import Verdict, state_claims, verdict
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Statement, Word


@dataclass(frozen=True)
class TrialResult:
    """Result of a KIP trial; ``shortened`` has a line for each run with fewer fault repetitions than intended."""

    kip: int
    title: str
    verdict: Verdict
    statements: tuple[Statement, ...]
    parts: Mapping[str, Part]
    left_out: Mapping[str, str]
    shortened: tuple[str, ...]

    @property
    def about(self) -> tuple[str, ...]:
        """Host, Kafka version and Aftershock version of the trial's runs, as one line for each distinct combination."""
        return tuple(dict.fromkeys(_environment(part.run.run) for part in self.parts.values()))


def read_result(trial: Trial, home: Path) -> TrialResult:
    """Read the judged runs of a trial below ``home``, and judge the trial's claims.

    A run whose plan has changed since is ignored. Raises EvidenceError for a damaged run.
    """
    record = runner.read(home, trial.kip)
    runs = {part: finished for part in trial.parts if (finished := record.finished(part, None, home))}
    parts = {part.name: Part(part.name, read_judged_run(home / finished.run)) for part, finished in runs.items()}
    left_out = {}
    for part in trial.parts:
        if part not in runs:
            stale = "the plan or seed of this part of the trial has changed since the part ran"
            default = stale if record.stale(part) else "not requested yet"
            left_out[part.name] = record.left_out.get(part.name) or default
    statements = state_claims(trial.claims, parts, left_out)
    shortened = tuple(
        f"{part.name}: {finished.blocks} of {part.blocks} blocks"
        for part, finished in runs.items()
        if (finished.blocks or 0) < (part.blocks or 0)
    )
    return TrialResult(trial.kip, trial.title, verdict(statements), statements, parts, left_out, shortened)


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


_WIDTH = 80
_INDENT = 14


def text(result: TrialResult) -> str:
    lines = _wrapped(f"KIP-{result.kip} {result.title}: {result.verdict.word.upper()}", "")
    lines += _wrapped(result.verdict.why, "  ")
    for claim in result.statements:
        lines += ["", *_text_row(claim.role, claim.claim)]
        if claim.published:
            lines += _text_row("published", claim.published)
        lines += _text_row("measured", statement.figure(claim.ours))
        if claim.bound:
            lines += _text_row("result", f"{claim.word} (bound: {claim.bound})")
        lines += _text_row("why", claim.why)
    rows = {
        "not run": [f"{name}: {why}" for name, why in result.left_out.items()],
        "shorter": [
            f"{blocks_of_part} were run, so the confidence interval is wider" for blocks_of_part in result.shortened
        ],
        "measured on": result.about,
        "runs": [f"{name}: {part.run.run_id}" for name, part in result.parts.items()],
    }
    lines.append("")
    for name, contents in rows.items():
        for number, content in enumerate(contents):
            lines += _text_row("" if number else name, content)
    return "\n".join(lines)


def document(results: Sequence[TrialResult]) -> dict[str, Any]:
    """Return the JSON document that ``aftershock kip --json`` prints."""
    trials = [
        {
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
        for result in results
    ]
    return {"schema_version": 1, "trials": trials}


def _text_row(name: str, content: str) -> list[str]:
    return _wrapped(content, f"  {name:<{_INDENT - 2}}")


def _wrapped(content: str, prefix: str) -> list[str]:
    later = " " * (_INDENT if prefix.strip() else len(prefix))
    return textwrap.wrap(content, _WIDTH, initial_indent=prefix, subsequent_indent=later, break_on_hyphens=False)


BEGIN = "<!-- results: written by `make kips` from stored evidence -->"
END = "<!-- results end -->"
_HEAD = "| | claim | published | measured | bound | result |\n| --- | --- | --- | --- | --- | --- |"


def digest(trials: list[TrialResult]) -> str:
    """Return a Markdown table with the first claim and the number of confirmed claims of each trial."""
    lines = ["| KIP | its first claim | published | measured | the trial |", "|" + " --- |" * 5]
    for result in trials:
        first = result.statements[0]
        words = [claim.word for claim in result.statements if claim.role == "claim"]
        whole = f"{result.verdict.word}: {words.count('confirmed')} of {len(words)} claims confirmed"
        state = whole if result.parts else "not run"
        title = f"{result.kip}, {result.title}"
        lines.append(_cells((title, first.claim, first.published, statement.figure(first.ours), state)))
    return "\n".join(lines)


def table(trials: list[TrialResult]) -> str:
    lines = []
    for result in trials:
        heading = f"### KIP-{result.kip}, {result.title}"
        if not result.parts:
            lines.append(f"{heading}: not run yet\n")
            continue
        lines += [f"{heading}: {result.verdict.word}\n", f"{result.verdict.why}.\n", _HEAD]
        for claim in result.statements:
            ours = statement.figure(claim.ours)
            lines.append(_cells((claim.role, claim.claim, claim.published, ours, claim.bound, statement.word(claim))))
        lines.append("")
        lines += [f"* not run: {name}: {why}" for name, why in result.left_out.items()]
        lines += [*(f"* {content}" for content in (*result.shortened, *result.about)), ""]
    return "\n".join(lines)


def replace_results(page: str, results: str) -> str:
    """Return the Markdown ``page`` with ``results`` between the comments BEGIN and END.

    Raises AftershockError if ``page`` lacks these comments.
    """
    before, begin, remainder = page.partition(BEGIN)
    _, end, after = remainder.partition(END)
    if not (begin and end):
        raise AftershockError(f"the page lacks the lines {BEGIN} and {END}; add both where the result table belongs")
    return f"{before}{BEGIN}\n\n{results}\n\n{END}{after}"


def main(out: str, page: str, readme: str) -> None:
    trial_results = [read_result(trial, home_of(trial, Path(out))) for trial in TRIALS.values()]
    for path, results in ((Path(page), table(trial_results)), (Path(readme), digest(trial_results))):
        write_whole(path, replace_results(path.read_text(encoding="utf-8"), results))


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AftershockError as error:
        sys.exit(str(error))

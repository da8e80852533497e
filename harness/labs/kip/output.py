"""A trial as its record and its judged runs have it: what the terminal, JSON, the page and the table are made from.

Rules: from what is stored alone, so that ``aftershock verdict`` on a run and the same command again give the same. A
part with fewer blocks than the trial wants is named, for its interval is wider; a run of another plan than today's
isn't looked at.

The report page of a trial, ``kip-951.html`` beside its runs: one file, without a script.

A trial in 80 columns, and as a document.

The result tables of ``docs/KIPS.md``, and their digest in the README, from the trials stored under a folder.

``python -m aftershock.harness.labs.kip.output OUT PAGE README``. Rules: nothing is run; a trial without any run has one
line that says so; what stands between the two marks is replaced, and nothing else of a page.
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
from aftershock.results.trials import statement as shown
from aftershock.results.trials.claim import Verdict, stated, verdict
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Statement, Word


@dataclass(frozen=True)
class Told:
    """All there is to say of a trial. ``shortened``: parts with fewer blocks than wanted, in words."""

    kip: int
    title: str
    verdict: Verdict
    statements: tuple[Statement, ...]
    parts: Mapping[str, Part]
    left_out: Mapping[str, str]
    shortened: tuple[str, ...]

    @property
    def about(self) -> tuple[str, ...]:
        """The hosts and versions of its runs, each once."""
        return tuple(dict.fromkeys(_about(part.run.run) for part in self.parts.values()))


def tell(trial: Trial, home: Path) -> Told:
    """Read and judge what ``home`` holds. EvidenceError where a run's documents are damaged."""
    kept = runner.read(home, trial.kip)
    runs = {part: done for part in trial.parts if (done := kept.done(part, None, home))}
    parts = {part.name: Part(part.name, read_judged_run(home / done.run)) for part, done in runs.items()}
    left_out = {part.name: _why(part, kept) for part in trial.parts if part not in runs}
    statements = stated(trial.claims, parts, left_out)
    shortened = tuple(
        _short(part, done.blocks) for part, done in runs.items() if (done.blocks or 0) < (part.blocks or 0)
    )
    return Told(trial.kip, trial.title, verdict(statements), statements, parts, left_out, shortened)


def _why(part: Planned, kept: Record) -> str:
    changed = "its plan or seed has changed since"
    return kept.left_out.get(part.name) or (changed if kept.stale(part) else "not asked for yet")


def _short(part: Planned, blocks: int | None) -> str:
    return f"{part.name}: {blocks} of {part.blocks} blocks"


def _about(run: Mapping[str, Any]) -> str:
    host, profile = run.get("host") or {}, run.get("profile") or {}
    versions = {"kafka": "unknown", **(run.get("versions") or {})}
    said = [f"Kafka {versions['kafka']}", f"profile {profile.get('name', 'unknown')}"]
    host_said = [f"{host.get('cores', '?')} cores", f"{host.get('memory_bytes', 0) / 2**30:.0f} GiB"]
    return ", ".join([*said, *host_said, str(host.get("kernel", "unknown")), f"Aftershock {run.get('git')}"])


_HEADERS: dict[Word, str] = {
    "confirmed": "pass",
    "contradicted": "fail",
    "not seen": "inconclusive",
    "inconclusive": "inconclusive",
}


def write(trial: Trial, told: Told, home: Path) -> Path:
    """Writes the page and returns its path."""
    runs = [(name, part.run.run_id, link(part.home / "report.html", home)) for name, part in told.parts.items()]
    sound = {name: part for name, part in told.parts.items() if part.doubt() is None}
    page = filled(
        "trial.html",
        kip=told.kip,
        title=told.title,
        verdict=told.verdict,
        status=_HEADERS[told.verdict.word],
        statements=told.statements,
        plots=trial.plots(sound),
        runs=runs,
        left_out=list(told.left_out.items()),
        shortened=told.shortened,
        about=told.about,
        figure=statement.figure,
        word=statement.word,
    )
    return write_whole(home / f"kip-{told.kip}.html", page)


SCHEMA_VERSION = 1
WIDTH = 80
_INDENT = 14


def text(told: Told) -> str:
    """The verdict, each statement with its figures, then what was not run, shortened, and where."""
    return "\n".join(
        [
            *_wrapped(f"KIP-{told.kip} {told.title}: {told.verdict.word.upper()}", ""),
            *_wrapped(told.verdict.why, "  "),
            *(line for statement in told.statements for line in _statement(statement)),
            "",
            *_lines("not run", [f"{name}: {why}" for name, why in told.left_out.items()]),
            *_lines("shorter", [f"{said}, so the interval is wider" for said in told.shortened]),
            *_lines("measured on", told.about),
            *_lines("runs", [f"{name}: {part.run.run_id}" for name, part in told.parts.items()]),
        ]
    )


def document(told: Sequence[Told]) -> dict[str, Any]:
    """What ``--json`` prints: every number, of every trial."""
    return {"schema_version": SCHEMA_VERSION, "trials": [_trial(each) for each in told]}


def _trial(told: Told) -> dict[str, Any]:
    return {
        "kip": told.kip,
        "title": told.title,
        "verdict": told.verdict.word,
        "why": told.verdict.why,
        "statements": [asdict(statement) for statement in told.statements],
        "runs": {name: part.run.run_id for name, part in told.parts.items()},
        "not_run": dict(told.left_out),
        "shortened": list(told.shortened),
        "measured_on": list(told.about),
    }


def _statement(statement: Statement) -> Iterator[str]:
    yield ""
    yield from _row(statement.role, statement.claim)
    if statement.published:
        yield from _row("published", statement.published)
    yield from _row("ours", shown.figure(statement.ours))
    if statement.bound:
        yield from _row("word", f"{statement.word} (asked: {statement.bound})")
    yield from _row("why", statement.why)


def _row(name: str, said: str) -> list[str]:
    return _wrapped(said, f"  {name:<{_INDENT - 2}}")


def _lines(name: str, said: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(said):
        yield from _row("" if number else name, line)


def _wrapped(said: str, first: str) -> list[str]:
    later = " " * (_INDENT if first.strip() else len(first))
    return textwrap.wrap(said, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)


BEGIN = "<!-- results: written by `make kips` from stored evidence -->"
END = "<!-- results end -->"
_HEAD = "| | claim | published | ours | asked | word |\n| --- | --- | --- | --- | --- | --- |"


def digest(trials: list[Told]) -> str:
    """A row a trial: its first claim, its word, and how many claims hold. In Markdown."""
    rows = [_row_table(told) for told in trials]
    return "\n".join(["| KIP | its first claim | published | ours | the trial |", "|" + " --- |" * 5, *rows])


def table(trials: list[Told]) -> str:
    """A heading and a table a trial, in Markdown."""
    return "\n".join(line for told in trials for line in _trial_table(told))


def put(page: str, results: str) -> str:
    """The page with new results between its marks. AftershockError where it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise AftershockError(f"the page lacks {BEGIN} and {END}: put both where the table belongs")
    return f"{before}{BEGIN}\n\n{results}\n\n{END}{after}"


def main(out: str, page: str, readme: str) -> None:
    """Replace the results in ``page``, and their digest in ``readme``, by those under ``out``."""
    told = [tell(trial, home_of(trial, Path(out))) for trial in TRIALS.values()]
    for path, results in ((Path(page), table(told)), (Path(readme), digest(told))):
        write_whole(path, put(path.read_text(encoding="utf-8"), results))


def _row_table(told: Told) -> str:
    first, words = told.statements[0], [one.word for one in told.statements if one.role == "claim"]
    whole = f"{told.verdict.word}: {words.count('confirmed')} of {len(words)} claims confirmed"
    ours = statement.figure(first.ours), whole if told.parts else "not run"
    return _cells((f"{told.kip}, {told.title}", first.claim, first.published, *ours))


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _trial_table(told: Told) -> Iterator[str]:
    if not told.parts:
        yield f"### KIP-{told.kip}, {told.title}: not run yet\n"
        return
    yield f"### KIP-{told.kip}, {told.title}: {told.verdict.word}\n"
    yield f"{told.verdict.why}.\n"
    yield _HEAD
    for one in told.statements:
        yield _cells((one.role, one.claim, one.published, statement.figure(one.ours), one.bound, statement.word(one)))
    yield ""
    yield from (f"* not run: {name}: {why}" for name, why in told.left_out.items())
    yield from (f"* {said}" for said in (*told.shortened, *told.about))
    yield ""


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AftershockError as error:
        sys.exit(str(error))

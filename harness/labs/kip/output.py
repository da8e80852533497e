"""Output of KIP trials, from stored runs, as terminal text, JSON, the HTML page, and tables for the docs.

``python -m aftershock.harness.labs.kip.output OUT PAGE README`` writes the charts and result tables into PAGE
(``docs/KIPS.md``, with the drawings in the folder ``kips`` beside it) and a shorter table into README, from the runs
below the folder OUT.
"""

import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.model import dump
from aftershock.faults.plans import find
from aftershock.harness.labs.kip import runner
from aftershock.harness.labs.kip.runner import home_of
from aftershock.harness.labs.kip.trials import TRIALS, Planned, Trial
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.stored import read_judged_run
from aftershock.results.report.page import filled
from aftershock.results.report.several import link
from aftershock.results.trials import statement
from aftershock.results.trials.claim import Parts, Verdict, state_claims, tally, verdict
from aftershock.results.trials.mechanism import mechanism
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Measured, Plot, Statement, Word, unknown


@dataclass(frozen=True)
class TrialResult:
    kip: int
    title: str
    version: int
    verdict: Verdict
    statements: tuple[Statement, ...]
    parts: Mapping[str, Part]
    left_out: Mapping[str, str]

    @property
    def about(self) -> tuple[str, ...]:
        """Host, Kafka version and Aftershock version of the trial's runs, as one line for each distinct combination."""
        return tuple(dict.fromkeys(_environment(part.run.run) for part in self.parts.values()))


def read_result(trial: Trial, home: Path) -> TrialResult:
    """Read the judged runs of a trial below ``home``, and judge the trial's claims.

    A run whose plan has changed since is ignored. The runs of a sabotaged trial are judged as if they were honest: by
    the cluster settings of the trial's own plans. Reduced evidence (``reduce.py``) decides by the stored claims alone.
    Raises EvidenceError for a damaged run, or one of another version.
    """
    record = runner.read(home, trial)
    runs = {part: finished for part in trial.parts if (finished := record.finished(part, home))}
    parts = {}
    for part, finished in runs.items():
        run = read_judged_run(home / finished.run)
        if trial.sabotaged and part.off:
            cluster = {**run.timeline["cluster"], **honest_settings(part)}
            run = replace(run, timeline={**run.timeline, "cluster": cluster})
        parts[part.name] = Part(part.name, run)
    left_out = {}
    for part in trial.parts:
        if part not in runs:
            stale = "the plan or seed of this part of the trial has changed since the part ran"
            default = stale if record.stale(part) else "not requested yet" if record.claims is None else "not stored"
            left_out[part.name] = record.left_out.get(part.name) or default
    claims = [
        claim if record.claims is None or claim.id in record.claims else replace(claim, needs=(), measure=_not_stored)
        for claim in trial.claims
    ]
    statements = state_claims(claims, parts, left_out)
    title = f"{trial.title} (sabotage: the KIP is off)" if trial.sabotaged else trial.title
    version = trial.registration.version
    stored = [entry for entry in statements if record.claims is None or entry.id in record.claims]
    found = verdict(stored)
    if record.claims is not None:
        found = replace(found, why=f"{found.why}; {len(statements) - len(stored)} other claims are not stored")
    return TrialResult(trial.kip, title, version, found, statements, parts, left_out)


def honest_settings(part: Planned) -> dict[str, Any]:
    """Return the settings of brokers that a part's plan has without sabotage; nothing for a plan without a cluster."""
    honest = load_plan(find(part.plan), part.changes[: -len(part.off)]).plan
    cluster = dump(honest).get("cluster", {})
    return {name: cluster[name] for name in ("config", "brokers") if cluster.get(name)}


def _not_stored(_: Parts) -> Measured:
    return Measured(unknown(), doubt="its evidence is not stored; run the trial")


def as_text(entry: Statement) -> str:
    return f"{entry.word}: {statement.figure(entry.ours)}; {entry.why}"


def _environment(run: Mapping[str, Any]) -> str:
    host, profile = run.get("host") or {}, run.get("profile") or {}
    versions = {"kafka": "unknown", **(run.get("versions") or {})}
    content = [f"Kafka {versions['kafka']}", f"profile {profile.get('name', 'unknown')}"]
    host_text = [f"{host.get('cores', '?')} cores", f"{host.get('memory_bytes', 0) / 2**30:.0f} GiB"]
    return ", ".join([*content, *host_text, str(host.get("kernel", "unknown")), f"Aftershock {run.get('git')}"])


_HEADERS: dict[Word, str] = {"confirmed": "pass", "contradicted": "fail", "undecided": "inconclusive"}


def write(trial: Trial, result: TrialResult, home: Path) -> Path:
    runs = [(name, part.run.run_id, link(part.home / "report.html", home)) for name, part in result.parts.items()]
    page = filled(
        "trial.html",
        kip=result.kip,
        title=result.title,
        verdict=result.verdict,
        status=_HEADERS[result.verdict.word],
        statements=result.statements,
        plots=(mechanism(result.kip), *_plots(trial, result)),
        runs=runs,
        left_out=list(result.left_out.items()),
        about=result.about,
        figure=statement.figure,
        word=statement.word,
    )
    return write_whole(home / f"kip-{result.kip}.html", page)


def _plots(trial: Trial, result: TrialResult) -> tuple[Plot, ...]:
    return trial.plots({name: part for name, part in result.parts.items() if part.doubt() is None})


_WIDTH = 80
_INDENT = 14


def text(result: TrialResult) -> str:
    lines = _wrapped(f"KIP-{result.kip} {result.title}: {result.verdict.word.upper()}", "")
    lines += _wrapped(result.verdict.why, "  ")
    for claim in result.statements:
        lines += ["", *_text_row(claim.role, f"{claim.id}{' (headline)' if claim.headline else ''}: {claim.claim}")]
        if claim.published:
            lines += _text_row("published", claim.published)
        lines += _text_row("measured", statement.figure(claim.ours))
        if claim.bound:
            lines += [*_text_row("rule", claim.design), *_text_row("result", claim.word)]
        lines += _text_row("why", claim.why)
    rows = {
        "not run": [f"{name}: {why}" for name, why in result.left_out.items()],
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
            "version": result.version,
            "title": result.title,
            "verdict": result.verdict.word,
            "why": result.verdict.why,
            "statements": [asdict(statement) for statement in result.statements],
            "runs": {name: part.run.run_id for name, part in result.parts.items()},
            "not_run": dict(result.left_out),
            "measured_on": list(result.about),
        }
        for result in results
    ]
    return {"schema_version": 2, "trials": trials}


def _text_row(name: str, content: str) -> list[str]:
    return _wrapped(content, f"  {name:<{_INDENT - 2}}")


def _wrapped(content: str, prefix: str) -> list[str]:
    later = " " * (_INDENT if prefix.strip() else len(prefix))
    return textwrap.wrap(content, _WIDTH, initial_indent=prefix, subsequent_indent=later, break_on_hyphens=False)


BEGIN = "<!-- results: written by `make kips` from stored evidence -->"
END = "<!-- results end -->"
_HEAD = "| | claim | published | measured | rule; units, power | result |\n| --- | --- | --- | --- | --- | --- |"


def digest(trials: list[TrialResult]) -> str:
    """Return a Markdown table of the headline claim, under both profiles, and the claims by word of each trial."""
    lines = ["| KIP | headline claim | published | measured | Kafka's defaults | all claims |", "|" + " --- |" * 6]
    for result in trials:
        headline = next((claim for claim in result.statements if claim.headline), result.statements[0])
        title, counts = f"{result.kip}, {result.title}", str(tally(result.statements)) if result.parts else "not run"
        both = [headline, *(claim for claim in result.statements if claim.role == "production")]
        figures = [f"{claim.word}: {statement.figure(claim.ours)}" for claim in both]
        lines.append(_cells((title, headline.claim, headline.published, *[*figures, "-"][:2], counts)))
    return "\n".join(lines)


def table(trials: list[TrialResult], charts: Mapping[int, Sequence[Plot]] | None = None) -> str:
    """Return Markdown with the charts, which lie in the folder ``kips``, and the table of all claims of each trial."""
    lines = []
    for result in trials:
        heading = f"### KIP-{result.kip}, {result.title}"
        if not result.parts:
            lines.append(f"{heading}: not run yet\n")
            continue
        lines += [f"{heading}\n", f"{tally(result.statements)}.\n"]
        for number, plot in enumerate((charts or {}).get(result.kip, ()), 1):
            lines.append(f"![{plot.title}](kips/kip{result.kip}-{number}.svg)\n\n{plot.title}. {plot.reading}\n")
        lines.append(_HEAD)
        for claim in result.statements:
            texts = (claim.label, claim.claim, claim.published, statement.figure(claim.ours), claim.design)
            word = statement.word(claim)
            unexplained = word == "undecided" or not claim.ours.n
            result_cell = f"{word}: {claim.why}".removeprefix("-: ") if unexplained else word
            lines.append(_cells((*texts, result_cell)))
        lines.append("")
        lines += [f"* not run: {name}: {why}" for name, why in result.left_out.items()]
        lines += [*(f"* {content}" for content in result.about), ""]
    return "\n".join(lines)


def replace_results(page: str, results: str, begin: str = BEGIN, end: str = END) -> str:
    """Return the Markdown ``page`` with ``results`` between the comments ``begin`` and ``end``.

    Raises AftershockError if ``page`` lacks these comments.
    """
    before, found_begin, remainder = page.partition(begin)
    _, found_end, after = remainder.partition(end)
    if not (found_begin and found_end):
        raise AftershockError(f"the page lacks the lines {begin} and {end}; add both where the result table belongs")
    return f"{before}{begin}\n\n{results}\n\n{end}{after}"


_PUBLISHED = re.compile(r"^### KIP-(\d+), .*?(?=^### KIP-|\Z)|^\| (\d+), [^\n]*", re.MULTILINE | re.DOTALL)
"""The section of a KIP in ``table``, or its row in ``digest``."""


def keep_published(results: str, published: str, kips: Collection[int]) -> str:
    """Return ``results`` with the sections or rows of some KIPs as they are in ``published``, where they exist."""
    old = {int(match[1] or match[2]): match[0] for match in _PUBLISHED.finditer(published)}
    return _PUBLISHED.sub(
        lambda match: old.get(kip, match[0]) if (kip := int(match[1] or match[2])) in kips else match[0], results
    )


def main(out: str, page: str, readme: str) -> None:
    """Write the results of the trials below ``out`` into two pages; KIPs that have not run stay as published."""
    trial_results = [read_result(trial, home_of(trial, Path(out))) for trial in TRIALS.values()]
    drawings = Path(page).parent / "kips"
    drawings.mkdir(exist_ok=True)
    charts = {result.kip: _plots(TRIALS[result.kip], result) for result in trial_results}
    missing = {result.kip for result in trial_results if not result.parts}
    for kip, plots in charts.items():
        write_whole(drawings / f"kip{kip}.svg", f"{mechanism(kip).svg}\n")
        for number, plot in enumerate(plots, 1):
            write_whole(drawings / f"kip{kip}-{number}.svg", f"{plot.svg}\n")
    for path, results in ((Path(page), table(trial_results, charts)), (Path(readme), digest(trial_results))):
        content = path.read_text(encoding="utf-8")
        published = content.partition(BEGIN)[2].partition(END)[0].strip("\n") + "\n"
        write_whole(path, replace_results(content, keep_published(results, published, missing)))


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AftershockError as error:
        sys.exit(str(error))

"""Report ``report.html``, a self-contained page that works offline and states the verdict first.

The report is rendered from ``verdict.json``, ``analysis.json`` and the run's other documents, so no Spark is needed.
All that it says is in its HTML; two scripts, uPlot and ``report.js``, draw the charts and make the page interactive.
The content security policy allows no other script, by their hashes, and no address.
"""

import base64
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from aftershock.redaction import redact
from aftershock.results.checks.obligations.lanes import lanes
from aftershock.results.checks.obligations.spans import Span
from aftershock.results.compare.runs import arms_of
from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.phases import RUN
from aftershock.results.evidence.stored import analysis_of, older_version_note, trusted_in, verdict_of
from aftershock.results.explain.events import Moment, forces
from aftershock.results.explain.output import build_story
from aftershock.results.explain.record import Attempted, sending
from aftershock.results.model import text
from aftershock.results.model.answer import LINES_MAX
from aftershock.results.model.check import Check, Status
from aftershock.results.report import issue, plots, reading, tables
from aftershock.results.report.reading import band_of, confidences
from aftershock.results.report.svg import colours
from aftershock.results.report.timeline import timeline

SCRIPTS = ("uplot/uPlot.iife.min.js", "report.js")


def filled(template: str, **values: object) -> str:
    """Render ``template`` with ``values``, the style sheet, the scripts, and the formatters of ``model/text.py``."""
    loader = PackageLoader("aftershock.results.report", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)

    def ours(name: str) -> Markup:
        return Markup(loader.get_source(environment, name)[0])  # noqa: S704 - a file of the package

    scripts = [ours(name) for name in SCRIPTS]
    environment.globals |= {
        "css": ours("page.css"),
        "chart_css": ours("uplot/uPlot.min.css"),
        "chart_licence": ours("uplot/LICENSE"),
        "scripts": scripts,
        "script_hashes": [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts],
        "observed": text.observed,
        "threshold": text.threshold,
        "milliseconds": text.milliseconds,
        "megabytes": text.megabytes,
        "seconds": text.seconds,
        "tally": text.tally,
    }
    return text.visible(environment.get_template(template).render(values))


ATTENTION_FIRST, ATTENTION_MAX, OPEN_ROWS_MAX = 3, 12, 30
CHECKS_MAX, ROWS_MAX, CHAPTERS_MAX = 100, 200, 100
"""Checks of a kind, rows of other tables, chapters of the story. A note gives the number of all, and where they are."""
_NEWER = {
    "spectra": "percentile spectra",
    "racks": "flows between racks",
    "lag": "lag and freshness",
    "perf": "the latency definition of kafka-producer-perf-test",
}


def _recovery_us(row: Mapping[str, Any]) -> float:
    return math.inf if row["recovered_us"] is None else float(row["recovered_us"])


def write_report(run_dir: Path) -> Path:
    """Write the report of a judged run and return its path. Raises EvidenceError if the run was not judged."""
    evidence = read(run_dir, {}, trusted_in(run_dir))
    verdict, analysis = verdict_of(run_dir), analysis_of(run_dir)
    labels = evidence.labels
    lacking = [measurement for name, measurement in _NEWER.items() if name not in analysis]

    failed = text.problems(verdict)
    anchors = {check: f"check-{number}" for number, check in enumerate(verdict.checks, 1)}
    passed: dict[str, list[Check]] = {"objectives": []}  # SLOs first, then a group per kind, in the verdict's order
    for check in verdict.checks:
        if check.status is Status.PASS:
            passed.setdefault("objectives" if check.kind in ("slo", "compare") else check.kind, []).append(check)
    obligations: dict[tuple[Span, ...], list[str]] = {}  # clients with equal obligations share a table
    of_clients = lanes(evidence)
    for lane in of_clients:
        obligations.setdefault(lane.in_load, []).append(f"{labels[lane.client.key]} {lane.side}")
    recoveries: dict[str, dict[str, Mapping[str, Any]]] = {step["id"]: {} for step in evidence.steps}
    for row in analysis["recoveries"]:
        recoveries.setdefault(row["fault"], {})[labels.get(row["client"], row["client"])] = row
    bands = confidences(analysis, labels)
    unproven = {check.id.partition("/")[2] for check in failed if check.kind in ("witness", "exposure")}
    steps = sorted(evidence.steps, key=lambda step: len(evidence.steps) > ROWS_MAX and step["id"] not in unproven)
    slowest = [(fault_id, rows) for fault_id, rows in recoveries.items() if rows]
    if len(slowest) > ROWS_MAX:
        slowest.sort(key=lambda pair: -max(_recovery_us(row) for row in pair[1].values()))
    definitions, flows = tables.latency_definitions(analysis, labels), analysis.get("racks", ())

    # The stories: of each fault, of each slow record, and of each check that did not pass.
    story = build_story(evidence, verdict, analysis, CHAPTERS_MAX, of_clients)
    chapters = {chapter.fault: f"story-{number}" for number, chapter in enumerate(story.chapters, 1)}
    for step in evidence.steps:  # the plan's name of a repeated fault leads to its first repetition
        if step["id"] in chapters:
            chapters.setdefault(str(step.get("entry") or step["id"]), chapters[step["id"]])
    answers = tables.answers(verdict, chapters)
    urgent = {id(one) for one in sorted(verdict.answers, key=lambda one: one.urgency)[:LINES_MAX]}
    records = [(tale, f"record-{number}") for number, tale in enumerate(story.slowest or (), 1)]
    timed = issue.timed_events(evidence)
    moments = [(check, issue.moment_of(check, evidence, analysis, evidence.windows)) for check in failed[:CHECKS_MAX]]

    page = filled(
        "page.html",
        verdict=verdict,
        sentence=text.sentence(verdict),
        why=evidence.timeline.get("why"),
        answers=[row for row in answers if id(row["answer"]) in urgent],
        other_answers=[row for row in answers if id(row["answer"]) not in urgent][:ROWS_MAX],
        certainty=text.certainty(verdict),
        about=tables.about(evidence, verdict),
        troubled=failed,
        attention_max=ATTENTION_MAX,
        attention_first=ATTENTION_FIRST,
        command=redact(str(evidence.run.get("command") or "")),  # of an earlier version: not redacted
        environment=tables.environment(evidence),
        older=older_version_note(evidence.home, ", ".join(lacking)) if lacking else None,
        timeline=timeline(
            evidence,
            analysis,
            labels,
            chapters=chapters,
            slowest=records,
            failed=[
                (at_us, f"{check.status}: {check.id} {check.subject}: {check.why}", anchors[check])
                for check, at_us in moments
                if at_us is not None
            ],
        ),
        failed=failed[:CHECKS_MAX],
        passed=[(kind, checks, checks[:CHECKS_MAX]) for kind, checks in passed.items() if checks],
        clients=sorted({check.subject for check in verdict.checks}),
        statuses=[status for status in Status if any(check.status is status for check in verdict.checks)],
        explained=text.explained(verdict)[:ROWS_MAX],
        rows_max=ROWS_MAX,
        band_of=lambda check: band_of(check, bands),
        pasted=issue.pasted_by_check(failed, evidence, analysis),
        anchors=anchors,
        moments={check: at_us for check, at_us in moments if at_us is not None},
        faults=[tables.fault(evidence, verdict, step) for step in steps[:ROWS_MAX]],
        fault_count=len(steps),
        colours=colours(evidence),
        lanes=[(", ".join(clients), spans) for spans, clients in obligations.items()],
        recoveries=slowest,
        lasting=analysis.get("recovery_definition", 1) > 1,
        not_before_heal=[
            f"{client} after {fault}"
            for fault, rows in slowest
            for client, row in rows.items()
            if row.get("before_heal") is False
        ],
        counters=tables.counters(evidence.events, labels),
        producers={number: labels.get(key, key) for number, key in sorted(evidence.producers.items())},
        story=story,
        chapters=chapters,
        tested=tables.results_by_fault(evidence, verdict),
        chapter_count=len(forces(evidence)),
        records={tale.record: anchor for tale, anchor in records},
        attempts={tale.record: _attempts(evidence, tale.record, story.labels) for tale, _ in records},
        around={tale.record: "\n".join(issue.around(timed, tale.record.intended_us)) for tale, _ in records},
        spectra=plots.spectra(verdict.checks, analysis, labels),
        forest=plots.forest(tables.ratios(verdict.checks, arms_of(evidence.home))),
        heat=tables.rack_table(flows, labels),
        heat_reading=reading.racks([row for row in flows if row["window"] == RUN], labels),
        unavailable=tables.unavailable(analysis, labels),
        unavailable_max=tables.UNAVAILABLE_MAX,
        ways=definitions,
        ways_reading=reading.perf(definitions),
        way_quantiles=tables.PERF_QUANTILES,
        quantiles=tables.QUANTILES,
        open_rows_max=OPEN_ROWS_MAX,
        spreads=tables.spreads(evidence, analysis, labels),
    )
    return write_whole(run_dir / "report.html", page)


def _attempts(evidence: Evidence, record: Attempted, labels: Mapping[str, str]) -> list[Moment]:
    """Return every known moment of a record: due, sent, refused, sent again, and its result or delivery."""
    if record.op != "consume":
        return list(sending(evidence, record, vars(record)))
    who = labels.get(record.client, record.client)
    moments = [Moment(record.intended_us, "due at its producer", who)]
    if record.done_us is not None:
        offset = "" if record.offset is None else f" offset {record.offset}"
        source = "" if record.broker_id is None else f", from broker {record.broker_id}"
        moments.append(Moment(record.done_us, f"delivered as {record.topic}/{record.partition}{offset}{source}", who))
    return moments

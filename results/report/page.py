"""Report ``report.html``, a self-contained page that works offline and states the verdict first.

The report is rendered from ``verdict.json``, ``analysis.json`` and the run's other documents, so no Spark is needed.
The only script of the page adds buttons that copy text; the content security policy allows no other script.
"""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from aftershock.redaction import redact
from aftershock.results.checks.obligations.lanes import lanes
from aftershock.results.checks.obligations.spans import Span
from aftershock.results.compare.runs import arms_of
from aftershock.results.evidence.evidence import read
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.phases import RUN
from aftershock.results.evidence.stored import analysis_of, older_version_note, trusted_in, verdict_of
from aftershock.results.explain.chapter import labels as labels_of
from aftershock.results.explain.events import forces
from aftershock.results.explain.output import build_story
from aftershock.results.model import text
from aftershock.results.model.check import Check
from aftershock.results.report import ownership, plots, reading, tables
from aftershock.results.report.failed import pasted_by_check
from aftershock.results.report.reading import band_of, confidences
from aftershock.results.report.svg import colours


def filled(template: str, **values: object) -> str:
    """Render ``template`` with ``values``, the style sheet, the script, and the formatters of ``model/text.py``."""
    loader = PackageLoader("aftershock.results.report", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    css, script = (loader.get_source(environment, name)[0] for name in ("page.css", "copy.js"))
    environment.globals |= {
        "css": Markup(css),  # noqa: S704 - our own file
        "script": Markup(script),  # noqa: S704 - our own file
        "script_hash": f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        "observed": text.observed,
        "threshold": text.threshold,
        "milliseconds": text.milliseconds,
        "megabytes": text.megabytes,
        "seconds": text.seconds,
        "tally": text.tally,
    }
    return text.visible(environment.get_template(template).render(values))


ATTENTION_MAX, OPEN_ROWS_MAX = 12, 30
CHECKS_MAX, ROWS_MAX, CHAPTERS_MAX = 100, 200, 100
"""Checks of a kind, rows of other tables, chapters of the story. A note gives the number of all, and where they are."""
_NEWER = {
    "spectra": "percentile spectra",
    "racks": "flows between racks",
    "lag": "lag and freshness",
    "perf": "the latency definition of kafka-producer-perf-test",
}


def _most_urgent(checks: Sequence[Check]) -> Sequence[Check]:
    """Return at most ``CHECKS_MAX`` checks; if some are left out, those that did not pass come first."""
    return checks if len(checks) <= CHECKS_MAX else text.by_urgency(checks)[:CHECKS_MAX]


def _recovery_us(row: Mapping[str, Any]) -> float:
    return math.inf if row["recovered_us"] is None else float(row["recovered_us"])


def write_report(run_dir: Path) -> Path:
    """Write the report of a judged run and return its path. Raises EvidenceError if the run was not judged."""
    evidence = read(run_dir, {}, trusted_in(run_dir))
    verdict, analysis = verdict_of(run_dir), analysis_of(run_dir)
    labels = labels_of(evidence)
    lacking = [measurement for name, measurement in _NEWER.items() if name not in analysis]

    groups: dict[str, list[Check]] = {"objectives": []}  # SLOs first, then a group per kind, in the verdict's order
    for check in verdict.checks:
        if check.kind != "integrity":
            groups.setdefault("objectives" if check.kind in ("slo", "compare") else check.kind, []).append(check)
    obligations: dict[tuple[Span, ...], list[str]] = {}  # clients with equal obligations share a table
    for lane in lanes(evidence):
        obligations.setdefault(lane.in_load, []).append(f"{labels[lane.client.key]} {lane.side}")
    recoveries: dict[str, dict[str, Mapping[str, Any]]] = {step["id"]: {} for step in evidence.steps}
    for row in analysis["recoveries"]:
        recoveries.setdefault(row["fault"], {})[labels.get(row["client"], row["client"])] = row
    bands = confidences(analysis, labels)
    failed = text.problems(verdict)
    unproven = {check.id.partition("/")[2] for check in failed if check.kind in ("witness", "exposure")}
    steps = sorted(evidence.steps, key=lambda step: len(evidence.steps) > ROWS_MAX and step["id"] not in unproven)
    slowest = [(fault_id, rows) for fault_id, rows in recoveries.items() if rows]
    if len(slowest) > ROWS_MAX:
        slowest.sort(key=lambda pair: -max(_recovery_us(row) for row in pair[1].values()))
    story = build_story(evidence, verdict, analysis, CHAPTERS_MAX)
    integrity = [check for check in verdict.checks if check.kind == "integrity" or check.samples]
    definitions, flows = tables.latency_definitions(analysis, labels), analysis.get("racks", ())

    page = filled(
        "page.html",
        verdict=verdict,
        sentence=text.sentence(verdict),
        why=evidence.timeline.get("why"),
        about=tables.about(evidence, verdict),
        troubled=failed,
        attention_max=ATTENTION_MAX,
        command=redact(str(evidence.run.get("command") or "")),  # of an earlier version: not redacted
        environment=tables.environment(evidence),
        older=older_version_note(evidence.home, ", ".join(lacking)) if lacking else None,
        groups=[(kind, checks, _most_urgent(checks)) for kind, checks in groups.items() if checks],
        explained=text.explained(verdict)[:ROWS_MAX],
        integrity=integrity,
        integrity_shown=_most_urgent(integrity),
        rows_max=ROWS_MAX,
        band_of=lambda check: band_of(check, bands),
        pasted=pasted_by_check(failed, evidence, analysis),
        anchors={check: f"check-{number}" for number, check in enumerate(verdict.checks, 1)},
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
        chapter_count=len(forces(evidence)),
        metrics=plots.metrics(evidence, verdict.checks, analysis, labels),
        lag=plots.lag(evidence, analysis, labels),
        groups_of_members=ownership.charts(evidence, analysis, labels),
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

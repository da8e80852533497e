"""Fills the templates that stand beside this file.

Rules: every value is escaped; a name that is missing is an error; the one script is ours, and a page allows it by its
hash and nothing else.

Writes ``report.html``: one file that works offline and says the verdict first; scripts may be blocked.

Rules: drawn from ``verdict.json``, ``analysis.json`` and what the run itself told, so that no Spark is needed; every
name is escaped; what an older version did not measure is left out with a line that says so. The one script there is
adds buttons that copy what stands there anyway.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from aftershock.results import text
from aftershock.results.checks.check import Check, Status, Verdict, subject_of
from aftershock.results.checks.obligations.spans import Span
from aftershock.results.checks.obligations.stalls import lanes
from aftershock.results.compare.runs import arms_of
from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.phases import RUN
from aftershock.results.evidence.stored import analysis_of, older_version_note, verdict_of
from aftershock.results.explain.output import told as story_of
from aftershock.results.report import plots, reading, tables
from aftershock.results.report.failed import pasted
from aftershock.results.report.reading import band_of, confidences
from aftershock.results.report.svg import colours
from aftershock.results.report.tables import QUANTILES, about, counted, environment, fault, ratios, spreads


def filled(template: str, **told: object) -> str:
    """``template`` with what it is told, the style sheet, the script, and the ways to show figures of ``shown``."""
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
    return environment.get_template(template).render(told)


ATTENTION_MAX, OPEN_ROWS_MAX = 12, 30
_NEWER = {
    "spectra": "percentile spectra",
    "racks": "flows between racks",
    "lag": "lag and freshness",
    "perf": "kafka-producer-perf-test's way of counting",
}


def write_report(run_dir: Path) -> Path:
    """Writes the report of a judged run and returns its path. Raises EvidenceError where the run was not judged."""
    evidence, verdict = read(run_dir, {}), verdict_of(run_dir)
    page = filled("page.html", **_told(evidence, verdict, analysis_of(run_dir)))
    return write_whole(run_dir / "report.html", page)


def _told(evidence: Evidence, verdict: Verdict, analysis: Mapping[str, Any]) -> dict[str, Any]:
    """All that the template is given."""
    labels = {client.key: subject_of(client, evidence.clients) for client in evidence.clients}
    return {
        "verdict": verdict,
        "sentence": text.sentence(verdict),
        "why": evidence.timeline.get("why"),
        "about": about(evidence, verdict),
        "troubled": text.problems(verdict),
        "attention_max": ATTENTION_MAX,
        "command": evidence.run.get("command"),
        "environment": environment(evidence),
        "older": _older(evidence, analysis),
        **_judged(evidence, verdict, analysis, labels),
        **_measured(evidence, verdict, analysis, labels),
    }


def _judged(
    evidence: Evidence, verdict: Verdict, analysis: Mapping[str, Any], labels: Mapping[str, str]
) -> dict[str, Any]:
    """The checks, and what stands behind them."""
    bands = confidences(analysis, labels)
    unsettled = [check for check in verdict.checks if check.status is not Status.PASS]
    return {
        "groups": _groups([check for check in verdict.checks if check.kind != "integrity"]),
        "kept": [check for check in verdict.checks if check.kind == "integrity" or check.samples],
        "band_of": lambda check: band_of(check, bands),
        "pasted": {check: pasted(check, evidence, analysis) for check in unsettled},
        "anchors": {check: f"check-{number}" for number, check in enumerate(verdict.checks, 1)},
        "faults": [fault(evidence, verdict, step) for step in evidence.steps],
        "colours": colours(evidence),
        "lanes": _lanes(evidence, labels),
        "recoveries": _recoveries(evidence, analysis, labels),
        "counters": counted(evidence.events, labels),
        "producers": {id_: labels.get(key, key) for id_, key in sorted(evidence.producers.items())},
        "story": story_of(evidence, verdict, analysis),
    }


def _measured(
    evidence: Evidence, verdict: Verdict, analysis: Mapping[str, Any], labels: Mapping[str, str]
) -> dict[str, Any]:
    """The charts and the tables of figures."""
    ways, flows = tables.counted_ways(analysis, labels), analysis.get("racks", ())
    return {
        "metrics": plots.metrics(evidence, verdict.checks, analysis, labels),
        "lag": plots.lag(evidence, analysis, labels),
        "forest": plots.forest(ratios(verdict.checks, arms_of(evidence.home))),
        "heat": tables.heat(flows, labels),
        "heat_reading": reading.racks([row for row in flows if row["window"] == RUN], labels),
        "unavailable": tables.unavailable(analysis, labels),
        "ways": ways,
        "ways_reading": reading.perf(ways),
        "way_quantiles": tables.QS,
        "quantiles": QUANTILES,
        "open_rows_max": OPEN_ROWS_MAX,
        "spreads": spreads(evidence, analysis, labels),
    }


def _older(evidence: Evidence, analysis: Mapping[str, Any]) -> str | None:
    """What an older version left unmeasured, in a line; None where all is there."""
    lacking = [what for name, what in _NEWER.items() if name not in analysis]
    return older_version_note(evidence.home, ", ".join(lacking)) if lacking else None


def _groups(checks: Sequence[Check]) -> list[tuple[str, list[Check]]]:
    """What the plan asked for first, then a group a kind, in the verdict's order."""
    groups: dict[str, list[Check]] = {}
    for check in checks:
        groups.setdefault("objectives" if check.kind in ("slo", "compare") else check.kind, []).append(check)
    return sorted(groups.items(), key=lambda group: group[0] != "objectives")


def _lanes(evidence: Evidence, labels: Mapping[str, str]) -> list[tuple[str, tuple[Span, ...]]]:
    """What was owed when, once for all clients that were owed the same."""
    alike: dict[tuple[Span, ...], list[str]] = {}
    for lane in lanes(evidence):
        alike.setdefault(lane.whole, []).append(f"{labels[lane.client.key]} {lane.side}")
    return [(", ".join(whose), spans) for spans, whose in alike.items()]


def _recoveries(
    evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str]
) -> list[tuple[str, dict[str, Mapping[str, Any]]]]:
    """Each fault's recoveries by client, in the timeline's order; faults that nobody's recovery is known of are out."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {step["id"]: {} for step in evidence.steps}
    for row in analysis["recoveries"]:
        found.setdefault(row["fault"], {})[labels.get(row["client"], row["client"])] = row
    return [(fault, rows) for fault, rows in found.items() if rows]

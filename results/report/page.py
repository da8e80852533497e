"""Writes ``report.html``: one file that works offline, has no script, and says the verdict first.

Rules: drawn from ``verdict.json`` and ``analysis.json``, so that no Spark is needed; every name is escaped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from aftershock.errors import EvidenceError
from aftershock.results import shown
from aftershock.results.check import Check, Status, subject_of
from aftershock.results.evidence import Evidence, read
from aftershock.results.exposure import targets_of
from aftershock.results.files import read_json
from aftershock.results.phases import RUN
from aftershock.results.report.bands import bands, colours
from aftershock.results.report.chart import latency_svg
from aftershock.results.verdict import Verdict, from_json

PLOTS = {"produce.latency": "Produce latency", "consume.latency": "End-to-end latency"}
QUANTILES = {"0.5": "p50", "0.9": "p90", "0.95": "p95", "0.99": "p99", "0.999": "p99.9", "1.0": "max"}
_WINDOWS = ("warmup", "steady", "fault", "recovery", RUN)
_CLIENTS_DRAWN_MAX = 8


def write(run_dir: Path) -> Path:
    """Writes the report of a judged run and returns its path. Raises EvidenceError where the run was not judged."""
    evidence = read(run_dir, {})
    verdict, analysis = judged(run_dir)
    environment = Environment(
        loader=PackageLoader("aftershock.results.report", "."), autoescape=True, undefined=StrictUndefined
    )
    page = environment.get_template("page.html").render(_told(evidence, verdict, analysis, environment))
    path = run_dir / "report.html"
    draft = run_dir / ".report.html.inprogress"
    draft.write_text(page, encoding="utf-8")
    return draft.replace(path)


def judged(run_dir: Path) -> tuple[Verdict, Mapping[str, Any]]:
    """The verdict and the measurements, as they were written. Raises EvidenceError where the run was not judged."""
    for name in ("verdict.json", "analysis.json"):
        if not (run_dir / name).exists():
            raise EvidenceError(f"{run_dir / name}: missing; judge the run first: aftershock verdict {run_dir}")
    try:
        return from_json(read_json(run_dir / "verdict.json")), read_json(run_dir / "analysis.json")
    except (KeyError, TypeError, ValueError) as broken:
        again = f"judge the run again: aftershock verdict {run_dir}"
        raise EvidenceError(f"{run_dir / 'verdict.json'}: not as it was written ({broken!r}); {again}") from broken


def _told(
    evidence: Evidence, verdict: Verdict, analysis: Mapping[str, Any], environment: Environment
) -> dict[str, Any]:
    """All that the template is given."""
    labels = {client.key: subject_of(client, evidence.clients) for client in evidence.clients}
    source = environment.loader.get_source(environment, "page.css")[0] if environment.loader else ""
    return {
        "css": Markup(source),  # noqa: S704 - our own file
        "verdict": verdict,
        "sentence": shown.sentence(verdict),
        "why": evidence.timeline.get("why"),
        "troubled": _troubled(verdict.checks),
        "plots": _plots(evidence, analysis, labels),
        "faults": [_fault(evidence, verdict, step) for step in evidence.steps],
        "checks": verdict.checks,
        "observed": shown.observed,
        "threshold": shown.threshold,
        "milliseconds": shown.milliseconds,
        "quantiles": QUANTILES,
        "spread": _spread(analysis, labels),
        "gaps": _ordered(analysis["gaps"], labels),
        "recoveries": [row | {"client": labels.get(row["client"], row["client"])} for row in analysis["recoveries"]],
        "environment": _environment(evidence),
        "command": evidence.run.get("command"),
    }


def _troubled(checks: Sequence[Check]) -> list[Check]:
    """What needs attention, the worst first."""
    return sorted((c for c in checks if c.status is not Status.PASS), key=lambda check: -check.status.severity)


def _plots(evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str]) -> list[tuple[str, Markup]]:
    marks_s = [phase.end_us / 1e6 for phase in evidence.phases if phase.name == "warmup"]
    drawn = []
    for metric, title in PLOTS.items():
        panels = _panels(analysis["bins"], metric, labels)
        if panels:
            svg = latency_svg(panels, bands(evidence), analysis["bin_us"] / 1e6, marks_s)
            drawn.append((title, Markup(svg)))  # noqa: S704 - matplotlib escapes the text it is given
    return drawn


def _panels(bins: Sequence[Mapping[str, Any]], metric: str, labels: Mapping[str, str]) -> dict[str, Any]:
    keys = [key for key in labels if any(row["client"] == key and row["metric"] == metric for row in bins)]
    return {
        labels[key]: [row for row in bins if row["client"] == key and row["metric"] == metric]
        for key in keys[:_CLIENTS_DRAWN_MAX]
    }


def _fault(evidence: Evidence, verdict: Verdict, step: Mapping[str, Any]) -> dict[str, Any]:
    fault, window = step["id"], evidence.window_of(step["id"])
    proof = {check.kind: check for check in verdict.checks if check.id in (f"witness/{fault}", f"exposure/{fault}")}
    return {
        "id": fault,
        "kind": step["kind"],
        "colour": colours(evidence)[fault],
        "window": f"{window.start_us / 1e6:.1f} - {window.end_us / 1e6:.1f} s" if window else "never began",
        "targets": _listed(targets_of(evidence, fault)),
        "parameters": _listed(step.get("parameters") or {}),
        "witness": proof.get("witness"),
        "exposure": proof.get("exposure"),
    }


def _listed(facts: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {_flat(value)}" for name, value in facts.items() if value not in (None, [], {}))


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_flat(one)}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _spread(analysis: Mapping[str, Any], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    rows = [row for row in analysis["distributions"] if row["metric"] != "produce.lateness"]
    return _ordered(rows, labels)


def _ordered(rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """By metric, window as time passes, client."""

    def rank(row: Mapping[str, Any]) -> tuple[str, int, str, str]:
        part = row["window"].split("/")[0]
        place = _WINDOWS.index(part) if part in _WINDOWS else len(_WINDOWS)
        return row["metric"], place, row["window"], row["client"]

    named = {RUN: "after warm-up"}
    return [
        {**row, "client": labels.get(row["client"], row["client"]), "window": named.get(row["window"], row["window"])}
        for row in sorted(rows, key=rank)
    ]


def _environment(evidence: Evidence) -> list[tuple[str, str]]:
    run = evidence.run
    facts = {"run": run["run_id"], "started": run.get("started_at"), "seed": run.get("seed"), "git": run.get("git")}
    facts |= {name: run.get(name) for name in ("versions", "images", "host", "profile", "warmup")}
    return [(name, _flat(value)) for name, value in facts.items() if value not in (None, {}, "")]

"""Writes ``report.html``: one file that works offline, has no script, and says the verdict first.

Rules: drawn from ``verdict.json`` and ``analysis.json``, so that no Spark is needed; every name is escaped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from aftershock.results import shown
from aftershock.results.check import Check, subject_of
from aftershock.results.evidence import Evidence, read
from aftershock.results.exposure import targets_of
from aftershock.results.files import write_whole
from aftershock.results.obligations.lanes import lanes
from aftershock.results.obligations.spans import Span
from aftershock.results.phases import RUN, Interval, windows_of
from aftershock.results.report.bands import colours
from aftershock.results.report.counters import counted
from aftershock.results.report.judged import analysis_of, verdict_of
from aftershock.results.report.plots import plots
from aftershock.results.report.template import filled
from aftershock.results.verdict import Verdict

METRICS = {
    "produce.latency": "Produce latency",
    "consume.latency": "End-to-end latency",
    "produce.service": "Service time",
    "commit.latency": "Commit latency",
}
QUANTILES = {"0.5": "p50", "0.9": "p90", "0.95": "p95", "0.99": "p99", "0.999": "p99.9", "1.0": "max"}
ATTENTION_MAX = 12
_WINDOWS = ("warmup", "steady", "fault", "recovery", RUN)
_Spread: TypeAlias = dict[str, list[dict[str, Any]]]
_GAP_OF = {f"{side}.latency": f"{side}.gap" for side in ("produce", "consume", "commit")}


def write(run_dir: Path) -> Path:
    """Writes the report of a judged run and returns its path. Raises EvidenceError where the run was not judged."""
    evidence, verdict = read(run_dir, {}), verdict_of(run_dir)
    page = filled("page.html", **_told(evidence, verdict, analysis_of(run_dir)))
    return write_whole(run_dir / "report.html", page)


def _told(evidence: Evidence, verdict: Verdict, analysis: Mapping[str, Any]) -> dict[str, Any]:
    """All that the template is given."""
    labels = {client.key: subject_of(client, evidence.clients) for client in evidence.clients}
    return {
        "verdict": verdict,
        "sentence": shown.sentence(verdict),
        "why": evidence.timeline.get("why"),
        "about": _about(evidence, verdict),
        "troubled": shown.troubled(verdict),
        "attention_max": ATTENTION_MAX,
        "groups": _groups(verdict.checks),
        "plots": plots(evidence, analysis, labels),
        "quantiles": QUANTILES,
        "spreads": _spreads(evidence, analysis, labels),
        "faults": [_fault(evidence, verdict, step) for step in evidence.steps],
        "lanes": _lanes(evidence, labels),
        "recoveries": _recoveries(evidence, analysis, labels),
        "counters": counted(evidence.events, labels),
        "sampled": [check for check in verdict.checks if check.samples],
        "producers": {id_: labels.get(key, key) for id_, key in sorted(evidence.producers.items())},
        "environment": _environment(evidence),
        "command": evidence.run.get("command"),
    }


def _about(evidence: Evidence, verdict: Verdict) -> list[str]:
    """The line below the sentence: which run, of when, how long, of which arms."""
    took_s = shown.run_s(evidence.run)
    took = None if took_s is None else shown.seconds(took_s)
    rehearsal = "a rehearsal: nothing was injected" if evidence.run.get("rehearse") else None
    attached = "on a cluster that was attached, not launched" if evidence.run.get("attached") else None
    told = [rehearsal, attached, verdict.run_id, evidence.run.get("started_at"), took]
    return [str(one) for one in (*told, f"arms: {', '.join(verdict.arms)}") if one]


def _groups(checks: Sequence[Check]) -> list[tuple[str, list[Check]]]:
    """What the plan asked for first, then a group a kind, in the verdict's order."""
    groups: dict[str, list[Check]] = {}
    for check in checks:
        groups.setdefault("objectives" if check.kind in ("slo", "compare") else check.kind, []).append(check)
    return sorted(groups.items(), key=lambda group: group[0] != "objectives")


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


def _spreads(evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, _Spread]:
    """By metric, phases x percentiles: the windows as time passes, in each every client, with its longest gap."""
    gaps_us = {(row["metric"], row["client"], row["window"]): row["longest_us"] for row in analysis["gaps"]}
    begun = windows_of(evidence.phases)

    def as_time_passes(row: Mapping[str, Any]) -> tuple[int, Sequence[Interval], str, str]:
        kind, _, fault = row["window"].partition("/")
        return _WINDOWS.index(kind), begun.get(row["window"], ()) if fault else (), fault, row["client"]

    spreads: dict[str, _Spread] = {title: {} for title in METRICS.values()}
    for row in sorted(analysis["distributions"], key=as_time_passes):
        if title := METRICS.get(row["metric"]):
            gap = (_GAP_OF.get(row["metric"]), row["client"], row["window"])
            named = {"client": labels.get(row["client"], row["client"]), "gap_us": gaps_us.get(gap)}
            spreads[title].setdefault("after warm-up" if row["window"] == RUN else row["window"], []).append(
                row | named
            )
    return {title: windows for title, windows in spreads.items() if windows}


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


def _environment(evidence: Evidence) -> list[tuple[str, list[str]]]:
    """Each fact with its lines: one for a plain value, else one an entry."""
    run = evidence.run
    facts = {"run": run["run_id"], "started": run.get("started_at"), "seed": run.get("seed"), "git": run.get("git")}
    facts |= {name: run.get(name) for name in ("attached", "versions", "images", "host", "profile", "warmup")}
    return [(name, _lines(value)) for name, value in facts.items() if value not in (None, {}, "")]


def _lines(value: Any) -> list[str]:
    entries = value.items() if isinstance(value, Mapping) else ()
    return [f"{key}: {_flat(entry)}" for key, entry in entries] or [_flat(value)]

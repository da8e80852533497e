"""Latency by phase: a table for each metric, the windows as time passes, in each every client and its quantiles."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from aftershock.results.evidence import Evidence
from aftershock.results.phases import RUN, Interval, windows_of

METRICS = {
    "produce.latency": "Produce latency",
    "consume.latency": "End-to-end latency",
    "produce.service": "Service time",
    "commit.latency": "Commit latency",
}
QUANTILES = {"0.5": "p50", "0.9": "p90", "0.95": "p95", "0.99": "p99", "0.999": "p99.9", "1.0": "max"}
_WINDOWS = ("warmup", "steady", "fault", "recovery", RUN)
_Spread: TypeAlias = dict[str, list[dict[str, Any]]]
_GAP_OF = {f"{side}.latency": f"{side}.gap" for side in ("produce", "consume", "commit")}


def spreads(evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, _Spread]:
    """By metric, phases x percentiles: the windows as time passes, in each every client, with its longest gap."""
    gaps_us = {(row["metric"], row["client"], row["window"]): row["longest_us"] for row in analysis["gaps"]}
    begun = windows_of(evidence.phases)

    def as_time_passes(row: Mapping[str, Any]) -> tuple[int, Sequence[Interval], str, str]:
        kind, _, fault = row["window"].partition("/")
        return _WINDOWS.index(kind), begun.get(row["window"], ()) if fault else (), fault, row["client"]

    found: dict[str, _Spread] = {title: {} for title in METRICS.values()}
    for row in sorted(_whole_faults(evidence, analysis["distributions"]), key=as_time_passes):
        if title := METRICS.get(row["metric"]):
            gap = (_GAP_OF.get(row["metric"]), row["client"], row["window"])
            named = {"client": labels.get(row["client"], row["client"]), "gap_us": gaps_us.get(gap)}
            found[title].setdefault("after warm-up" if row["window"] == RUN else row["window"], []).append(row | named)
    return {title: windows for title, windows in found.items() if windows}


def _whole_faults(evidence: Evidence, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A fault of many blocks or rounds is shown whole: each of them alone is in ``analysis.json``."""
    parts = {f"fault/{step['id']}" for step in evidence.steps if step.get("entry", step["id"]) != step["id"]}
    return [row for row in rows if row["window"] not in parts]

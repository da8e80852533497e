"""Tables of the report: the run and its faults, client counters, comparisons, latency by phase, racks, perf figures.

Client counters (hints accepted, retries, sessions lost, replicas switched) have a table per operation, a row per
counter and a column per client, so that two arms that differ in one rule are seen to differ in its counters. Latency by
phase has a table per metric, the windows in order of time, in each every client with its quantiles.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from aftershock.results import text
from aftershock.results.checks.check import Check, Status, Verdict
from aftershock.results.checks.witness import targets_of
from aftershock.results.compare.runs import Comparison
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.phases import RUN, Interval, windows_of
from aftershock.results.report.plots import Compared
from aftershock.results.report.svg import colours


def about(evidence: Evidence, verdict: Verdict) -> list[str]:
    """Return the line below the sentence: run, start, duration and arms."""
    took_s = text.run_s(evidence.run)
    took = None if took_s is None else text.seconds(took_s)
    rehearsal = "rehearsal: nothing was injected" if evidence.run.get("rehearse") else None
    attached = "on an attached cluster" if evidence.run.get("attached") else None
    facts = [
        rehearsal,
        attached,
        verdict.run_id,
        evidence.run.get("started_at"),
        took,
        f"arms: {', '.join(verdict.arms)}",
    ]
    return [str(fact) for fact in facts if fact]


def fault(evidence: Evidence, verdict: Verdict, step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the fault table: window, targets, parameters, witness and exposure of a step."""
    name, window = step["id"], evidence.window_of(step["id"])
    proof = {check.kind: check for check in verdict.checks if check.id in (f"witness/{name}", f"exposure/{name}")}
    return {
        "id": name,
        "kind": step["kind"],
        "colour": colours(evidence)[name],
        "window": f"{window.start_us / 1e6:.1f} - {window.end_us / 1e6:.1f} s" if window else "never began",
        "targets": _listed(targets_of(evidence, name)),
        "parameters": _listed(step.get("parameters") or {}),
        "witness": proof.get("witness"),
        "exposure": proof.get("exposure"),
    }


def environment(evidence: Evidence) -> list[tuple[str, list[str]]]:
    """Return each fact with its lines: one for a plain value, one per entry for an object."""
    run = evidence.run
    facts = {"run": run["run_id"], "started": run.get("started_at"), "seed": run.get("seed"), "git": run.get("git")}
    facts |= {name: run.get(name) for name in ("attached", "versions", "images", "host", "profile", "warmup")}
    return [(name, _lines(value)) for name, value in facts.items() if value not in (None, {}, "")]


def _lines(value: Any) -> list[str]:
    entries = value.items() if isinstance(value, Mapping) else ()
    return [f"{key}: {_flat(entry)}" for key, entry in entries] or [_flat(value)]


def _listed(facts: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {_flat(value)}" for name, value in facts.items() if value not in (None, [], {}))


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_flat(entry)}" for key, entry in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


Table = tuple[list[str], list[tuple[str, list[int | None]]]]


def counted(events: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> dict[str, Table]:
    """Map operation to (clients, [(counter, values per client)]); a value is None if the client lacks the counter."""
    by_op: dict[str, dict[str, Mapping[str, int]]] = {}
    for line in events:
        if line.get("event") == "counters":
            client = f"{line.get('workload')}/{line.get('arm')}"
            by_op.setdefault(str(line.get("op")), {})[labels.get(client, client)] = line.get("counters") or {}
    return {op: _table(clients) for op, clients in sorted(by_op.items())}


def _table(clients: Mapping[str, Mapping[str, int]]) -> Table:
    names = sorted({name for counters in clients.values() for name in counters})
    return [*clients], [(name, [counters.get(name) for counters in clients.values()]) for name in names]


_WORDS = {Status.PASS: "within the SLO", Status.FAIL: "violates the SLO"}


def ratios(checks: Sequence[Check], comparisons: Sequence[Comparison]) -> list[Compared]:
    """Return the rows of the forest plot: arms by blocks, then the plan's own comparisons; rows need a ratio."""
    rows = [
        Compared(f"{arms.ours} / {arms.theirs}: {row.metric}", row.ratio, row.low, row.high, row.verdict)
        for arms in comparisons
        for row in arms.rows
        if row.ratio
    ]
    for check in checks:
        if check.kind == "compare" and check.observed:
            name = f"{check.subject}: {check.id.partition('/')[2]}"
            rows.append(Compared(name, check.observed, None, None, _WORDS.get(check.status, "inconclusive")))
    return rows


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
    """Return, by metric and window in order of time, each client's quantiles and longest gap."""
    gaps_us = {(row["metric"], row["client"], row["window"]): row["longest_us"] for row in analysis["gaps"]}
    intervals = windows_of(evidence.phases)

    def by_time(row: Mapping[str, Any]) -> tuple[int, Sequence[Interval], str, str]:
        kind, _, fault = row["window"].partition("/")
        return _WINDOWS.index(kind), intervals.get(row["window"], ()) if fault else (), fault, row["client"]

    by_title: dict[str, _Spread] = {title: {} for title in METRICS.values()}
    for row in sorted(_whole_faults(evidence, analysis["distributions"]), key=by_time):
        if title := METRICS.get(row["metric"]):
            gap = (_GAP_OF.get(row["metric"]), row["client"], row["window"])
            named = {"client": labels.get(row["client"], row["client"]), "gap_us": gaps_us.get(gap)}
            by_title[title].setdefault("after warm-up" if row["window"] == RUN else row["window"], []).append(
                row | named
            )
    return {title: windows for title, windows in by_title.items() if windows}


def _whole_faults(evidence: Evidence, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the windows of single blocks and rounds: a fault is shown as a whole."""
    parts = {f"fault/{step['id']}" for step in evidence.steps if step.get("entry", step["id"]) != step["id"]}
    return [row for row in rows if row["window"] not in parts]


UNAVAILABLE_MAX = 12
_RANKS = ("50th", "95th", "99th", "99.9th")
_PERF = ("p50_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms")
QS = {"0.5": "p50", "0.95": "p95", "0.99": "p99", "0.999": "p99.9", "1.0": "max"}


@dataclass(frozen=True)
class Cell:
    """Traffic between two racks; ``share`` of the row's bytes and ``heat`` (latency by the slowest) are 0 to 1."""

    n: int
    bytes: int
    p50_us: int | None
    p99_us: int | None
    share: float
    heat: float


@dataclass(frozen=True)
class Heat:
    """Traffic table: a row per client and rack, a column per broker rack."""

    racks: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[Cell | None, ...]], ...]


def heat(flows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> Heat | None:
    """Return the traffic after warm-up, or None if no broker rack is known."""
    known = [row for row in flows if row["window"] == "run" and row["broker_rack"]]
    if not known:
        return None
    racks = tuple(sorted({row["broker_rack"] for row in known}))
    slowest_us = max((row["p99_us"] or 0 for row in known), default=0) or 1
    names = dict.fromkeys((row["client"], row["op"], row["client_rack"] or "?") for row in known)
    rows = []
    for client, op, rack in names:
        cells_by_rack = {
            row["broker_rack"]: row
            for row in known
            if (row["client"], row["op"], row["client_rack"] or "?") == (client, op, rack)
        }
        total = sum(row["bytes"] for row in cells_by_rack.values()) or 1
        cells = tuple(
            _cell(cells_by_rack[broker_rack], total, slowest_us) if broker_rack in cells_by_rack else None
            for broker_rack in racks
        )
        rows.append((f"{labels.get(client, client)} {op}", rack, cells))
    return Heat(racks, tuple(rows))


def _cell(row: Mapping[str, Any], total: int, slowest_us: int) -> Cell:
    warmth = (row["p99_us"] or slowest_us) / slowest_us
    return Cell(row["n"], row["bytes"], row["p50_us"], row["p99_us"], row["bytes"] / total, warmth)


def counted_ways(analysis: Mapping[str, Any], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return per producing client the ``kafka-producer-perf-test`` output, and quantiles counted three ways."""
    seen = {(row["metric"], row["client"]): row for row in analysis["distributions"] if row["window"] == "run"}
    rows = []
    for perf in analysis.get("perf", ()):
        service, intended = (seen.get((f"produce.{name}", perf["client"]), {}) for name in ("service", "latency"))
        rows.append(
            {
                "client": labels.get(perf["client"], perf["client"]),
                "printed": _printed(perf),
                "perf": {q: perf[name] * 1e3 for q, name in zip(QS, _PERF, strict=True)},
                "service": service.get("at", {}),
                "intended": intended.get("at", {}),
            }
        )
    return rows


def unavailable(analysis: Mapping[str, Any], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the partitions (None: a client's whole side) with the longest total stall time after warm-up."""
    rows = [
        partition | {"client": f"{labels.get(row['client'], row['client'])} {row['side']}"}
        for row in analysis.get("unavailable", ())
        if row["window"] == "run"
        for partition in row["partitions"]
    ]
    return sorted(rows, key=lambda row: -row["total_us"])[:UNAVAILABLE_MAX]


def _printed(perf: Mapping[str, Any]) -> str:
    """Return the line as ``kafka-producer-perf-test`` prints it."""
    rate = f"{perf['records']} records sent, {perf['records_per_s']:.6f} records/sec ({perf['mb_per_s']:.2f} MB/sec)"
    ends = f"{perf['avg_ms']:.2f} ms avg latency, {perf['max_ms']:.2f} ms max latency"
    shares = ", ".join(f"{perf[name]:.0f} ms {rank}" for name, rank in zip(_PERF, _RANKS, strict=False))
    return f"{rate}, {ends}, {shares}."

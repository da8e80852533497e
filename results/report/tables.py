"""What the page says of the run itself: which it was, its faults with their proof, what it was made with.

What each client counted of its own decisions: hints taken, retries, sessions lost, replicas switched.

A table for each operation, a row for each counter and a column for each client, so that two arms that differ in one
rule are seen to differ in its counters.

The rows of the forest plot: arms against each other by blocks, and the plan's own comparisons of two arms.

Latency by phase: a table for each metric, the windows as time passes, in each every client and its quantiles.

The figures that stand in tables: flows between racks, and three ways to count a latency side by side.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """The line below the sentence: which run, of when, how long, of which arms."""
    took_s = text.run_s(evidence.run)
    took = None if took_s is None else text.seconds(took_s)
    rehearsal = "a rehearsal: nothing was injected" if evidence.run.get("rehearse") else None
    attached = "on a cluster that was attached, not launched" if evidence.run.get("attached") else None
    told = [rehearsal, attached, verdict.run_id, evidence.run.get("started_at"), took]
    return [str(one) for one in (*told, f"arms: {', '.join(verdict.arms)}") if one]


def fault(evidence: Evidence, verdict: Verdict, step: Mapping[str, Any]) -> dict[str, Any]:
    """One step of the timeline: when, where, and its witness and exposure."""
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
    """Each fact with its lines: one for a plain value, else one an entry."""
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
        return ", ".join(f"{key} = {_flat(one)}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


Table = tuple[list[str], list[tuple[str, list[int | None]]]]


def counted(events: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> dict[str, Table]:
    """Operation → (clients, [(counter, its value for each client)]); None where a client has no such counter."""
    told: dict[str, dict[str, Mapping[str, int]]] = {}
    for line in events:
        if line.get("event") == "counters":
            client = f"{line.get('workload')}/{line.get('arm')}"
            told.setdefault(str(line.get("op")), {})[labels.get(client, client)] = line.get("counters") or {}
    return {op: _table(clients) for op, clients in sorted(told.items())}


def _table(clients: Mapping[str, Mapping[str, int]]) -> Table:
    names = sorted({name for counters in clients.values() for name in counters})
    return [*clients], [(name, [counters.get(name) for counters in clients.values()]) for name in names]


_WORDS = {Status.PASS: "as asked", Status.FAIL: "not as asked"}


def ratios(checks: Sequence[Check], comparisons: Sequence[Comparison]) -> list[Compared]:
    """Rows without a ratio are left out: there is nothing to draw."""
    return [*_by_blocks(comparisons), *_of_checks(checks)]


def _by_blocks(comparisons: Sequence[Comparison]) -> Iterator[Compared]:
    for one in comparisons:
        for row in one.rows:
            if row.ratio:
                yield Compared(f"{one.ours} / {one.theirs}: {row.metric}", row.ratio, row.low, row.high, row.verdict)


def _of_checks(checks: Sequence[Check]) -> Iterator[Compared]:
    for check in checks:
        if check.kind == "compare" and check.observed:
            name = f"{check.subject}: {check.id.partition('/')[2]}"
            yield Compared(name, check.observed, None, None, _WORDS.get(check.status, "inconclusive"))


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


UNAVAILABLE_MAX = 12
_SAID = ("50th", "95th", "99th", "99.9th")
_PERF = ("p50_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms")
QS = {"0.5": "p50", "0.95": "p95", "0.99": "p99", "0.999": "p99.9", "1.0": "max"}


@dataclass(frozen=True)
class Cell:
    """What went between two racks; ``share`` of its row's bytes, ``heat`` of its latency, both from 0 to 1."""

    n: int
    bytes: int
    p50_us: int | None
    p99_us: int | None
    share: float
    heat: float


@dataclass(frozen=True)
class Heat:
    """A row a client and rack, a column a broker's rack."""

    racks: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[Cell | None, ...]], ...]


def heat(flows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> Heat | None:
    """Of the whole run after warm-up; None where no row tells a broker's rack."""
    known = [row for row in flows if row["window"] == "run" and row["broker_rack"]]
    if not known:
        return None
    racks = tuple(sorted({row["broker_rack"] for row in known}))
    slowest_us = max((row["p99_us"] or 0 for row in known), default=0) or 1
    names = dict.fromkeys((row["client"], row["op"], row["client_rack"] or "?") for row in known)
    rows = []
    for client, op, rack in names:
        mine = {
            row["broker_rack"]: row
            for row in known
            if (row["client"], row["op"], row["client_rack"] or "?") == (client, op, rack)
        }
        total = sum(row["bytes"] for row in mine.values()) or 1
        cells = tuple(_cell(mine[other], total, slowest_us) if other in mine else None for other in racks)
        rows.append((f"{labels.get(client, client)} {op}", rack, cells))
    return Heat(racks, tuple(rows))


def _cell(row: Mapping[str, Any], total: int, slowest_us: int) -> Cell:
    warmth = (row["p99_us"] or slowest_us) / slowest_us
    return Cell(row["n"], row["bytes"], row["p50_us"], row["p99_us"], row["bytes"] / total, warmth)


def counted_ways(analysis: Mapping[str, Any], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row a producing client: what ``kafka-producer-perf-test`` would print, and quantiles counted three ways."""
    seen = {(row["metric"], row["client"]): row for row in analysis["distributions"] if row["window"] == "run"}
    rows = []
    for one in analysis.get("perf", ()):
        service, intended = (seen.get((f"produce.{what}", one["client"]), {}) for what in ("service", "latency"))
        rows.append(
            {
                "client": labels.get(one["client"], one["client"]),
                "printed": _printed(one),
                "perf": {q: one[name] * 1e3 for q, name in zip(QS, _PERF, strict=True)},
                "service": service.get("at", {}),
                "intended": intended.get("at", {}),
            }
        )
    return rows


def unavailable(analysis: Mapping[str, Any], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """The partitions (None: a client's whole side) that stalled for longest in all, after warm-up."""
    rows = [
        one | {"client": f"{labels.get(row['client'], row['client'])} {row['side']}"}
        for row in analysis.get("unavailable", ())
        if row["window"] == "run"
        for one in row["partitions"]
    ]
    return sorted(rows, key=lambda row: -row["total_us"])[:UNAVAILABLE_MAX]


def _printed(one: Mapping[str, Any]) -> str:
    """The line as that tool prints it."""
    rate = f"{one['records']} records sent, {one['records_per_s']:.6f} records/sec ({one['mb_per_s']:.2f} MB/sec)"
    ends = f"{one['avg_ms']:.2f} ms avg latency, {one['max_ms']:.2f} ms max latency"
    shares = ", ".join(f"{one[name]:.0f} ms {said}" for name, said in zip(_PERF, _SAID, strict=False))
    return f"{rate}, {ends}, {shares}."

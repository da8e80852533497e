"""Tables of the report (run, faults, client counters, comparisons, latency by phase, traffic between racks)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from aftershock.results.compare.runs import Comparison
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.phases import RUN, Interval
from aftershock.results.measure.exposure import targets_of
from aftershock.results.model import text
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.results.report.plots import Compared
from aftershock.results.report.svg import colours

CounterTable: TypeAlias = tuple[list[str], list[tuple[str, list[int | None]]]]


def about(evidence: Evidence, verdict: Verdict) -> list[str]:
    """Return the facts (run id, start, duration and arms) below the verdict's sentence."""
    run_s = text.run_s(evidence.run)
    facts = [
        "rehearsal: nothing was injected" if evidence.run.get("rehearse") else None,
        "on an attached cluster" if evidence.run.get("attached") else None,
        verdict.run_id,
        evidence.run.get("started_at"),
        None if run_s is None else text.seconds(run_s),
        f"arms: {', '.join(verdict.arms)}",
    ]
    return [str(fact) for fact in facts if fact]


def answers(verdict: Verdict, chapters: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the rows of the table of clients and faults, fault by fault; ``chapters`` maps faults to their story's id.

    A row of a fault that some records were lost in, or after which a client was not normal again, is ``bad``.
    """
    rows = []
    for one in sorted(verdict.answers, key=lambda one: one.fault is not None):  # the whole run first
        lost, twice, stopped, normal = one.columns
        unexplained = (one.lost or 0) - one.lost_permitted, (one.twice or 0) - one.twice_permitted
        rows.append(
            {
                "answer": one,
                "fault": one.name,
                "story": chapters.get(one.fault or ""),
                "client": one.client,
                "counts": one.counts,
                "lost": (lost.removeprefix("lost "), one.counts and unexplained[0] > 0),
                "twice": (twice.removeprefix("twice "), one.counts and unexplained[1] > 0),
                "stopped": (stopped.removeprefix("stopped "), False),
                "normal": (
                    normal.removeprefix("normal again "),
                    one.normality is not None and one.normality.recovered < one.normality.measured,
                ),
            }
        )
    order = {fault: place for place, fault in enumerate(dict.fromkeys(row["fault"] for row in rows))}
    return sorted(rows, key=lambda row: order[row["fault"]])


def results_by_fault(evidence: Evidence, verdict: Verdict) -> Mapping[str, list[str]]:
    """Map each fault to what came of it: the answer of each client, and whether clients' traffic met the fault."""
    by_fault: dict[str, list[str]] = defaultdict(list)
    for step in evidence.steps:
        entry = str(step.get("entry") or step["id"])
        by_fault[step["id"]] += [f"{one.client}: {one.words}" for one in verdict.answers if one.fault == entry]
    for check in verdict.checks:
        if check.kind == "exposure":
            by_fault[check.id.partition("/")[2]].append(f"exposure: {check.why} ({check.status})")
    return by_fault


def fault(evidence: Evidence, verdict: Verdict, step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the fault table, with window, targets, parameters, witness and exposure of a fault."""

    def listed(facts: Mapping[str, Any]) -> str:
        return "; ".join(f"{name}: {_flat(value)}" for name, value in facts.items() if value not in (None, [], {}))

    name, window = step["id"], evidence.window_of(step["id"])
    proof = {check.kind: check for check in verdict.checks if check.id in (f"witness/{name}", f"exposure/{name}")}
    return {
        "id": name,
        "kind": step["kind"],
        "colour": colours(evidence)[name],
        "window": f"{window.start_us / 1e6:.1f} - {window.end_us / 1e6:.1f} s" if window else "never began",
        "targets": listed(targets_of(evidence, name)),
        "parameters": listed(step.get("parameters") or {}),
        "witness": proof.get("witness"),
        "exposure": proof.get("exposure"),
    }


def environment(evidence: Evidence) -> list[tuple[str, list[str]]]:
    """Return facts about the run's environment, each with one line of text, or one per entry of an object."""
    run = evidence.run
    facts = {"run": run["run_id"], "started": run.get("started_at"), "seed": run.get("seed"), "git": run.get("git")}
    facts |= {name: run.get(name) for name in ("attached", "versions", "images", "host", "profile", "warmup")}
    lines = []
    for name, value in facts.items():
        if value not in (None, {}, ""):
            entries = value.items() if isinstance(value, Mapping) else ()
            lines.append((name, [f"{key}: {_flat(entry)}" for key, entry in entries] or [_flat(value)]))
    return lines


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_flat(entry)}" for key, entry in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def counters(events: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> dict[str, CounterTable]:
    """Map an operation to its clients and counters; a counter has one value per client, None if the client lacks it."""
    by_op: dict[str, dict[str, Mapping[str, int]]] = {}
    for line in events:
        if line.get("event") == "counters":
            client = f"{line.get('workload')}/{line.get('arm')}"
            by_op.setdefault(str(line.get("op")), {})[labels.get(client, client)] = line.get("counters") or {}
    tables: dict[str, CounterTable] = {}
    for op, clients in sorted(by_op.items()):
        names = sorted({name for counts in clients.values() for name in counts})
        tables[op] = [*clients], [(name, [counts.get(name) for counts in clients.values()]) for name in names]
    return tables


def ratios(checks: Sequence[Check], comparisons: Sequence[Comparison]) -> list[Compared]:
    """Return the rows of the forest plot (ratios of arms by block of the plan, then ratios that SLOs limit)."""
    words = {Status.PASS: "within the SLO", Status.FAIL: "violates the SLO"}
    rows = [
        Compared(f"{arms.ours} / {arms.theirs}: {row.metric}", row.ratio, row.low, row.high, row.verdict)
        for arms in comparisons
        for row in arms.rows
        if row.ratio and row.low is not None  # a ratio of too few blocks has no interval to draw
    ]
    for check in checks:
        if check.kind == "compare" and check.observed:
            name = f"{check.subject}: {check.id.partition('/')[2]}"
            rows.append(Compared(name, check.observed, None, None, words.get(check.status, "inconclusive")))
    return rows


METRICS = {
    "produce.latency": "Produce latency",
    "consume.latency": "End-to-end latency",
    "pipe.latency": "Latency to the output",
    "produce.service": "Service time",
    "commit.latency": "Commit latency",
}
QUANTILES = {"0.5": "p50", "0.9": "p90", "0.95": "p95", "0.99": "p99", "0.999": "p99.9", "1.0": "max"}
Spread: TypeAlias = dict[str, list[dict[str, Any]]]


def spreads(evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Spread]:
    """Return, by metric and window in order of time, each client's latency quantiles and longest gap.

    Windows of single blocks and rounds of the plan are left out, because the report's table shows each fault as a
    whole.
    """
    gaps_us = {(row["metric"], row["client"], row["window"]): row["longest_us"] for row in analysis["gaps"]}
    intervals = evidence.windows
    parts = {f"fault/{step['id']}" for step in evidence.steps if step.get("entry", step["id"]) != step["id"]}
    order = ("warmup", "steady", "fault", "recovery", RUN)

    def by_time(row: Mapping[str, Any]) -> tuple[int, Sequence[Interval], str, str]:
        kind, _, fault = row["window"].partition("/")
        return order.index(kind), intervals.get(row["window"], ()) if fault else (), fault, row["client"]

    by_title: dict[str, Spread] = {title: {} for title in METRICS.values()}
    for row in sorted((row for row in analysis["distributions"] if row["window"] not in parts), key=by_time):
        if title := METRICS.get(row["metric"]):
            side, _, kind = row["metric"].partition(".")
            gap_us = gaps_us.get((f"{side}.gap", row["client"], row["window"])) if kind == "latency" else None
            window = "after warm-up" if row["window"] == RUN else row["window"]
            named = {"client": labels.get(row["client"], row["client"]), "gap_us": gap_us}
            by_title[title].setdefault(window, []).append(row | named)
    return {title: windows for title, windows in by_title.items() if windows}


@dataclass(frozen=True)
class RackCell:
    """Traffic of a client with a rack; ``share`` is a part of the client's bytes, ``heat`` is p99 / highest p99."""

    bytes: int
    p50_us: int | None
    p99_us: int | None
    share: float
    heat: float


@dataclass(frozen=True)
class RackTable:
    """Traffic between racks, with a row per client and rack of the client, and a column per rack of brokers."""

    racks: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[RackCell | None, ...]], ...]


def rack_table(flows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> RackTable | None:
    """Return the table of traffic between racks after warm-up, or None if no broker's rack is known."""
    located = [row for row in flows if row["window"] == "run" and row["broker_rack"]]
    if not located:
        return None
    racks = tuple(sorted({row["broker_rack"] for row in located}))
    slowest_us = max(row["p99_us"] or 0 for row in located) or 1
    by_client: dict[tuple[str, str, str], dict[str, Mapping[str, Any]]] = {}
    for row in located:
        by_client.setdefault((row["client"], row["op"], row["client_rack"] or "?"), {})[row["broker_rack"]] = row
    rows = []
    for (client, op, rack), by_rack in by_client.items():
        total = sum(row["bytes"] for row in by_rack.values()) or 1
        cells = []
        for broker_rack in racks:
            cell = None
            if row := by_rack.get(broker_rack, {}):
                heat = (row["p99_us"] or slowest_us) / slowest_us
                cell = RackCell(row["bytes"], row["p50_us"], row["p99_us"], row["bytes"] / total, heat)
            cells.append(cell)
        rows.append((f"{labels.get(client, client)} {op}", rack, tuple(cells)))
    return RackTable(racks, tuple(rows))


PERF_QUANTILES = {"0.5": "p50", "0.95": "p95", "0.99": "p99", "0.999": "p99.9", "1.0": "max"}


def latency_definitions(analysis: Mapping[str, Any], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return each producer's latency as ``kafka-producer-perf-test`` prints it, and quantiles by three definitions."""
    rows_by_metric = {
        (row["metric"], row["client"]): row for row in analysis["distributions"] if row["window"] == "run"
    }
    columns = ("p50_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms")
    rows = []
    for perf in analysis.get("perf", ()):
        service, intended = (
            rows_by_metric.get((f"produce.{name}", perf["client"]), {}) for name in ("service", "latency")
        )
        rate = f"{perf['records_per_s']:.6f} records/sec ({perf['mb_per_s']:.2f} MB/sec)"
        ends = f"{perf['avg_ms']:.2f} ms avg latency, {perf['max_ms']:.2f} ms max latency"
        ranks = zip(columns, ("50th", "95th", "99th", "99.9th"), strict=False)
        shares = ", ".join(f"{perf[column]:.0f} ms {rank}" for column, rank in ranks)
        rows.append(
            {
                "client": labels.get(perf["client"], perf["client"]),
                "printed": f"{perf['records']} records sent, {rate}, {ends}, {shares}.",
                "perf": {q: perf[column] * 1e3 for q, column in zip(PERF_QUANTILES, columns, strict=True)},
                "service": service.get("at", {}),
                "intended": intended.get("at", {}),
            }
        )
    return rows


UNAVAILABLE_MAX = 12


def unavailable(analysis: Mapping[str, Any], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the partitions by stall time after warm-up, longest first; a partition of None stands for a client."""
    rows = [
        partition | {"client": f"{labels.get(row['client'], row['client'])} {row['side']}"}
        for row in analysis.get("unavailable", ())
        if row["window"] == "run"
        for partition in row["partitions"]
    ]
    return sorted(rows, key=lambda row: -row["total_us"])

"""Build ``analysis.json`` from the rows of a run without Spark, for tests of rendering.

The document has the shapes that the judge writes; other tests prove the judge's measurements.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

Row = Mapping[str, Any]
S = 1_000_000
QS = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
SPECTRUM = tuple(1 - 10 ** (-step / 12) for step in range(1, 49))


def analysed(outcomes: Sequence[Row], phases: Sequence[Row]) -> dict[str, Any]:
    """Return the whole document, computed from outcome rows and the rows of ``phases.json``."""
    judged_rows = list(_judged_rows(outcomes))
    windows = {name: [row for row in judged_rows if _within(row, spans)] for name, spans in _windows(phases).items()}
    return {
        "schema_version": 2,
        "distributions": [
            distribution for name, rows in windows.items() for distribution in _distributions(name, rows)
        ],
        "gaps": [gap for name, rows in windows.items() for gap in _gaps(name, rows)],
        "recoveries": _recoveries(judged_rows, phases),
        "bin_us": S,
        "bins": _bins(judged_rows),
        "crossed": {},
        "host": {},
        "spectra": [one for name, rows in windows.items() for one in _spectra(name, rows)],
        "racks": [rack for name, rows in windows.items() for rack in _racks(name, rows)],
        "slowest": _slowest(windows["run"]),
        "stalls": _stalls(judged_rows),
        "failures": [],
        "findings": [],
        "unavailable": _unavailable(_stalls(judged_rows)),
        "lag": _lag(judged_rows),
        "perf": _perf(windows["run"]),
        "cuts": [],
    }


def _judged_rows(outcomes: Iterable[Row]) -> Iterable[dict[str, Any]]:
    for row in outcomes:
        late = None if row.get("done_us") is None or row["status"] != "ok" else row["done_us"] - row["intended_us"]
        yield dict(row) | {"key": f"{row['workload']}/{row['arm']}", "metric": f"{row['op']}.latency", "us": late}


def _windows(phases: Sequence[Row]) -> dict[str, list[tuple[int, int]]]:
    result = defaultdict(list)
    for phase in phases:
        span = (phase["start_us"], phase["end_us"])
        result[phase["name"]].append(span)
        if phase["fault"]:
            result[f"fault/{phase['fault']}"].append(span)
    result["run"] = [
        (min(one["start_us"] for one in phases if one["name"] != "warmup"), max(one["end_us"] for one in phases))
    ]
    return dict(result)


def _within(row: Row, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start <= row["intended_us"] < end for start, end in spans)


def _by(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Any]]:
    result = defaultdict(list)
    for row in rows:
        result[tuple(row.get(name) for name in names)].append(row)
    return dict(sorted(result.items(), key=str))


def _ranked(rows: Iterable[Row]) -> list[int | None]:
    """Return sorted latencies; a failure sorts last."""
    return sorted((row["us"] for row in rows), key=lambda one: (one is None, one or 0))


def _quantile(ranked: Sequence[int | None], q: float) -> int | None:
    """Nearest rank."""
    return ranked[max(0, math.ceil(q * len(ranked)) - 1)]


def _distributions(window: str, rows: Iterable[Row]) -> Iterable[Row]:
    for (metric, client), group in _by(rows, "metric", "key").items():
        us = _ranked(group)
        known = [one for one in us if one is not None]
        seen = {"n": len(us), "censored": us.count(None), "slowest_us": max(known, default=None)}
        at = {repr(q): _quantile(us, q) for q in QS}
        bands = [{"q": 0.95, "confidence": 0.95, "low_us": at["0.9"], "high_us": at["0.99"]}]
        mean = {"mean_us": sum(known) / len(known) if known else None, "bands": bands}
        yield {"metric": metric, "client": client, "window": window, **seen, "at": at, **mean}
        if metric == "produce.latency":
            served = sorted(
                row["done_us"] - row["sent_us"] for row in group if row["us"] is not None and row.get("sent_us")
            )
            at = {repr(q): _quantile(served, q) for q in QS} if served else {}
            yield {"metric": "produce.service", "client": client, "window": window, **seen, "at": at, **mean}


def _gaps(window: str, rows: Iterable[Row]) -> Iterable[Row]:
    for (op, client), group in _by(rows, "op", "key").items():
        done = sorted(row["done_us"] for row in group if row["us"] is not None)
        longest = max((after - before for before, after in pairwise(done)), default=None)
        named = {"metric": f"{op}.gap", "client": client, "window": window}
        yield named | {"n": len(done), "longest_us": longest}


def _recoveries(judged_rows: Sequence[Row], phases: Sequence[Row]) -> list[Row]:
    clients = sorted({row["key"] for row in judged_rows if row["op"] == "produce"})
    begun = [(phase["fault"], phase["start_us"]) for phase in phases if phase["fault"]]
    observed = max(phase["end_us"] for phase in phases)
    rows = []
    for fault, at in begun:
        for index, client in enumerate(clients):
            seen = {"n": 100, "recovered_us": 400_000 * (1 + index), "observed_us": observed - at}
            rows.append({"fault": fault, "client": client, **seen})
    return rows


def _bins(judged_rows: Iterable[Row]) -> list[Row]:
    binned = [{**row, "bin": row["intended_us"] // S} for row in judged_rows]
    rows = []
    for (metric, client, rack, number), group in _by(binned, "metric", "key", "client_rack", "bin").items():
        us = _ranked(group)
        seen = {"n": len(us), "censored": us.count(None), "p50_us": _quantile(us, 0.5), "p99_us": _quantile(us, 0.99)}
        slowest = max((one for one in us if one is not None), default=None)
        named = {"metric": metric, "client": client, "rack": rack, "start_us": number * S}
        rows.append(named | seen | {"slowest_us": slowest})
    return sorted(rows, key=lambda row: (row["metric"], row["client"], row["rack"] or "", row["start_us"]))


def _spectra(window: str, rows: Iterable[Row]) -> Iterable[Row]:
    for (metric, client), group in _by(rows, "metric", "key").items():
        us = _ranked(group)
        points = [[q, _quantile(us, q)] for q in SPECTRUM if q < 1 - 1 / len(us)]
        yield {"metric": metric, "client": client, "window": window, "points": points}


def _racks(window: str, rows: Iterable[Row]) -> Iterable[Row]:
    names = ("op", "key", "client_rack", "broker_rack")
    for (op, client, rack, theirs), group in _by(rows, *names).items():
        us = _ranked(group)
        size = sum(row.get("bytes") or 0 for row in group)
        seen = {"n": len(us), "bytes": size, "p50_us": _quantile(us, 0.5), "p99_us": _quantile(us, 0.99)}
        yield {"op": op, "client": client, "client_rack": rack, "broker_rack": theirs, "window": window, **seen}


def _slowest(judged_rows: Iterable[Row]) -> list[Row]:
    names = ("producer_id", "seq", "topic", "partition", "offset", "intended_us", "sent_us", "done_us", "status")
    names += ("error", "broker_id", "leader_epoch", "attempts")
    result = []
    for (op, client), group in _by(judged_rows, "op", "key").items():
        worst = sorted(group, key=lambda row: (row["us"] is not None, -(row["us"] or 0)))[:10]
        records = [{name: row.get(name) for name in names} for row in worst]
        result.append({"op": op, "client": client, "records": records})
    return result


def _stalls(judged_rows: Iterable[Row]) -> list[Row]:
    rows = []
    for (op, client, partition), group in _by(judged_rows, "op", "key", "partition").items():
        place = {"side": op, "client": client, "partition": partition}
        waits = sorted((row["intended_us"], row["done_us"]) for row in group if (row["us"] or 0) >= S)
        reached = -1
        for start, end in waits:
            if start > reached:
                rows.append({**place, "start_us": start, "end_us": end})
                reached = end
    return rows


def _unavailable(stalls: Sequence[Row]) -> list[Row]:
    rows = []
    for (side, client), group in _by(stalls, "side", "client").items():
        lengths = [(one["partition"], one["end_us"] - one["start_us"]) for one in group]
        parts = [{"partition": number, "total_us": us, "longest_us": us, "n": 1} for number, us in lengths]
        rows.append({"side": side, "client": client, "window": "run", "partitions": parts})
    return rows


def _lag(judged_rows: Sequence[Row]) -> list[Row]:
    acked = {
        (row["producer_id"], row["seq"]): row for row in judged_rows if row["op"] == "produce" and row["us"] is not None
    }
    result = []
    for (client,), group in _by((row for row in judged_rows if row["op"] == "consume"), "key").items():
        read = {(row["producer_id"], row["seq"]): row["done_us"] for row in group}
        open_ = [(row["done_us"], read.get(key, 1 << 62), row["intended_us"]) for key, row in acked.items()]
        seconds = []
        for at in range(S, max(row["done_us"] for row in group) + S, S):
            late = [at - wanted for done, got, wanted in open_ if done <= at < got]
            seconds.append([at, len(late), max(late, default=0)])
        result.append({"client": client, "seconds": seconds})
    return result


def _perf(judged_rows: Iterable[Row]) -> list[Row]:
    rows = []
    for (client,), group in _by((row for row in judged_rows if row["op"] == "produce"), "key").items():
        ok = [row for row in group if row["us"] is not None and row.get("sent_us") is not None]
        ms = sorted((row["done_us"] - row["sent_us"]) / 1e3 for row in ok)
        if ms:
            took = (max(row["done_us"] for row in ok) - min(row["sent_us"] for row in ok)) / S
            size = sum(row["bytes"] for row in ok) / 2**20
            told_of = {"records": len(ok), "seconds": took, "records_per_s": len(ok) / took, "mb_per_s": size / took}
            qs = {f"p{name}_ms": ms[math.ceil(q * len(ms)) - 1] for name, q in (("50", 0.5), ("95", 0.95))}
            qs |= {f"p{name}_ms": ms[math.ceil(q * len(ms)) - 1] for name, q in (("99", 0.99), ("999", 0.999))}
            rows.append({"client": client, **told_of, "avg_ms": sum(ms) / len(ms), "max_ms": ms[-1], **qs})
    return rows

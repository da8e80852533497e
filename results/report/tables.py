"""The figures that stand in tables: flows between racks, and three ways to count a latency side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

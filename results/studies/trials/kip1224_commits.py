"""Latency and batching of offset commits at each linger setting of a group coordinator, for KIP-1224's claims.

The coordinator of a consumer group is the leader of the ``__consumer_offsets`` partition to which the group's commits
were written (table ``offsets``). A commit belongs to the slice of time that contains its intended time, and the latency
of a failed commit is infinite. The append linger of each broker is read from the plan.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from aftershock.results.studies.part import Floats, Part, Slice, mean, median, quantile, steady_slices
from aftershock.results.studies.statement import Measured

LINGER, SHARE_LINGER = "group.coordinator.append.linger.ms", "share.coordinator.append.linger.ms"
ADAPTIVE, FIXED, NONE, DEFAULT = "-1", "5", "0", "default"
COLUMNS = ("group", "intended_us", "done_us", "status")


def lingers(part: Part) -> dict[int, str]:
    """Map each broker to the append linger that the plan sets (for groups or share groups), else to ``default``."""
    cluster: Mapping[str, Any] = part.run.timeline["cluster"]
    by_broker = {}
    for broker in range(1, sum(cluster["racks"].values()) + 1):
        config = {**cluster["config"], **(cluster.get("brokers") or {}).get(str(broker), {})}
        by_broker[broker] = str(config.get(LINGER, config.get(SHARE_LINGER, DEFAULT)))
    return by_broker


def offsets_log(part: Part) -> pa.Table | None:
    """Return the rows of ``__consumer_offsets`` in log order per partition, or None if the topic could not be read."""
    path = part.home / "offsets" / "part-0.parquet"
    if not path.exists():
        return None
    return pq.read_table(path).sort_by([("partition", "ascending"), ("offset", "ascending")])


def coordinators(part: Part) -> dict[str, int]:
    """Map each consumer group to the broker that leads the group's ``__consumer_offsets`` partition at the end."""
    table = offsets_log(part)
    return {} if table is None else dict(zip(table["group"].to_pylist(), table["broker_id"].to_pylist(), strict=True))


def lingers_of_rows(part: Part, rows: pa.Table) -> NDArray[np.str_]:
    """Return, for each commit, the linger setting of its group's coordinator; empty if the coordinator is unknown."""
    brokers, by_broker = coordinators(part), lingers(part)
    return np.array([by_broker.get(brokers.get(group, 0), "") for group in rows["group"].to_pylist()])


def latency_ms(rows: pa.Table) -> Floats:
    """Return the time from intended to completed of each commit in ms, infinite for a failed commit."""
    ok = pc.equal(rows["status"], "ok").to_numpy(zero_copy_only=False)
    latency_us = rows["done_us"].fill_null(0).to_numpy() - rows["intended_us"].to_numpy()
    return np.where(ok, latency_us, np.inf) / 1000


def latencies_ms(part: Part, client: str, spans: Sequence[Slice]) -> dict[str, list[Floats]]:
    """Map each linger setting of coordinators to commit latencies in ms, with one array per slice of time."""
    rows = part.outcomes("commit", COLUMNS, client)
    settings, latencies, intended = lingers_of_rows(part, rows), latency_ms(rows), rows["intended_us"].to_numpy()
    masks = [(intended >= span.start_us) & (intended < span.end_us) for span in spans]
    names = sorted(set(lingers(part).values()))
    return {name: [latencies[(settings == name) & mask] for mask in masks] for name in names}


def medians_ms(part: Part, client: str, spans: Sequence[Slice]) -> dict[str, list[float]]:
    """Map each linger setting to the median commit latency of each slice of time, NaN for a slice without commits."""
    latencies = latencies_ms(part, client, spans)
    return {name: [median(values) for values in by_slice] for name, by_slice in latencies.items()}


def commits_per_flush(part: Part) -> dict[str, float]:
    """Map each linger setting to the number of commits per batch in the log, transactional commits excluded."""
    table, by_broker = offsets_log(part), lingers(part)
    if table is None:
        return {}
    selected = table.filter(pc.invert(table["transactional"]))
    commits: dict[str, int] = {}
    batches: dict[str, set[tuple[int, int]]] = {}
    columns = [selected[name].to_pylist() for name in ("broker_id", "partition", "batch")]
    for broker, partition, batch in zip(*columns, strict=True):
        setting = by_broker.get(broker, DEFAULT)
        commits[setting] = commits.get(setting, 0) + 1
        batches.setdefault(setting, set()).add((partition, batch))
    return {setting: count / len(batches[setting]) for setting, count in commits.items()}


def batching(runs: Sequence[Part], ours: str, theirs: str, digits: int) -> Measured:
    """Report the commits per batch at one linger setting relative to another, with the values of each run."""
    sizes = [commits_per_flush(run) for run in runs]
    ratios = [by_linger[ours] / by_linger[theirs] for by_linger in sizes if {ours, theirs} <= by_linger.keys()]
    texts = [" ".join(f"{name}: {by_linger[name]:.{digits}f}" for name in sorted(by_linger)) for by_linger in sizes]
    why = f"commits per batch of the offsets topic, by linger, run by run: {'; '.join(texts)}"
    return Measured(mean(ratios, "times"), why)


class Bout(NamedTuple):
    """Throughput and latency of a bout, the commits of one round to one coordinator while no other gets commits."""

    per_s: float
    p50_ms: float
    p99_ms: float


def bouts(part: Part) -> dict[str, list[Bout]]:
    """Map each linger setting to the bouts (uninterrupted commits to one coordinator) of all rounds of the load.

    Only rounds that lie entirely in the steady phase are included. At both ends of a bout, as many commits as the
    closed loop has in flight are left out, because two coordinators then work at the same time.
    """
    commit, spans = part.run.timeline["workloads"][0]["commit"], steady_slices(part)
    groups, edge = commit["groups"], commit.get("in_flight", 0)
    rows = part.outcomes("commit", ("seq", *COLUMNS)).sort_by("seq")
    intended = rows["intended_us"].to_numpy()
    rows = rows.filter(pa.array((intended >= spans[0].start_us) & (intended < spans[-1].end_us)))
    rounds, settings = rows["seq"].to_numpy() // groups, lingers_of_rows(part, rows)
    numbers, counts = np.unique(rounds, return_counts=True)
    by_linger: dict[str, list[Bout]] = {}
    for setting in sorted(set(lingers(part).values())):
        by_linger[setting] = []
        for number in numbers[counts == groups]:
            indices = np.flatnonzero((rounds == number) & (settings == setting))
            bout = rows.take(pa.array(indices[edge : len(indices) - edge]))
            intended, latencies = bout["intended_us"].to_numpy().astype(float), latency_ms(bout)
            per_s = float((len(intended) - 1) * 1e6 / np.ptp(intended)) if len(intended) > 1 else np.nan
            by_linger[setting].append(Bout(per_s, quantile(latencies, 0.5), quantile(latencies, 0.99)))
    return by_linger

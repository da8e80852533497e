"""Commits by the linger of their coordinator, the measurements behind KIP-1224's claims.

Rules. A group's coordinator is the leader of the partition of ``__consumer_offsets`` to which its commits were written
(``offsets/``). A commit belongs to the slice of its intended time, and a failed one is slower than any. A broker's
linger is read from the plan.

A bout is the uninterrupted sequence of one round's commits to one coordinator, so it measures one busy coordinator at a
time. Only rounds that lie wholly in the steady phase count. The first and the last commits of a bout, as many as a
closed loop has in flight, share the host with the coordinator before or after and are left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from aftershock.results.trials.part import Floats, Part, Slice, mean, quantile, steady
from aftershock.results.trials.statement import Judged, reported

LINGER, SHARE_LINGER = "group.coordinator.append.linger.ms", "share.coordinator.append.linger.ms"
ADAPTIVE, FIXED, NONE, DEFAULT = "-1", "5", "0", "default"
US_PER_MS = 1_000
COLUMNS = ("group", "intended_us", "done_us", "status")


def lingers(part: Part) -> dict[int, str]:
    """Return each broker's linger by the plan (for groups or share groups), ``default`` if it sets none."""
    cluster: Mapping[str, Any] = part.run.timeline["cluster"]
    brokers = range(1, sum(cluster["racks"].values()) + 1)
    own = {int(broker): settings for broker, settings in (cluster.get("brokers") or {}).items()}
    merged = {broker: {**cluster["config"], **own.get(broker, {})} for broker in brokers}
    return {broker: str(config.get(LINGER, config.get(SHARE_LINGER, DEFAULT))) for broker, config in merged.items()}


def written(part: Part) -> pa.Table | None:
    """Return the coordinators' log in order of each partition, None if it could not be read."""
    path = part.home / "offsets" / "part-0.parquet"
    if not path.exists():
        return None
    return pq.read_table(path).sort_by([("partition", "ascending"), ("offset", "ascending")])


def coordinators(part: Part) -> dict[str, int]:
    """Map group to the broker that leads its partition at the end of the run."""
    table = written(part)
    if table is None:
        return {}
    return dict(zip(table["group"].to_pylist(), table["broker_id"].to_pylist(), strict=True))


def settings_of(part: Part, rows: pa.Table) -> NDArray[np.str_]:
    """Return the coordinator's linger for each commit, an empty text if it is unknown."""
    brokers, by_broker = coordinators(part), lingers(part)
    return np.array([by_broker.get(brokers.get(group, 0), "") for group in rows["group"].to_pylist()])


def took_ms(rows: pa.Table) -> Floats:
    """Return the time from intended to done in ms, infinite for a failed commit."""
    ok = pc.equal(rows["status"], "ok").to_numpy(zero_copy_only=False)
    took_us = rows["done_us"].fill_null(0).to_numpy() - rows["intended_us"].to_numpy()
    return np.where(ok, took_us, np.inf) / US_PER_MS


def latencies_ms(part: Part, client: str, spans: Sequence[Slice]) -> dict[str, list[Floats]]:
    """Return latencies by the coordinator's linger, slice by slice."""
    workload, arm = client.split("/")
    condition = (pc.field("op") == "commit") & (pc.field("workload") == workload) & (pc.field("arm") == arm)
    rows = part.outcomes(COLUMNS, condition)
    settings, took, intended = settings_of(part, rows), took_ms(rows), rows["intended_us"].to_numpy()
    masks = [(intended >= span.start_us) & (intended < span.end_us) for span in spans]
    names = sorted(set(lingers(part).values()))
    return {name: [took[(settings == name) & mask] for mask in masks] for name in names}


def medians_ms(part: Part, client: str, spans: Sequence[Slice]) -> dict[str, list[float]]:
    """Return the p50 of each slice by linger, NaN for a slice without commits."""
    latencies = latencies_ms(part, client, spans)
    return {
        name: [quantile(values, 0.5) if len(values) else np.nan for values in by_slice]
        for name, by_slice in latencies.items()
    }


def per_flush(part: Part, *, transactional: bool) -> dict[str, float]:
    """Return commits per batch by the coordinator's linger."""
    table, by_broker = written(part), lingers(part)
    if table is None:
        return {}
    selected = table.filter(pc.equal(table["transactional"], transactional))
    commits: dict[str, int] = {}
    batches: dict[str, set[tuple[int, int]]] = {}
    for broker, partition, batch in zip(*(selected[name].to_pylist() for name in _PLACE), strict=True):
        setting = by_broker.get(broker, DEFAULT)
        commits[setting] = commits.get(setting, 0) + 1
        batches.setdefault(setting, set()).add((partition, batch))
    return {setting: count / len(batches[setting]) for setting, count in commits.items()}


_PLACE = ("broker_id", "partition", "batch")


def batching(runs: Sequence[Part], ours: str, theirs: str, digits: int) -> Judged:
    """Report plain commits per flush at one linger relative to another, and the values of each run."""
    sizes = [per_flush(run, transactional=False) for run in runs]
    known = [by_linger[ours] / by_linger[theirs] for by_linger in sizes if {ours, theirs} <= by_linger.keys()]
    texts = [" ".join(f"{name}: {by_linger[name]:.{digits}f}" for name in sorted(by_linger)) for by_linger in sizes]
    why = f"commits per batch of the offsets topic, by linger, run by run: {'; '.join(texts)}"
    return reported(mean(known, "times"), why)


US_PER_S = 1_000_000


class Bout(NamedTuple):
    """Commits per second, and their latency."""

    per_s: float
    p50_ms: float
    p99_ms: float


def bouts(part: Part) -> dict[str, list[Bout]]:
    """Return the bouts by the coordinator's linger, round by round."""
    commit, spans = part.run.timeline["workloads"][0]["commit"], steady(part)
    rows = part.outcomes(("seq", *COLUMNS), pc.field("op") == "commit").sort_by("seq")
    intended = rows["intended_us"].to_numpy()
    rows = rows.filter(pa.array((intended >= spans[0].start_us) & (intended < spans[-1].end_us)))
    rounds, settings = rows["seq"].to_numpy() // commit["groups"], settings_of(part, rows)
    numbers, counts = np.unique(rounds, return_counts=True)
    whole = numbers[counts == commit["groups"]]
    edge = commit.get("in_flight", 0)
    by_linger: dict[str, list[Bout]] = {}
    for setting in sorted(set(lingers(part).values())):
        indices = [np.flatnonzero((rounds == number) & (settings == setting)) for number in whole]
        by_linger[setting] = [_bout(rows.take(pa.array(bout[edge : len(bout) - edge]))) for bout in indices]
    return by_linger


def _bout(rows: pa.Table) -> Bout:
    intended, took = rows["intended_us"].to_numpy(), took_ms(rows)
    return Bout(_per_s(intended.astype(float)), quantile(took, 0.5), quantile(took, 0.99))


def _per_s(intended_us: Floats) -> float:
    return float((len(intended_us) - 1) * US_PER_S / np.ptp(intended_us)) if len(intended_us) > 1 else np.nan

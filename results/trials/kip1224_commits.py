"""Commits by the setting of their coordinator: what KIP-1224's statements are made of.

Rules. A group's coordinator is whoever leads the partition of ``__consumer_offsets`` that its commits were written to
(``offsets/``); a client's own word isn't needed, and a transaction's client talks to somebody else at the end. A commit
belongs to the slice of its intended time, and one that failed is slower than any. The broker's setting is the plan's.

Commits that were dealt coordinator by coordinator, cut into bouts: what a busy coordinator does while it is alone.

Rules. A bout is one round's commits to one coordinator, neighbours in the order of sending. Only rounds that lie wholly
in the steady part count. The first and the last commits of a bout, as many as a closed loop has in flight, share the
host with the coordinator before or after and are left out. A commit that failed is slower than any.
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
    """What each broker was set to, as the plan says, which sets one of both; ``default`` where it says nothing."""
    cluster: Mapping[str, Any] = part.run.timeline["cluster"]
    brokers = range(1, sum(cluster["racks"].values()) + 1)
    own = {int(broker): settings for broker, settings in (cluster.get("brokers") or {}).items()}
    of_each = {broker: {**cluster["config"], **own.get(broker, {})} for broker in brokers}
    return {broker: str(told.get(LINGER, told.get(SHARE_LINGER, DEFAULT))) for broker, told in of_each.items()}


def written(part: Part) -> pa.Table | None:
    """What coordinators wrote, in the order of each partition; None where it could not be read."""
    path = part.home / "offsets" / "part-0.parquet"
    if not path.exists():
        return None
    return pq.read_table(path).sort_by([("partition", "ascending"), ("offset", "ascending")])


def coordinators(part: Part) -> dict[str, int]:
    """Group → the broker that leads its partition at the end of the run."""
    table = written(part)
    if table is None:
        return {}
    return dict(zip(table["group"].to_pylist(), table["broker_id"].to_pylist(), strict=True))


def settings_of(part: Part, rows: pa.Table) -> NDArray[np.str_]:
    """What the coordinator of each commit was set to; empty where it is not known."""
    at, set_to = coordinators(part), lingers(part)
    return np.array([set_to.get(at.get(group, 0), "") for group in rows["group"].to_pylist()])


def took_ms(rows: pa.Table) -> Floats:
    """From the intended time to the answer, infinite where it failed."""
    ok = pc.equal(rows["status"], "ok").to_numpy(zero_copy_only=False)
    took_us = rows["done_us"].fill_null(0).to_numpy() - rows["intended_us"].to_numpy()
    return np.where(ok, took_us, np.inf) / US_PER_MS


def latencies_ms(part: Part, client: str, spans: Sequence[Slice]) -> dict[str, list[Floats]]:
    """By the coordinator's setting, slice by slice."""
    workload, arm = client.split("/")
    whose = (pc.field("op") == "commit") & (pc.field("workload") == workload) & (pc.field("arm") == arm)
    rows = part.outcomes(COLUMNS, whose)
    told, took, intended = settings_of(part, rows), took_ms(rows), rows["intended_us"].to_numpy()
    within = [(intended >= span.start_us) & (intended < span.end_us) for span in spans]
    of_each = sorted(set(lingers(part).values()))
    return {setting: [took[(told == setting) & here] for here in within] for setting in of_each}


def medians_ms(part: Part, client: str, spans: Sequence[Slice]) -> dict[str, list[float]]:
    """By setting, the p50 of each slice; not a number where a slice has no commit."""
    found = latencies_ms(part, client, spans)
    return {setting: [quantile(each, 0.5) if len(each) else np.nan for each in of] for setting, of in found.items()}


def per_flush(part: Part, *, transactional: bool) -> dict[str, float]:
    """By the coordinator's setting, commits a batch."""
    table, set_to = written(part), lingers(part)
    if table is None:
        return {}
    kept = table.filter(pc.equal(table["transactional"], transactional))
    commits: dict[str, int] = {}
    batches: dict[str, set[tuple[int, int]]] = {}
    for broker, partition, batch in zip(*(kept[name].to_pylist() for name in _PLACE), strict=True):
        setting = set_to.get(broker, DEFAULT)
        commits[setting] = commits.get(setting, 0) + 1
        batches.setdefault(setting, set()).add((partition, batch))
    return {setting: count / len(batches[setting]) for setting, count in commits.items()}


_PLACE = ("broker_id", "partition", "batch")


def batching(runs: Sequence[Part], ours: str, theirs: str, digits: int) -> Judged:
    """Commits a flush, plain ones: of one setting by another, and of each in words."""
    found = [per_flush(run, transactional=False) for run in runs]
    known = [each[ours] / each[theirs] for each in found if {ours, theirs} <= each.keys()]
    said = "; ".join(" ".join(f"{name}: {each[name]:.{digits}f}" for name in sorted(each)) for each in found)
    return reported(mean(known, "times"), f"commits a batch of the offsets topic, by linger, run by run: {said}")


US_PER_S = 1_000_000


class Bout(NamedTuple):
    """How many commits a second were sent, and how long they took."""

    per_s: float
    p50_ms: float
    p99_ms: float


def bouts(part: Part) -> dict[str, list[Bout]]:
    """By the coordinator's setting, round by round."""
    commit, spans = part.run.timeline["workloads"][0]["commit"], steady(part)
    rows = part.outcomes(("seq", *COLUMNS), pc.field("op") == "commit").sort_by("seq")
    intended = rows["intended_us"].to_numpy()
    rows = rows.filter(pa.array((intended >= spans[0].start_us) & (intended < spans[-1].end_us)))
    rounds, told = rows["seq"].to_numpy() // commit["groups"], settings_of(part, rows)
    numbers, counts = np.unique(rounds, return_counts=True)
    whole = numbers[counts == commit["groups"]]
    edge = commit.get("in_flight", 0)
    found: dict[str, list[Bout]] = {}
    for setting in sorted(set(lingers(part).values())):
        places = [np.flatnonzero((rounds == each) & (told == setting)) for each in whole]
        found[setting] = [_bout(rows.take(pa.array(of[edge : len(of) - edge]))) for of in places]
    return found


def _bout(rows: pa.Table) -> Bout:
    intended, took = rows["intended_us"].to_numpy(), took_ms(rows)
    return Bout(_per_s(intended.astype(float)), quantile(took, 0.5), quantile(took, 0.99))


def _per_s(intended_us: Floats) -> float:
    return float((len(intended_us) - 1) * US_PER_S / np.ptp(intended_us)) if len(intended_us) > 1 else np.nan

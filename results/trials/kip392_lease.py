"""KIP-392 when the closest replica is no good: it lags, it dies, or the leader dies.

Rules. How long a lagging replica was kept is counted from when it began to lag to each partition's first record from
another broker. A gap is the longest time without a delivery while a broker was dead; the readers of the leader had one
too, which no choice of replica could spare them, so gaps are compared with theirs.
"""

from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftershock.results.trials.claim import Parts
from aftershock.results.trials.part import Part
from aftershock.results.trials.received import Received, received
from aftershock.results.trials.slices import Slice, quantile
from aftershock.results.trials.statement import Estimate, Judged
from aftershock.results.trials.words import reported, seen

NEAR = 2
"""The broker of the consumers' rack."""
LEASE_S, NOTICED_S = 20, 5
GAP_MORE_S = 2.0
CHANGES_MAX, WITHIN_US = 2, 10_000_000


def kept(parts: Parts) -> Judged:
    """How long after the replica began to lag each partition was read elsewhere; the longest counts."""
    part = parts["lease"]
    (lag,) = part.phases("lag")
    records = received(part, "reads/closest")
    later = records.where((records.done_us >= lag["start_us"]) & (records.broker_id != NEAR))
    left_s = {
        partition: float(later.done_us[later.partition == partition].min() - lag["start_us"]) / 1e6
        for partition in sorted(set(records.partition.tolist()))
        if (later.partition == partition).any()
    }
    longest = max(left_s.values(), default=None)
    told = ", ".join(f"{partition}: {seconds:.1f} s" for partition, seconds in left_s.items())
    # a lease that is granted just before the leader has noticed lasts for that much longer
    holds = None if longest is None else longest <= LEASE_S + NOTICED_S
    return seen(holds, Estimate(longest, None, None, len(left_s), "s"), f"read elsewhere after, by partition: {told}")


def felt(parts: Parts) -> Judged:
    """How late records were while the replica lagged, beside those from the leader."""
    part = parts["lease"]
    (lag,) = part.phases("lag")
    span = Slice(lag["start_us"], lag["end_us"])
    slowest_s = [
        quantile(received(part, f"reads/{arm}").meant_in(span).latency_us, 0.99) / 1e6 for arm in ("closest", "leader")
    ]
    ours = Estimate(slowest_s[0], None, None, 1, "s")
    return reported(ours, f"p99 while it lagged; read from the leader {slowest_s[1]:.2f} s")


def survived(parts: Parts, fault: str) -> Judged:
    """The longest time without a record, closest less leader."""
    part = parts["lease"]
    gaps_s = [_gap_s(part, f"reads/{arm}", f"fault/{fault}") for arm in ("closest", "leader")]
    if None in gaps_s:
        return seen(None, Estimate(None, None, None, 0, "s"), "nothing was read while it was dead")
    ours, theirs = (gap for gap in gaps_s if gap is not None)
    back = [event for event in _events(part, "replica_failed_back") if _in(part, fault, event)]
    why = f"gaps of {ours:.2f} and {theirs:.2f} s; {len(back)} partitions failed back meanwhile"
    return seen(ours - theirs < GAP_MORE_S, Estimate(ours - theirs, None, None, 1, "s"), why)


def _gap_s(part: Part, client: str, window: str) -> float | None:
    for row in part.run.analysis["gaps"]:
        if (row["metric"], row["client"], row["window"]) == ("consume.gap", client, window) and row["n"]:
            return float(row["longest_us"]) / 1e6
    return None


def steady(parts: Parts) -> Judged:
    """The most that a partition's records came from another broker than before within ten seconds."""
    records = received(parts["lease"], "reads/closest")
    changes = [_changed_us(records.where(records.partition == one)) for one in np.unique(records.partition)]
    most, n = max(map(_most_within, changes), default=0), sum(map(len, changes))
    ours = Estimate(float(most), None, None, n, "changes in 10 s")
    return seen(most <= CHANGES_MAX, ours, f"{n} changes in all, each partition counted by itself")


def wavered(parts: Parts) -> Judged:
    """The most grants of one partition within ten seconds, whether or not anything was read by them.

    A leader names a replica that is back as soon as it is in sync. Until the client's metadata has heard of it, each
    grant is given up at once, and the next fetch brings another (as Kafka's client, ``KafkaConsumer`` 4.3.1).
    """
    granted = _events(parts["lease"], "replica_switched")
    ordered = sorted(granted, key=lambda event: (event["partition"], event["t_us"]))
    own = [np.array([event["t_us"] for event in some]) for _, some in groupby(ordered, _partition)]
    return reported(
        Estimate(float(max(map(_most_within, own), default=0)), None, None, len(granted), "grants in 10 s"),
        f"{len(granted)} grants in all; what is given up at once reads nothing",
    )


def _changed_us(records: Received) -> NDArray[np.int64]:
    """When a record came from another broker than the one before it."""
    return records.where(np.diff(records.broker_id, prepend=records.broker_id[:1]) != 0).done_us


def _partition(event: dict[str, Any]) -> int:
    return int(event["partition"])


def _most_within(times_us: NDArray[np.int64]) -> int:
    return int((np.searchsorted(times_us, times_us + WITHIN_US) - np.arange(len(times_us))).max(initial=0))


def _events(part: Part, event: str) -> list[dict[str, Any]]:
    return [line for line in part.events(event) if line.get("arm") == "closest"]


def _in(part: Part, fault: str, event: dict[str, Any]) -> bool:
    return any(row["start_us"] <= event["t_us"] < row["end_us"] for row in part.phases(fault))

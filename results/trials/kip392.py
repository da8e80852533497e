"""Claims of KIP-392 (reads from the closest replica), also while that replica lags or is dead, or the leader is dead.

All leaders are in rack a, all consumers in rack b.

**While all is well:** the bytes that cross racks, as each client counts them on its connections to each broker,
Metadata included. The unit is a slice of 10 s from when each partition had its three replicas; the first slice, in
which the leaders name the replicas, is left out. The KIP promises only less traffic between racks: how stale a follower
is, is reported.

**When the closest replica fails:** how long a lagging replica was kept counts from the start of its lag to each
partition's first record from another broker. A gap is the longest time without a delivery while a broker was dead.
Consumers that read from the leader have a gap too, which no choice of replica can avoid, so the gaps are compared with
theirs.

Promises of the KIP's text that Kafka did not ship are in the table as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from aftershock.results.report.svg import GREY, LINES, drawing, legend, plain, rendered
from aftershock.results.trials.claim import Claim, Judge, Parts, proven
from aftershock.results.trials.claim import kept as kept_of_claim
from aftershock.results.trials.part import Floats, Part, Slice, mean, quantile, read_rows, slices
from aftershock.results.trials.statement import Estimate, Judged, Plot, Role, above, below, reported, seen, unknown
from aftershock.results.trials.traffic import RECEIVED, by_broker

_COLUMNS = ("partition", "broker_id", "intended_us", "done_us")
_UNKNOWN_BROKER = -1


@dataclass(frozen=True)
class Received:
    """Records delivered to a consumer, in order of delivery."""

    partition: NDArray[np.int64]
    broker_id: NDArray[np.int64]
    intended_us: NDArray[np.int64]
    done_us: NDArray[np.int64]

    @property
    def latency_us(self) -> Floats:
        """Time from the intended send time to the delivery."""
        return (self.done_us - self.intended_us).astype(float)

    def meant_in(self, span: Slice) -> "Received":
        """Return the records intended in this time."""
        return self.where((self.intended_us >= span.start_us) & (self.intended_us < span.end_us))

    def where(self, which: NDArray[np.bool_]) -> "Received":
        """Return the records selected by a mask."""
        return Received(self.partition[which], self.broker_id[which], self.intended_us[which], self.done_us[which])


def received(part: Part, client: str) -> Received:
    """Return the records delivered to a consumer, ``workload/arm``."""
    workload, arm = client.split("/")
    condition = (pc.field("op") == "consume") & (pc.field("workload") == workload) & (pc.field("arm") == arm)
    rows = part.outcomes(_COLUMNS, condition).sort_by("done_us")
    return Received(*(pc.fill_null(rows[name], _UNKNOWN_BROKER).to_numpy().astype(np.int64) for name in _COLUMNS))


RACK = "b"
CROSSING_MAX = 0.1
ALL_CROSSING = 99.0
_HIGHEST = "c"


def spans(part: Part) -> tuple[Slice, ...]:
    """Return the slices from when each partition had its replicas to the end of the load, without the first."""
    (replicas,) = part.phases("replicas")
    end_us = max(row["end_us"] for row in read_rows(part.home / "phases.json"))
    return slices(replicas["end_us"], end_us)[1:]


def crossing(parts: Parts, name: str, arm: str) -> Judged:
    """Judge the share of bytes that came from other racks."""
    part = parts[name]
    judged = below(mean(list(100 - _from(part, arm, RACK)), "%"), CROSSING_MAX, no_effect=ALL_CROSSING)
    return Judged(judged.ours, judged.word, f"{judged.why}; {_from_each(part, arm)}")


def all_crossing(parts: Parts, name: str, arm: str) -> Judged:
    """Judge the same share for a consumer that should read from the leader in another rack."""
    part = parts[name]
    return _nearly_all(100 - _from(part, arm, RACK), part, arm)


def selected(parts: Parts, name: str) -> Judged:
    """Judge the share of bytes from the follower with the highest id, which the custom selector prefers."""
    part = parts[name]
    return _nearly_all(_from(part, "closest", _HIGHEST), part, "closest")


def _nearly_all(shares: Floats, part: Part, arm: str) -> Judged:
    judged = above(mean(list(shares), "%"), ALL_CROSSING)
    return Judged(judged.ours, judged.word, f"{judged.why}; {_from_each(part, arm)}")


def _from(part: Part, arm: str, rack: str) -> Floats:
    """Return the percentage of bytes that came from a rack's brokers, slice by slice."""
    result = bytes_by_broker(part, arm, spans(part))
    racks = {int(broker["id"]): broker["rack"] for broker in part.run.run["brokers"]}
    own: Floats = np.sum([result[broker] for broker, stands in racks.items() if stands == rack], axis=0)
    total: Floats = np.sum(list(result.values()), axis=0)
    return 100 * own[total > 0] / total[total > 0]


def bytes_by_broker(part: Part, arm: str, within: Sequence[Slice]) -> dict[int, Floats]:
    """Return the bytes that a consumer received from each broker."""
    return by_broker(part, RECEIVED, RACK, f"reads-{arm}-consume", within)


def _from_each(part: Part, arm: str) -> str:
    result = bytes_by_broker(part, arm, spans(part))
    return "from " + ", ".join(f"k{broker}: {values.sum():.0f} B" for broker, values in sorted(result.items()))


def staleness(parts: Parts, name: str) -> Judged:
    """Report the median from intended to delivered, closest minus leader, slice by slice."""
    part = parts[name]
    medians = [_medians_ms(part, arm) for arm in ("closest", "leader")]
    result = mean(list(medians[0] - medians[1]), "ms")
    return reported(result, f"medians {medians[0].mean():.1f} and {medians[1].mean():.1f} ms")


def _medians_ms(part: Part, arm: str) -> Floats:
    records = received(part, f"reads/{arm}")
    return np.array([quantile(records.meant_in(span).latency_us, 0.5) / 1e3 for span in spans(part)])


NEAR = 2
"""Broker in the consumers' rack."""
LEASE_S, NOTICED_S = 20, 5
GAP_MORE_S = 2.0
CHANGES_MAX, WITHIN_US = 2, 10_000_000


def kept(parts: Parts) -> Judged:
    """Judge how long after the start of the lag each partition was read elsewhere; the longest counts."""
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
    waits = ", ".join(f"{partition}: {seconds:.1f} s" for partition, seconds in left_s.items())
    # a lease granted just before the leader notices the lag lasts that much longer
    holds = None if longest is None else longest <= LEASE_S + NOTICED_S
    return seen(
        holds, Estimate(longest, None, None, len(left_s), "s"), f"read from another broker after, by partition: {waits}"
    )


def felt(parts: Parts) -> Judged:
    """Report the latency while the replica lagged, next to that of the leader's readers."""
    part = parts["lease"]
    (lag,) = part.phases("lag")
    span = Slice(lag["start_us"], lag["end_us"])
    slowest_s = [
        quantile(received(part, f"reads/{arm}").meant_in(span).latency_us, 0.99) / 1e6 for arm in ("closest", "leader")
    ]
    ours = Estimate(slowest_s[0], None, None, 1, "s")
    return reported(ours, f"p99 while the replica lagged; {slowest_s[1]:.2f} s for the leader's reader")


def survived(parts: Parts, fault: str) -> Judged:
    """Judge the longest time without a record: that of arm ``closest`` minus that of arm ``leader``."""
    part = parts["lease"]
    gaps_s = [_gap_s(part, f"reads/{arm}", f"fault/{fault}") for arm in ("closest", "leader")]
    if None in gaps_s:
        return seen(None, Estimate(None, None, None, 0, "s"), "nothing was read while the broker was dead")
    ours, theirs = (gap for gap in gaps_s if gap is not None)
    back = [event for event in _events(part, "replica_failed_back") if _in(part, fault, event)]
    why = f"gaps of {ours:.2f} and {theirs:.2f} s; {len(back)} partitions failed back to the leader during the fault"
    return seen(ours - theirs < GAP_MORE_S, Estimate(ours - theirs, None, None, 1, "s"), why)


def _gap_s(part: Part, client: str, window: str) -> float | None:
    for row in part.run.analysis["gaps"]:
        if (row["metric"], row["client"], row["window"]) == ("consume.gap", client, window) and row["n"]:
            return float(row["longest_us"]) / 1e6
    return None


def steady(parts: Parts) -> Judged:
    """Judge the highest number of broker changes of one partition within ten seconds."""
    records = received(parts["lease"], "reads/closest")
    changes = [_changed_us(records.where(records.partition == number)) for number in np.unique(records.partition)]
    most, n = max(map(_most_within, changes), default=0), sum(map(len, changes))
    ours = Estimate(float(most), None, None, n, "changes in 10 s")
    return seen(most <= CHANGES_MAX, ours, f"{n} changes in all; the highest count of a single partition is judged")


def wavered(parts: Parts) -> Judged:
    """Report the highest number of grants of one partition within ten seconds, used or not.

    A leader names a returning replica as soon as it is in sync. Until the client's metadata contains it, the client
    drops each grant immediately, and the next fetch brings another (as Kafka's client, ``KafkaConsumer`` 4.3.1).
    """
    granted = _events(parts["lease"], "replica_switched")
    ordered = sorted(granted, key=lambda event: (event["partition"], event["t_us"]))
    own = [np.array([event["t_us"] for event in some]) for _, some in groupby(ordered, _partition)]
    return reported(
        Estimate(float(max(map(_most_within, own), default=0)), None, None, len(granted), "grants in 10 s"),
        f"{len(granted)} grants in all; a grant that is dropped immediately reads nothing",
    )


def _changed_us(records: Received) -> NDArray[np.int64]:
    """Return the times at which a record came from another broker than the record before it."""
    return records.where(np.diff(records.broker_id, prepend=records.broker_id[:1]) != 0).done_us


def _partition(event: dict[str, Any]) -> int:
    return int(event["partition"])


def _most_within(times_us: NDArray[np.int64]) -> int:
    return int((np.searchsorted(times_us, times_us + WITHIN_US) - np.arange(len(times_us))).max(initial=0))


def _events(part: Part, event: str) -> list[dict[str, Any]]:
    return [line for line in part.events(event) if line.get("arm") == "closest"]


def _in(part: Part, fault: str, event: dict[str, Any]) -> bool:
    return any(row["start_us"] <= event["t_us"] < row["end_us"] for row in part.phases(fault))


_SET_UP = ("second", "third", "replicas")
_NOT_SHIPPED = {
    "hw-push": (
        "the leader pushes a new high watermark to its followers at once",
        "removed in Kafka 2.6 (KAFKA-9952): a follower learns it with its next fetch; see the staleness above",
    ),
    "replica-id": (
        "consumers that may read from a follower send replica id -2",
        "they send -1: the rack in the request, from version 11 on, marks them",
    ),
    "reset-at-follower": (
        "a reset to earliest is looked up at the follower",
        "ListOffsets goes to the leader; docs/KIPS.md has the four cases of an offset out of range",
    ),
}


def _in_near(name: str, claim: str, published: str, bound: str, judge: Judge, role: Role, part: str = "near") -> Claim:
    return Claim(name, claim, published, bound, role, (part,), proven(judge, part, *_SET_UP))


def _in_lease(name: str, claim: str, bound: str, judge: Judge, *faults: str, role: Role = "claim") -> Claim:
    return Claim(name, claim, "-", bound, role, ("lease",), proven(judge, "lease", *_SET_UP, *faults))


def _nothing_lost(parts: Parts) -> Judged:
    return kept_of_claim(parts["lease"], ["lost"])


def _not_shipped(parts: Parts, why: str) -> Judged:  # noqa: ARG001 - there is no evidence to read
    return reported(unknown(), why)


CLAIMS = (
    _in_near(
        "cross-rack",
        "share of fetched bytes that came from other racks",
        "0",
        "at most 0.1 %",
        partial(crossing, name="near", arm="closest"),
        "claim",
    ),
    _in_near(
        "off",
        "control: with the rule off all bytes cross racks",
        "-",
        "above 99 %",
        partial(all_crossing, name="near", arm="leader"),
        "control",
    ),
    _in_near(
        "rackless",
        "control: a client without a rack reads from the leader",
        "-",
        "above 99 %",
        partial(all_crossing, name="near", arm="rackless"),
        "control",
    ),
    _in_near(
        "selector-off",
        "control: brokers without a selector name no replica",
        "-",
        "above 99 %",
        partial(all_crossing, name="selector-off", arm="closest"),
        "control",
        "selector-off",
    ),
    _in_near(
        "own-selector",
        "a custom selector that names the highest follower: share of bytes from there",
        "promised",
        "above 99 %",
        partial(selected, name="selector-own"),
        "report",
        "selector-own",
    ),
    _in_near(
        "staleness",
        "delay of a record at a follower, at 100/s",
        "-",
        "",
        partial(staleness, name="near"),
        "report",
    ),
    _in_near(
        "staleness-slow",
        "delay of a record at a follower, at 1/s",
        "-",
        "",
        partial(staleness, name="trickle"),
        "report",
        "trickle",
    ),
    _in_lease("kept", "a replica that falls out of the ISR is kept until its lease ends", "≤ 25 s", kept, "lag"),
    _in_lease(
        "preferred-dies",
        "when the preferred replica dies, the consumer returns to the leader",
        "gap < 2 s above the leader's readers'",
        partial(survived, fault="preferred"),
        "preferred",
    ),
    _in_lease(
        "leader-dies",
        "when the leader dies, the consumer continues",
        "gap < 2 s above the leader's readers'",
        partial(survived, fault="leader"),
        "leader",
    ),
    _in_lease("nothing-lost", "no record is lost", "0 records", _nothing_lost, "lag", "preferred", "leader"),
    _in_lease(
        "no-oscillation", "the consumer does not oscillate", "at most 2 in 10 s", steady, "lag", "preferred", "leader"
    ),
    _in_lease("grants", "number of grants of a replica, used or not", "", wavered, role="report"),
    _in_lease("lag-felt", "latency of the reader of a lagging replica", "", felt, "lag", role="report"),
    *(
        Claim(
            f"text-{name}",
            f"promised, not shipped: {text}",
            "promised",
            "",
            "report",
            (),
            partial(_not_shipped, why=why),
        )
        for name, (text, why) in _NOT_SHIPPED.items()
    ),
)


_ARMS = {"near": ("closest", "leader", "rackless"), "lease": ("closest", "leader")}
_BIN_US = 2_000_000
_SIZE = (8.5, 2.9)
_READING = {
    "near": "All leaders are in rack a. The closest replica's reader fetches from its own rack, the others from a.",
    "lease": "Bands: the replica lags, it dies, the leader dies. Each time the reader moves to a working broker.",
}


def plots(parts: Parts) -> tuple[Plot, ...]:
    """Return a chart for each part that was run."""
    return tuple(_plot(parts[name], name) for name in _ARMS if name in parts)


def _plot(part: Part, name: str) -> Plot:
    rows = read_rows(part.home / "phases.json")
    bins = slices(min(row["start_us"] for row in rows), max(row["end_us"] for row in rows), _BIN_US)
    racks = {int(broker["id"]): broker["rack"] for broker in part.run.run["brokers"]}
    with drawing(*_SIZE) as figure:
        axes = figure.subplots(1, len(_ARMS[name]), sharey=True)
        for axis, arm in zip(axes, _ARMS[name], strict=True):
            result = bytes_by_broker(part, arm, bins)
            for number, (broker, values) in enumerate(result.items()):
                colour, dash = LINES[number]
                kilobytes_s = values / _BIN_US * 1e3
                label = f"from k{broker}, rack {racks[broker]}"
                times_s = np.array([part_slice.start_us for part_slice in bins]) / 1e6
                axis.plot(times_s, kilobytes_s, color=colour, linestyle=dash, linewidth=1.2, label=label)
            for row in rows:
                if row["name"] == "fault":
                    axis.axvspan(row["start_us"] / 1e6, row["end_us"] / 1e6, color=GREY, alpha=0.15, linewidth=0)
            plain(axis, f"{arm}, in rack {RACK}")
            axis.set_xlabel("s of the run")
        axes[0].set_ylabel("kB/s")
        legend(figure, axes[0], len(racks))
        svg = rendered(figure, f"kip392-{name}", f"KIP-392, {name}", _READING[name])
    return Plot("Where the bytes came from" if name == "near" else "When the replica fails", svg, _READING[name])

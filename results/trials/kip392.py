"""Claims of KIP-392 (reads from the closest replica), also while a replica lags or is dead, or the leader is dead.

In the trial of KIP-392 all partition leaders are in rack a and all consumers in rack b. Each client counts the bytes on
its connections to each broker, in slices of time of 10 s that begin when each partition has three replicas; the first
slice is left out, because leaders announce the new replicas during that slice.

In these claims, a gap is a consumer's longest time without a delivery while a broker was dead. A consumer that reads
from the leader also has a gap, which no choice of replica can avoid, so the gap of arm ``closest`` is compared with the
gap of arm ``leader``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from aftershock.results.report.svg import GREY, LINES, drawing, legend, plain, rendered
from aftershock.results.trials.claim import Parts, integrity, on_part, on_parts, register
from aftershock.results.trials.part import Floats, Part, Slice, mean, quantile, slices
from aftershock.results.trials.statement import Estimate, Measured, Plot, unknown

RACK = "b"
NEAR = 2
"""Id of the broker in the consumers' rack."""
LEASE_S, NOTICED_S = 20, 5
GAP_MORE_S = 2.0
CHANGES_MAX, WITHIN_US = 2, 10_000_000
_FAULTS = ("lag", "preferred", "leader")


@dataclass(frozen=True)
class Received:
    """Records delivered to a consumer, in order of delivery; ``broker_id`` is -1 if the broker is unknown."""

    partition: NDArray[np.int64]
    broker_id: NDArray[np.int64]
    intended_us: NDArray[np.int64]
    done_us: NDArray[np.int64]

    def quantile_us(self, q: float, span: Slice) -> float:
        """Return a quantile of the time from intended to delivered, for records whose intended time is in ``span``."""
        in_span = (self.intended_us >= span.start_us) & (self.intended_us < span.end_us)
        return quantile((self.done_us - self.intended_us)[in_span].astype(float), q)

    def where(self, mask: NDArray[np.bool_]) -> "Received":
        return Received(self.partition[mask], self.broker_id[mask], self.intended_us[mask], self.done_us[mask])


def received(part: Part, client: str) -> Received:
    """Return the records delivered to a consumer, named ``workload/arm``."""
    columns = ("partition", "broker_id", "intended_us", "done_us")
    rows = part.outcomes("consume", columns, client).sort_by("done_us")
    return Received(*(pc.fill_null(rows[name], -1).to_numpy().astype(np.int64) for name in columns))


def spans(part: Part) -> tuple[Slice, ...]:
    """Return the slices of time after each partition has all its replicas, without the first of these slices."""
    (replicas,) = part.phases("replicas")
    return slices(replicas["end_us"], max(row["end_us"] for row in part.windows()))[1:]


def bytes_by_broker(part: Part, arm: str, within: Sequence[Slice]) -> dict[int, Floats]:
    return part.bytes_by_broker("received", RACK, f"reads-{arm}-consume", within)


def _shares(part: Part, arm: str, rack: str) -> tuple[Floats, str]:
    """Return the percentage of a consumer's bytes that came from a rack, by slice, and the bytes by broker as text."""
    by_broker = bytes_by_broker(part, arm, spans(part))
    in_rack = [int(broker["id"]) for broker in part.run.run["brokers"] if broker["rack"] == rack]
    from_rack: Floats = np.sum([by_broker[broker] for broker in in_rack], axis=0)
    total: Floats = np.sum(list(by_broker.values()), axis=0)
    text = "from " + ", ".join(f"k{broker}: {values.sum():.0f} B" for broker, values in sorted(by_broker.items()))
    return 100 * from_rack[total > 0] / total[total > 0], text


def crossing(part: Part, arm: str) -> Measured:
    """Measure the percentage of a consumer's bytes that came from other racks."""
    shares, text = _shares(part, arm, RACK)
    return Measured(mean(list(100 - shares), "%"), text)


def selected(part: Part) -> Measured:
    """Judge the share of a consumer's bytes from the follower with the highest id, which a custom selector prefers."""
    shares, text = _shares(part, "closest", "c")
    return Measured(mean(list(shares), "%"), text)


def staleness(part: Part) -> Measured:
    """Report the median delay from intended to delivered in arm ``closest`` minus arm ``leader``, by slice."""
    medians: list[Floats] = []
    for arm in ("closest", "leader"):
        records = received(part, f"reads/{arm}")
        medians.append(np.array([records.quantile_us(0.5, span) / 1e3 for span in spans(part)]))
    closest, leader = medians
    figure = mean(list(closest - leader), "ms")
    return Measured(
        figure, f"median delays of {closest.mean():.1f} ms (arm closest) and {leader.mean():.1f} ms (arm leader)"
    )


def lease(part: Part) -> Measured:
    """Judge the longest time from the start of a replica's lag until a consumer read from another broker."""
    (lag,) = part.phases("lag")
    records = received(part, "reads/closest")
    later = records.where((records.done_us >= lag["start_us"]) & (records.broker_id != NEAR))
    waits_s = {
        partition: float(later.done_us[later.partition == partition].min() - lag["start_us"]) / 1e6
        for partition in sorted(set(later.partition.tolist()))
    }
    longest = max(waits_s.values(), default=None)
    waits = ", ".join(f"{partition}: {seconds:.1f} s" for partition, seconds in waits_s.items())
    # A lease granted just before the leader notices the lag lasts that much longer.
    late = None if longest is None else int(longest > LEASE_S + NOTICED_S)
    # All partitions share one lag, so the lag is the unit.
    return Measured(
        Estimate(longest, None, None, 1, "s"),
        f"time until the consumer read each partition from another broker: {waits or 'never'}",
        late,
    )


def lag_latency(part: Part) -> Measured:
    """Report the p99 delivery latency while a replica lagged, of arm ``closest`` and, to compare, arm ``leader``."""
    (lag,) = part.phases("lag")
    span = Slice(lag["start_us"], lag["end_us"])
    ours, theirs = (received(part, f"reads/{arm}").quantile_us(0.99, span) / 1e6 for arm in ("closest", "leader"))
    estimate = Estimate(ours, None, None, 1, "s")
    return Measured(
        estimate, f"p99 latency while the replica lagged; {theirs:.2f} s for the consumer that reads from the leader"
    )


def survived(part: Part, fault: str) -> Measured:
    """Judge the longest time without a record in arm ``closest`` minus the longest such time in arm ``leader``."""
    gaps_s = {}
    for row in part.run.analysis["gaps"]:
        if (row["metric"], row["window"]) == ("consume.gap", f"fault/{fault}") and row["n"]:
            gaps_s[row["client"]] = float(row["longest_us"]) / 1e6
    if not {"reads/closest", "reads/leader"} <= gaps_s.keys():
        return Measured(
            Estimate(None, None, None, 0, "s"), doubt="the consumers read no record while the broker was dead"
        )
    ours, theirs = gaps_s["reads/closest"], gaps_s["reads/leader"]
    windows = part.phases(fault)
    back = [
        event
        for event in _events(part, "replica_failed_back")
        if any(window["start_us"] <= event["t_us"] < window["end_us"] for window in windows)
    ]
    why = (
        f"longest times without a record: {ours:.2f} s (arm closest) and {theirs:.2f} s (arm leader); {len(back)} "
        "partitions failed back to the leader during the fault"
    )
    return Measured(Estimate(ours - theirs, None, None, 1, "s"), why, int(ours - theirs >= GAP_MORE_S))


def oscillation(part: Part) -> Measured:
    """Judge the highest number of times that a consumer changed the broker of one partition within ten seconds."""
    records = received(part, "reads/closest")
    changes = []
    for number in np.unique(records.partition):
        own = records.where(records.partition == number)
        changes.append(own.done_us[np.diff(own.broker_id, prepend=own.broker_id[:1]) != 0])
    most, n = max(map(_most_within, changes), default=0), sum(map(len, changes))
    ours = Estimate(float(most), None, None, len(_FAULTS), "changes in 10 s")
    why = f"the consumer changed the broker {n} times in all; the partition with the most changes in 10 s is judged"
    return Measured(ours, why, sum(_most_within(times_us) > CHANGES_MAX for times_us in changes))


def grants(part: Part) -> Measured:
    """Report the highest number of times in ten seconds that leaders named a preferred read replica of one partition.

    A leader names a returning replica as preferred read replica as soon as the replica is in sync. A client drops a
    preferred read replica that its metadata lacks, and the next fetch response names the replica again (as with Kafka's
    ``KafkaConsumer`` 4.3.1).
    """
    granted = _events(part, "replica_switched")
    ordered = sorted(granted, key=lambda event: (event["partition"], event["t_us"]))
    by_partition = groupby(ordered, key=lambda event: int(event["partition"]))
    most = max((_most_within(np.array([event["t_us"] for event in own])) for _, own in by_partition), default=0)
    ours = Estimate(float(most), None, None, len(granted), "grants in 10 s")
    why = f"leaders named a preferred read replica {len(granted)} times in all, which the client may have ignored"
    return Measured(ours, why)


def _most_within(times_us: NDArray[np.int64]) -> int:
    return int((np.searchsorted(times_us, times_us + WITHIN_US) - np.arange(len(times_us))).max(initial=0))


def _events(part: Part, event: str) -> list[dict[str, Any]]:
    return [line for line in part.events(event) if line.get("arm") == "closest"]


def not_shipped(_: Sequence[Part], why: str) -> Measured:
    return Measured(unknown(), why)


_SET_UP = ("second", "third", "replicas")
_LEASE_FAULTS = (*_SET_UP, *_FAULTS)
_PUSHED = "removed in Kafka 2.6 (KAFKA-9952): a follower learns the high watermark by its next fetch"
_REPLICA_ID = "consumers send replica id -1: the rack in a Fetch request of version 11 on permits reads from a follower"
_RESET = "clients send ListOffsets to the leader; docs/KIPS.md has the four cases of an offset out of range"
REGISTRATION = register(
    "kip392",
    {
        "cross-rack": on_part("near", crossing, "closest", faults=_SET_UP),
        "off": on_part("near", crossing, "leader", faults=_SET_UP),
        "rackless": on_part("near", crossing, "rackless", faults=_SET_UP),
        "selector-off": on_part("selector-off", crossing, "closest", faults=_SET_UP),
        "own-selector": on_part("selector-own", selected, faults=_SET_UP),
        "staleness": on_part("near", staleness, faults=_SET_UP),
        "staleness-slow": on_part("trickle", staleness, faults=_SET_UP),
        "kept": on_part("lease", lease, faults=(*_SET_UP, "lag")),
        "preferred-dies": on_part("lease", survived, "preferred", faults=(*_SET_UP, "preferred")),
        "leader-dies": on_part("lease", survived, "leader", faults=(*_SET_UP, "leader")),
        "nothing-lost": on_part("lease", integrity, ["lost"], _FAULTS, faults=_LEASE_FAULTS),
        "no-oscillation": on_part("lease", oscillation, faults=_LEASE_FAULTS),
        "grants": on_part("lease", grants, faults=_SET_UP),
        "lag-felt": on_part("lease", lag_latency, faults=(*_SET_UP, "lag")),
        "text-hw-push": on_parts((), not_shipped, _PUSHED),
        "text-replica-id": on_parts((), not_shipped, _REPLICA_ID),
        "text-reset-at-follower": on_parts((), not_shipped, _RESET),
    },
)


_ARMS = {"near": ("closest", "leader", "rackless"), "lease": ("closest", "leader")}
_READING = {
    "near": "Leaders are in rack a, consumers in rack b. Arm closest fetches from rack b, the other arms from rack a.",
    "lease": "Bands: the replica lags, the replica dies, the leader dies. Arm closest moves to a working broker.",
}


def plots(parts: Parts) -> tuple[Plot, ...]:
    return tuple(_plot(parts[name], name) for name in _ARMS if name in parts)


def _plot(part: Part, name: str) -> Plot:
    rows = part.windows()
    bin_us = 2_000_000
    bins = slices(min(row["start_us"] for row in rows), max(row["end_us"] for row in rows), bin_us)
    times_s = np.array([span.start_us for span in bins]) / 1e6
    racks = {int(broker["id"]): broker["rack"] for broker in part.run.run["brokers"]}
    with drawing(8.5, 2.9) as figure:
        axes = figure.subplots(1, len(_ARMS[name]), sharey=True)
        for axis, arm in zip(axes, _ARMS[name], strict=True):
            for number, (broker, values) in enumerate(bytes_by_broker(part, arm, bins).items()):
                colour, dash = LINES[number]
                label = f"from k{broker}, rack {racks[broker]}"
                axis.plot(times_s, values / bin_us * 1e3, color=colour, linestyle=dash, linewidth=1.2, label=label)
            for row in rows:
                if row["name"] == "fault":
                    axis.axvspan(row["start_us"] / 1e6, row["end_us"] / 1e6, color=GREY, alpha=0.15, linewidth=0)
            plain(axis, f"{arm}, in rack {RACK}")
            axis.set_xlabel("s of the run")
        axes[0].set_ylabel("kB/s")
        legend(figure, axes[0], len(racks))
        svg = rendered(figure, f"kip392-{name}", f"KIP-392, {name}", _READING[name])
    return Plot("Where the bytes came from" if name == "near" else "When the replica fails", svg, _READING[name])

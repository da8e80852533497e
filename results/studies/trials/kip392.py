"""Claims of KIP-392 (reads from the closest replica), also while a replica lags or is dead, or the leader is dead.

In the trial of KIP-392 all partition leaders are in rack a and all consumers in rack b. Each client counts the bytes on
its connections to each broker, in slices of time of 10 s that begin when each partition has three replicas; the first
slice is left out, because leaders announce the new replicas during that slice.

In these claims, a gap is a consumer's longest time without a delivery while a broker was dead. A consumer that reads
from the leader also has a gap, which no choice of replica can avoid, so the gap of arm ``closest`` is compared with the
gap of arm ``leader``. A lag or a death is a unit if arm ``closest`` read from the near replica when it began.

Plan ``392-lease`` starts a lag in the middle of a lease, and a lag lasts longer than the leader needs to notice it plus
a lease. A client that leaves a lagging replica at once is therefore as visible as one that stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow.compute as pc
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from aftershock.results.report.svg import GREY, LINES, drawing, legend, plain, rendered
from aftershock.results.studies.part import Floats, Part, Slice, mean, median, quantile, slices
from aftershock.results.studies.statement import Estimate, Measured, Plot, unknown
from aftershock.results.studies.trials.claim import Parts, integrity, on_part, on_parts, register

RACK = "b"
NEAR = 2
"""Id of the broker in the consumers' rack."""
LEASE_S, TOLERANCE_S = 10.0, 1.0
"""``metadata.max.age.ms`` in plan ``392-lease``, and twice the time of a fetch that finds nothing."""
GAP_MORE_S = 2.0
CHANGES_MAX, WITHIN_US = 2, 10_000_000
_FAULTS = ("lag", "preferred", "leader")
CLIENTS, SHORT_LEASE, BROKEN = "clients", "short-lease", "broken"
JAVA, LIBRDKAFKA = "java", "librdkafka"
Source: TypeAlias = Literal["client", "wire"]
"""Who tells the broker of a record: the reference consumer itself, or the wire proxy, which sees any client."""


@dataclass(frozen=True)
class Received:
    """Records delivered to a consumer, in order of delivery; ``broker_id`` is -1 if the broker is unknown."""

    partition: NDArray[np.int64]
    broker_id: NDArray[np.int64]
    intended_us: NDArray[np.int64]
    done_us: NDArray[np.int64]

    def delays_us(self, span: Slice) -> Floats:
        """Return the times from intended to delivered of the records whose intended time is in ``span``."""
        in_span = (self.intended_us >= span.start_us) & (self.intended_us < span.end_us)
        return (self.done_us - self.intended_us)[in_span].astype(float)

    def where(self, mask: NDArray[np.bool_]) -> "Received":
        return Received(self.partition[mask], self.broker_id[mask], self.intended_us[mask], self.done_us[mask])

    def is_near(self, at_us: int) -> bool:
        """Return True if the last record before ``at_us`` came from the broker in the consumer's rack."""
        before = self.broker_id[: np.searchsorted(self.done_us, at_us)]
        return bool(len(before)) and int(before[-1]) == NEAR

    def gap_s(self, span: Slice) -> float | None:
        """Return the longest time without a delivery in a span of time; None if it has no delivery."""
        times_us = self.done_us[(self.done_us >= span.start_us) & (self.done_us < span.end_us)]
        return float(np.diff([span.start_us, *times_us, span.end_us]).max()) / 1e6 if len(times_us) else None


def received(part: Part, client: str, source: Source = "client") -> Received:
    """Return the records delivered to a consumer, named ``workload/arm``."""
    columns = ("partition", "broker_id", "intended_us", "done_us")
    rows = part.outcomes("consume", columns, client).sort_by("done_us")
    found = Received(*(pc.fill_null(rows[name], -1).to_numpy().astype(np.int64) for name in columns))
    if source == "client":
        return found
    brokers = np.full_like(found.broker_id, -1)
    by_partition: dict[int, list[tuple[int, int]]] = {}
    for event in part.events("wire_served"):
        if event["worker"] == f"{client.replace('/', '-')}-consume":
            by_partition.setdefault(event["partition"], []).append((event["t_us"], event["node_id"]))
    for partition, served in by_partition.items():
        times_us, nodes = np.array(sorted(served)).T
        own = found.partition == partition
        places = np.searchsorted(times_us, found.done_us[own], side="right") - 1
        brokers[own] = np.where(places >= 0, nodes[places], -1)
    return Received(found.partition, brokers, found.intended_us, found.done_us)


def spans(part: Part) -> tuple[Slice, ...]:
    """Return the slices of time after each partition has all its replicas, without the first of these slices."""
    (replicas,) = part.phases("replicas")
    return slices(replicas["end_us"], max(row["end_us"] for row in part.windows()))[1:]


def bytes_by_broker(part: Part, arm: str, within: Sequence[Slice], source: Source = "client") -> dict[int, Floats]:
    return part.bytes_by_broker("received", RACK, f"reads-{arm}-consume", within, source)


def _shares(part: Part, arm: str, rack: str, source: Source = "client") -> tuple[Floats, str]:
    """Return the percentage of a consumer's bytes that came from a rack, by slice, and the bytes by broker as text."""
    by_broker = bytes_by_broker(part, arm, spans(part), source)
    in_rack = [int(broker["id"]) for broker in part.run.run["brokers"] if broker["rack"] == rack]
    from_rack: Floats = np.sum([by_broker[broker] for broker in in_rack], axis=0)
    total: Floats = np.sum(list(by_broker.values()), axis=0)
    text = "from " + ", ".join(f"k{broker}: {values.sum():.0f} B" for broker, values in sorted(by_broker.items()))
    return 100 * from_rack[total > 0] / total[total > 0], text


def crossing(part: Part, arm: str, source: Source = "client") -> Measured:
    """Measure the percentage of a consumer's bytes that came from other racks."""
    shares, text = _shares(part, arm, RACK, source)
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
        medians.append(np.array([median(records.delays_us(span)) / 1e3 for span in spans(part)]))
    closest, leader = medians
    figure = mean(list(closest - leader), "ms")
    return Measured(
        figure, f"median delays of {closest.mean():.1f} ms (arm closest) and {leader.mean():.1f} ms (arm leader)"
    )


def lease(part: Part, arm: str = "closest", source: Source = "client") -> Measured:
    """Judge how long a consumer kept each partition's lagging replica after the leader had named it, by lag.

    A violation is a lag in which the consumer read a partition from another broker more than TOLERANCE_S before or
    after the end of the lease, or never although the lag lasted longer than the lease.
    """
    records, granted = received(part, f"reads/{arm}", source), _grants(part, arm, source)
    worst_s, texts = list[float](), list[str]()
    for lag in part.proven("lag"):
        errors_s: dict[int, float] = {}
        for partition in sorted({*records.partition.tolist()}):
            own = records.where(records.partition == partition)
            elsewhere_us = own.done_us[(own.done_us >= lag["start_us"]) & (own.broker_id != NEAR)]
            left_us = min([lag["end_us"], *elsewhere_us[:1].tolist()])
            grants_us = [
                at_us for at_us, place, node in granted if (place, node) == (partition, NEAR) and at_us <= left_us
            ]
            if not grants_us or not own.is_near(lag["start_us"]):
                continue
            error_s = (left_us - max(grants_us)) / 1e6 - LEASE_S
            # Who has not left may still do so in time, unless the lease ended before the lag did.
            if left_us < lag["end_us"] or error_s > TOLERANCE_S:
                errors_s[partition] = error_s
        if errors_s:
            worst_s.append(max(errors_s.values(), key=abs))
            texts.append(" ".join(f"{error_s:+.2f}" for error_s in errors_s.values()))
    worst = max(worst_s, key=abs, default=None)
    why = (
        f"seconds from the end of the lease until the consumer left, by lag and partition: {', '.join(texts) or 'none'}"
    )
    violations = sum(abs(error_s) > TOLERANCE_S for error_s in worst_s)
    return Measured(Estimate(worst, None, None, len(worst_s), "s at worst"), why, violations)


def lag_latency(part: Part) -> Measured:
    """Report the p99 delivery latency while a replica lagged, of arm ``closest`` and, to compare, arm ``leader``."""
    lags = [Slice(lag["start_us"], lag["end_us"]) for lag in part.proven("lag")]
    ours, theirs = (
        mean([quantile(records.delays_us(span), 0.99) / 1e6 for span in lags], "s")
        for records in (received(part, "reads/closest"), received(part, "reads/leader"))
    )
    return Measured(ours, f"{theirs.value or 0:.2f} s for the consumer that reads from the leader, by lag")


def survived(part: Part, fault: str, near: str = "closest", far: str = "leader", source: Source = "client") -> Measured:
    """Judge the longest time without a record in arm ``near`` minus the longest such time in arm ``far``."""
    closest, leader = (received(part, f"reads/{arm}", source) for arm in (near, far))
    failed_back = _events(part, "replica_failed_back", near)
    gaps_s, back = list[tuple[float, float]](), 0
    for death in part.proven(fault):
        span = Slice(death["start_us"], death["end_us"])
        if (theirs_s := leader.gap_s(span)) is None or not closest.is_near(span.start_us):
            continue
        gaps_s.append((closest.gap_s(span) or (span.end_us - span.start_us) / 1e6, theirs_s))
        back += sum(span.start_us <= event["t_us"] < span.end_us for event in failed_back)
    more_s = [ours_s - theirs_s for ours_s, theirs_s in gaps_s]
    texts = ", ".join(f"{ours_s:.2f} and {theirs_s:.2f}" for ours_s, theirs_s in gaps_s) or "none"
    why = f"longest seconds without a record by death (arms {near} and {far}): {texts}"
    why += f"; {back} returns to the leader" if source == "client" else ""
    violations = sum(seconds >= GAP_MORE_S for seconds in more_s)
    return Measured(Estimate(max(more_s, default=None), None, None, len(more_s), "s at worst"), why, violations)


def oscillation(parts: Sequence[Part], arm: str = "closest", source: Source = "client") -> Measured:
    """Judge the highest number of times that a consumer changed the broker of one partition within ten seconds.

    A lag or a death lasts until the next fault, or until the end of the load.
    """
    most, total = list[int](), 0
    for part in parts:
        records = received(part, f"reads/{arm}", source)
        changes = []
        for number in np.unique(records.partition):
            own = records.where(records.partition == number)
            changes.append(own.done_us[np.diff(own.broker_id, prepend=own.broker_id[:1]) != 0])
        ends_us = sorted(row["start_us"] for fault in _FAULTS for row in part.phases(fault))
        ends_us.append(max(row["end_us"] for row in part.windows()))
        for row in (row for fault in _FAULTS for row in part.proven(fault)):
            end_us = next(at_us for at_us in ends_us if at_us > row["start_us"])
            during = [times_us[(times_us >= row["start_us"]) & (times_us < end_us)] for times_us in changes]
            most.append(max(map(_most_within, during), default=0))
            total += sum(map(len, during))
    ours = Estimate(max(most, default=None), None, None, len(most), "changes in 10 s")
    why = f"the consumer changed the broker {total} times in all; the partition with the most changes in 10 s is judged"
    return Measured(ours, why, sum(count > CHANGES_MAX for count in most))


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


def _events(part: Part, event: str, arm: str = "closest") -> list[dict[str, Any]]:
    return [line for line in part.events(event) if line.get("arm") == arm]


def _grants(part: Part, arm: str, source: Source) -> list[tuple[int, int, int]]:
    """Return when leaders named which replica of which partition to a consumer."""
    if source == "client":
        granted = _events(part, "replica_switched", arm)
        return [(event["t_us"], event["partition"], event["node_id"]) for event in granted]
    worker = f"reads-{arm}-consume"
    named = [event for event in part.events("wire_replica_named") if event["worker"] == worker]
    return [(event["t_us"], event["partition"], event["replica"]) for event in named]


def not_shipped(_: Sequence[Part], why: str) -> Measured:
    return Measured(unknown(), why)


_SET_UP = ("second", "third", "replicas")
_FAILING = ("lease", "deaths")
_PUSHED = "removed in Kafka 2.6 (KAFKA-9952): a follower learns the high watermark by its next fetch"
_REPLICA_ID = "consumers send replica id -1: the rack in a Fetch request of version 11 on permits reads from a follower"
_RESET = "clients send ListOffsets to the leader; docs/kips/kip392.md has the four cases of an offset out of range"
REGISTRATION = register(
    "kip392",
    {
        "cross-rack": on_part("near", crossing, "closest", faults=_SET_UP),
        "cross-rack-production": on_part("production", crossing, "closest", faults=_SET_UP),
        "off": on_part("near", crossing, "leader", faults=_SET_UP),
        "rackless": on_part("near", crossing, "rackless", faults=_SET_UP),
        "selector-off": on_part("selector-off", crossing, "closest", faults=_SET_UP),
        "own-selector": on_part("selector-own", selected, faults=_SET_UP),
        "cross-rack-java": on_part(CLIENTS, crossing, JAVA, "wire", faults=_SET_UP),
        "cross-rack-librdkafka": on_part(CLIENTS, crossing, LIBRDKAFKA, "wire", faults=_SET_UP),
        "rackless-java": on_part(CLIENTS, crossing, f"{JAVA}-rackless", "wire", faults=_SET_UP),
        "rackless-librdkafka": on_part(CLIENTS, crossing, f"{LIBRDKAFKA}-rackless", "wire", faults=_SET_UP),
        "staleness": on_part("near", staleness, faults=_SET_UP),
        "staleness-slow": on_part("trickle", staleness, faults=_SET_UP),
        "kept": on_part("lease", lease, faults=_SET_UP),
        "preferred-dies": on_part("deaths", survived, "preferred", faults=_SET_UP),
        "leader-dies": on_part("deaths", survived, "leader", faults=_SET_UP),
        "kept-java": on_part("lease", lease, JAVA, "wire", faults=_SET_UP),
        "kept-librdkafka": on_part("lease", lease, LIBRDKAFKA, "wire", faults=_SET_UP),
        **{
            f"{fault}-dies-{client}": on_part(
                "deaths", survived, fault, client, f"{client}-rackless", "wire", faults=_SET_UP
            )
            for fault in ("preferred", "leader")
            for client in (JAVA, LIBRDKAFKA)
        },
        "no-oscillation-java": on_parts(_FAILING, oscillation, JAVA, "wire", faults=_SET_UP),
        "no-oscillation-librdkafka": on_parts(_FAILING, oscillation, LIBRDKAFKA, "wire", faults=_SET_UP),
        "left-early": on_part(SHORT_LEASE, lease, faults=_SET_UP),
        "left-early-wire": on_part(SHORT_LEASE, lease, JAVA, "wire", faults=_SET_UP),
        "oscillating": on_parts((SHORT_LEASE,), oscillation, faults=_SET_UP),
        "oscillating-wire": on_parts((SHORT_LEASE,), oscillation, JAVA, "wire", faults=_SET_UP),
        **{f"still-{fault}": on_part(BROKEN, survived, fault, faults=_SET_UP) for fault in ("preferred", "leader")},
        **{
            f"still-{fault}-wire": on_part(BROKEN, survived, fault, JAVA, f"{JAVA}-rackless", "wire", faults=_SET_UP)
            for fault in ("preferred", "leader")
        },
        "lost-records": on_parts((BROKEN,), integrity, ["lost"], _FAULTS, faults=_SET_UP),
        "nothing-lost": on_parts(_FAILING, integrity, ["lost"], _FAULTS, faults=_SET_UP),
        "no-oscillation": on_parts(_FAILING, oscillation, faults=_SET_UP),
        "grants": on_part("lease", grants, faults=_SET_UP),
        "lag-felt": on_part("lease", lag_latency, faults=_SET_UP),
        "text-hw-push": on_parts((), not_shipped, _PUSHED),
        "text-replica-id": on_parts((), not_shipped, _REPLICA_ID),
        "text-reset-at-follower": on_parts((), not_shipped, _RESET),
    },
)


_ROWS = (
    ("near", "closest"),
    ("production", "closest"),
    ("near", "leader"),
    ("near", "rackless"),
    ("selector-off", "closest"),
    ("selector-own", "closest"),
)
_STALENESS = {"near": "100 records/s", "trickle": "1 record/s"}


def plots(parts: Parts) -> tuple[Plot, ...]:
    """Return the traffic between racks with the staleness of a follower, and a lagging replica; none without runs."""
    traffic = [_traffic(parts)] if "near" in parts else []
    return (*traffic, *([_lagging(parts["lease"])] if "lease" in parts else []))


def _traffic(parts: Parts) -> Plot:
    title = "Traffic between racks, and staleness of the closest replica"
    rows = [(name, arm) for name, arm in _ROWS if name in parts]
    panels = [name for name in _STALENESS if name in parts]
    texts = []
    with drawing(5.2, 1.2 + 0.32 * len(rows) + 1.6 * len(panels)) as figure:
        heights = [0.32 * len(rows) + 0.5, *[1.6] * len(panels)]
        matrix, *delays = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        for row, (name, arm) in enumerate(rows):
            by_broker = bytes_by_broker(parts[name], arm, spans(parts[name]))
            total = sum(float(values.sum()) for values in by_broker.values())
            for column, broker in enumerate(parts[name].run.run["brokers"]):
                share = float(by_broker[int(broker["id"])].sum()) / total if total else 0.0
                matrix.add_patch(Rectangle((column, row), 1, 1, color=LINES[0][0], alpha=0.35 * share, linewidth=0))
                matrix.text(column + 0.5, row + 0.5, f"{share:.0%}", ha="center", va="center")
        racks = [f"rack {broker['rack']}" for broker in parts["near"].run.run["brokers"]]
        matrix.set_xticks(np.arange(len(racks)) + 0.5, racks)
        matrix.set_yticks(
            np.arange(len(rows)) + 0.5, [arm if name == "near" else f"{arm}, {name}" for name, arm in rows]
        )
        matrix.set_xlim(0, len(racks))
        matrix.set_ylim(len(rows), 0)
        plain(matrix, f"bytes fetched in rack {RACK}, by rack of the broker")
        matrix.grid(visible=False)
        for axis, name in zip(delays, panels, strict=True):
            for arm, (colour, dash) in zip(("closest", "leader"), LINES, strict=False):
                records = received(parts[name], f"reads/{arm}")
                since_us = spans(parts[name])[0].start_us
                took_ms = np.sort(((records.done_us - records.intended_us) / 1e3)[records.intended_us >= since_us])
                shares = np.linspace(0, 100, len(took_ms) + 1)[1:]
                axis.plot(took_ms, shares, color=colour, linestyle=dash, linewidth=1.5, label=f"arm {arm}")
                if len(took_ms):
                    texts.append(f"{arm} at {_STALENESS[name]}: median {median(took_ms):.1f} ms")
            axis.set_xscale("log")
            axis.set_ylim(0, 101)
            axis.xaxis.set_major_formatter("{x:,.10g}")
            plain(axis, f"% of records delivered, at {_STALENESS[name]}")
        delays[-1].set_xlabel("ms from the intended send time")
        legend(figure, delays[0], 2)
        svg = rendered(figure, "kip392-traffic", title, "; ".join(texts))
    reading = (
        "All leaders are in rack a. Above: only arm closest stays in its rack; the other rows are controls, and the "
        "selector of selector-own names rack c. Below: how much later a follower delivers, because it must learn first "
        "what is committed. "
    )
    return Plot(title, svg, f"{reading}{'; '.join(texts)}.")


def _lagging(part: Part) -> Plot:
    rows = part.windows()
    bin_us = 2_000_000
    bins = slices(min(row["start_us"] for row in rows), max(row["end_us"] for row in rows), bin_us)
    times_s = np.array([span.start_us for span in bins]) / 1e6
    racks = {int(broker["id"]): broker["rack"] for broker in part.run.run["brokers"]}
    reading = "Bands: the replica lags. Arm closest stays until its lease ends, and then reads from the leader."
    with drawing(5.2, 4.2) as figure:
        axes = figure.subplots(2, 1, sharex=True)
        for axis, arm in zip(axes, ("closest", "leader"), strict=True):
            for number, (broker, values) in enumerate(bytes_by_broker(part, arm, bins).items()):
                colour, dash = LINES[number]
                label = f"from k{broker}, rack {racks[broker]}"
                axis.plot(times_s, values / bin_us * 1e3, color=colour, linestyle=dash, linewidth=1.2, label=label)
            for row in rows:
                if row["name"] == "fault":
                    axis.axvspan(row["start_us"] / 1e6, row["end_us"] / 1e6, color=GREY, alpha=0.15, linewidth=0)
            plain(axis, f"kB/s of arm {arm}, in rack {RACK}")
        axes[-1].set_xlabel("s of the run")
        legend(figure, axes[0], len(racks))
        svg = rendered(figure, "kip392-lease", "KIP-392, a lagging replica", reading)
    return Plot("When the replica lags", svg, reading)

"""Claims of KIP-794 (strictly uniform sticky partitioner, adaptive choice) and of KIP-1123 (choice in the rack).

KIP-794 measured 1 MB/s with one slow broker of three, where the old sticky partitioner reaches 0.84 MB/s with a p99 of
10 992 ms; uniform, adaptive and availability have a p99 of 214, 154 and 150 ms. With the sticky partitioner of
KIP-794's example, 46.8 of 65 MB went to the slow broker; with uniform, adaptive and availability 22.2, 19.2 and 17.4 of
66 MB. At 2 MB/s the uniform partitioner saturates (1.85 MB/s, p99 2408 ms) and the adaptive partitioner does not (p99
167 ms; 14.9 MB of 65.7 to the slow broker).

In series 1, producers send at a rate that the cluster can sustain if no queue grows without limit; in series 2, faster.
A record that found no room in the producer's buffer within ``max.block.ms`` failed before a partition was chosen.

Shares of equal brokers count as even if they differ by at most 10 points, because the partitioner chooses a partition
once per nine records or so, and measuring a third to within 1.5 points would take some 2,700 choices, eight minutes at
this rate. A record's key depends only on the record's number, so the same record can be compared across arms.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from aftershock.results.evidence.files import read_lines
from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.trials.claim import Measure, Parts, on_part, register
from aftershock.results.trials.kip794_placement import (
    NOWHERE,
    PARTITIONS,
    SLOW,
    THIRD,
    Placed,
    fair,
    farthest,
    placed,
    settled,
    shares,
    spans,
    whole,
)
from aftershock.results.trials.part import (
    SLICE_US,
    Floats,
    Part,
    Slice,
    bootstrap,
    mean,
    quantile,
    ratio,
    slices,
    slope,
)
from aftershock.results.trials.statement import Estimate, Measured, Plot

PART, RACK = "slow", "rack"
SERIES1, SERIES2, EQUAL = "series1", "series2", "equal"
ARMS = ("sticky", "uniform", "adaptive", "availability")
HALF = 50
P99 = 0.99


def of(part: Part, arm: str) -> Placed:
    return placed(part, f"orders/{arm}")


def _slow_shares(part: Part, arm: str, fault: str) -> list[float]:
    """Return the percentage of an arm's bytes that went to the slow broker, by slice of time."""
    return shares(of(part, arm), settled(part, fault), SLOW)


def runaway(part: Part) -> Measured:
    """Judge the share of the old sticky partitioner's bytes that went to the slow broker."""
    return Measured(mean(_slow_shares(part, "sticky", SERIES1), "%"))


def rising(part: Part) -> Measured:
    """Judge that the median latency of records sent to the slow broker grows from slice to slice."""
    medians_ms = [
        quantile(records.latency_us[records.partition == SLOW], 0.5) / 1e3
        for records in map(of(part, "sticky").within, spans(part, SERIES1))
    ]
    return Measured(slope(medians_ms, "ms a slice"))


def after_heal(part: Part) -> Measured:
    """Judge the slow broker's share of the bytes acknowledged in the slice of time after the fault was healed."""
    records = of(part, "sticky")
    (window,) = part.phases(SERIES1)
    after = Slice(window["end_us"], window["end_us"] + SLICE_US)
    share = records.done_within(after).share(SLOW)
    sent = records.within(after).share(SLOW)
    why = (
        "share of the bytes acknowledged in the 10 s after the heal, including the backlog; of the bytes sent in that "
        f"time the broker got {sent:.1f} %"
    )
    return Measured(Estimate(share, None, None, 1, "%"), why, int(not share > HALF))


def even(part: Part) -> Measured:
    """Measure how far brokers' shares of bytes are from a third in arm ``uniform``."""
    records, slices = of(part, "uniform"), settled(part, SERIES1)
    return Measured(_deviation(farthest(records, slices, 0.95)), turns(records.within(whole(slices))))


def _deviation(share: Estimate) -> Estimate:
    if share.value is None or share.low is None or share.high is None:
        return share
    ends = [share.low - THIRD, share.high - THIRD]
    low = 0.0 if ends[0] < 0 < ends[1] else min(map(abs, ends))
    return Estimate(abs(share.value - THIRD), low, max(map(abs, ends)), share.n, "points", share.confidence)


def turns(records: Placed) -> str:
    """Describe how often a partitioner chose the slow broker, and for how many consecutive records."""
    where, lengths = records.turns()
    slow = where == SLOW
    if not slow.any() or slow.all():
        return f"a broker was chosen {len(where)} times"
    slow_percent, slow_records, other_records = 100 * slow.mean(), lengths[slow].mean(), lengths[~slow].mean()
    return (
        f"of {len(where)} choices of a broker, {slow_percent:.1f} % were the slow broker; a choice lasted for "
        f"{slow_records:.1f} records on the slow broker and {other_records:.1f} on the other brokers"
    )


def ordered(part: Part, fault: str) -> Measured:
    """Judge the slow broker's share of bytes minus the mean share of the other brokers, for arm ``adaptive``.

    The baseline (no effect) is the same difference of shares in arm ``uniform``, which does not avoid slow brokers.
    """
    adaptive, uniform = (
        mean([share - (100 - share) / 2 for share in _slow_shares(part, arm, fault)], "points")
        for arm in ("adaptive", "uniform")
    )
    lengths = turns(of(part, "adaptive").within(whole(settled(part, fault))))
    return Measured(
        adaptive, f"{lengths}; in arm `uniform` the difference of the shares is {uniform.value or 0:+.1f} points"
    )


def less_than(part: Part, ours: str, theirs: str, fault: str) -> Measured:
    """Judge the slow broker's share of bytes in arm ``ours`` minus its share in arm ``theirs``."""
    pairs = zip(*(_slow_shares(part, arm, fault) for arm in (ours, theirs)), strict=True)
    difference = mean([left - right for left, right in pairs], "points")
    count = part.counters(f"orders/{ours}", "produce").get("partitions_left_out", 0)
    return Measured(difference, f"the partitioner left out late brokers {count} times in the run" if count else "")


def p99_ratio(part: Part, ours: str) -> Measured:
    def figure(clients: Sequence[Floats]) -> float | None:
        our_p99, sticky_p99 = (quantile(latencies, P99) for latencies in clients)
        return our_p99 / sticky_p99 if np.isfinite(our_p99) and np.isfinite(sticky_p99) else None

    groups = [_latencies(part, arm, SERIES1) for arm in (ours, "sticky")]
    estimate = bootstrap(groups, figure, "times", part.run.run_id)
    our_ms, sticky_ms = (quantile(np.concatenate(group), P99) / 1e3 for group in groups)
    return Measured(estimate, f"p99 is {our_ms:.0f} ms with {ours} and {sticky_ms:.0f} ms with sticky")


def p99(part: Part, fault: str, arm: str) -> Measured:
    """Report the p99 latency of an arm and the share of the arm's bytes that each broker got."""

    def figure_ms(clients: Sequence[Floats]) -> float | None:
        p99_us = quantile(clients[0], P99)
        return p99_us / 1e3 if np.isfinite(p99_us) else None

    estimate = bootstrap([_latencies(part, arm, fault)], figure_ms, "ms", part.run.run_id)
    records, slices = of(part, arm), settled(part, fault)
    split = " / ".join(f"{mean(shares(records, slices, partition), '%').value or 0:.1f}" for partition in PARTITIONS)
    return Measured(estimate, f"the three brokers got {split} % of the bytes; the slow broker is named first")


def _latencies(part: Part, arm: str, fault: str) -> list[Floats]:
    records = of(part, arm)
    return [records.within(span).latency_us for span in spans(part, fault)]


def exhausted(part: Part, arm: str, *, expected: bool) -> Measured:
    """Judge whether an arm's producer ran out of buffer memory at the higher rate of series 2, as ``expected``."""
    # Percentage of records that failed because the buffer was full, slice by slice.
    refused = [
        100 * float((~records.ok & (records.partition == NOWHERE)).mean())
        for records in map(of(part, arm).within, spans(part, SERIES2))
    ]
    if not refused:
        return Measured(Estimate(None, None, None, 0, "%"), "the fault lasted less than 10 s, too short to measure")
    ours = Estimate(refused[-1], None, None, len(refused), "%")
    first = next((number for number, share in enumerate(refused, 1) if share), None)
    when = "in no interval of 10 s" if first is None else f"since interval {first} of {len(refused)} (10 s each)"
    why = f"records were refused {when} because the buffer was full; {refused[-1]:.1f} % in the last interval"
    return Measured(ours, why, int((first is not None) is not expected))


def equal_bytes(part: Part, arm: str) -> Measured:
    """Judge that each of three equal brokers gets a third of an arm's bytes, by the share farthest from a third."""
    return Measured(farthest(of(part, arm), settled(part, EQUAL), 0.9))


def unstable_bytes(part: Part) -> Measured:
    """Report the share of bytes farthest from a third for the old partitioner, which may overload any broker."""
    why = "the share farthest from a third; sticky chooses brokers equally often, but sends slow ones larger batches"
    return Measured(farthest(of(part, "sticky"), settled(part, EQUAL), 0.9), why)


def draws(part: Part, arm: str, fault: str) -> Measured:
    """Judge that the partitioner of an arm chooses all partitions equally often."""
    return fair(of(part, arm), settled(part, fault))


def batches(part: Part) -> Measured:
    """Judge bytes on the wire per record (headers differ) of partitioner ``uniform`` relative to ``sticky``."""
    slices, per_record = settled(part, EQUAL), list[Floats]()
    for arm in ("uniform", "sticky"):
        sent = part.bytes_by_broker("sent", "a", f"orders-{arm}-produce", slices)
        records = of(part, arm)
        counts = np.array([max(1.0, len(records.within(span).seq)) for span in slices])
        per_record.append(np.sum(list(sent.values()), axis=0) / counts)
    uniform, sticky = per_record
    return Measured(
        ratio(uniform, sticky), f"{uniform.mean():.0f} bytes per record with uniform, {sticky.mean():.0f} with sticky"
    )


def keyed(part: Part) -> Measured:
    """Judge that a record has the same partition in all arms, ignoring records that failed without a partition."""
    places = []
    for arm in (*ARMS, "librdkafka"):
        records = placed(part, f"keyed/{arm}")
        seq, partitions = records.seq[records.ok].tolist(), records.partition[records.ok].tolist()
        places.append(dict(zip(seq, partitions, strict=True)))
    common = sorted(set.intersection(*map(set, places)))
    unlike = sum(len({place[seq] for place in places}) > 1 for seq in common)
    ours = Estimate(unlike, None, None, len(common), "records")
    why = f"{unlike} of {len(common)} records are not in the same partition in all {len(places)} arms"
    return Measured(ours, why, unlike)


def near(part: Part) -> Measured:
    """Judge that a producer writes only to the broker in its rack, before the broker's kill and after its return."""
    topic = next(topic for topic in part.run.run["topics"] if topic["name"] == "orders")
    # The partition whose preferred leader is the rack's broker.
    home = next(int(number) for number, replicas in topic["assignment"].items() if replicas[0] == 1)
    rows = part.windows()
    steady = next(row for row in rows if row["name"] == "steady")
    # The window of the election is ``timing.fault`` long; the load ends with the last window.
    (elected,) = part.phases("home")
    led = [Slice(steady["start_us"], steady["end_us"]), Slice(elected["end_us"], max(row["end_us"] for row in rows))]
    records = [of(part, "near").within(span) for span in led]
    outside = sum(int((of_span.partition[of_span.ok] != home).sum()) for of_span in records)
    total = sum(int(of_span.ok.sum()) for of_span in records)
    ours = Estimate(100 * outside / total if total else None, None, None, len(led), "% of records outside the rack")
    # The producer without the setting proves that records could leave the rack.
    anywhere = [100 - of(part, "anywhere").within(span).share(home) for span in led]
    low, high = min(anywhere), max(anywhere)
    why = (
        f"{outside} of {total} records left the rack while its broker led; without the setting {low:.0f} to "
        f"{high:.0f} % of the bytes left the rack"
    )
    return Measured(ours, why, outside if total else None)


def away(part: Part) -> Measured:
    """Judge that a producer writes to other racks while its rack's broker is dead, from 5 s after the kill."""
    (gone,) = part.phases("gone")
    lines = read_lines(part.home / "journal.jsonl")
    healing_us = next(int(line["t_us"]) for line in lines if (line["fault"], line["state"]) == ("gone", "healing"))
    records = of(part, "near").within(Slice(gone["start_us"] + 5_000_000, healing_us))
    failed = int((~records.ok).sum())
    elsewhere = len(set(records.partition[records.ok].tolist()))
    acknowledged = 100 * float(records.ok.mean()) if len(records.ok) else None
    ours = Estimate(acknowledged, None, None, 1, "% of records acknowledged")
    why = f"{failed} of {len(records.ok)} records failed; the acknowledged records went to {elsewhere} partitions"
    return Measured(ours, why, int(bool(failed) or elsewhere < 2) if len(records.ok) else None)  # noqa: PLR2004


def plots(parts: Parts) -> tuple[Plot, ...]:
    part = parts.get(PART)
    return () if part is None else tuple(_plot(part, fault) for fault in (SERIES1, SERIES2))


def _plot(part: Part, name: str) -> Plot:
    (window,) = part.phases(name)
    start_us, end_us = window["start_us"], window["end_us"]
    bins = slices(start_us - 5_000_000, end_us + 12_000_000, 5_000_000)
    middles_s = [(span.start_us + span.end_us) / 2e6 for span in bins]
    records_by_arm = {arm: of(part, arm) for arm in ARMS}
    slow_shares = ", ".join(
        f"{arm} {records.within(Slice(start_us, end_us)).share(SLOW):.0f} %" for arm, records in records_by_arm.items()
    )
    sentence = (
        f"While the broker was slow (the band) it got this share of the bytes, by partitioner: {slow_shares}. The "
        "dotted line is a third. A line ends where its p99 is a failed record."
    )
    with drawing(8.5, 3.2) as figure:
        left, right = figure.subplots(1, 2)
        for (arm, records), (colour, dash) in zip(records_by_arm.items(), LINES, strict=False):
            in_bins = [records.within(span) for span in bins]
            p99s_ms = [quantile(rows.latency_us, P99) / 1e3 for rows in in_bins]
            for axis, values in (
                (left, [rows.share(SLOW) for rows in in_bins]),
                # NaN, a hole in the line, if nothing was sent or the p99 failed.
                (right, [p99_ms if np.isfinite(p99_ms) else np.nan for p99_ms in p99s_ms]),
            ):
                axis.plot(middles_s, values, color=colour, linestyle=dash, linewidth=1.3, label=arm)
        for axis, title in ((left, "bytes to the slow broker, %"), (right, "p99 of produce latency, ms")):
            plain(axis, title)
            axis.axvspan(start_us / 1e6, end_us / 1e6, color="#fd8d3c", alpha=0.12, linewidth=0)
            axis.set_xlabel("s of the run")
        left.axhline(THIRD, linewidth=0.6, linestyle=":", color="#808080")
        left.set_ylim(0, 100)
        right.set_yscale("log")
        legend(figure, left, len(ARMS))
        svg = rendered(figure, f"kip794-{name}", f"KIP-794, {name}", sentence)
    return Plot(f"{name}: distribution of bytes, and latency", svg, sentence)


def _slow(measure: Callable[..., Measured], fault: str, *arguments: object) -> Measure:
    """Return a function that measures the run with the slow broker, undecided unless ``fault`` took effect."""
    return on_part(PART, measure, *arguments, faults=[fault])


_LEFT_OUT = ("availability", "adaptive")
_refuses, _accepts_all = partial(exhausted, expected=True), partial(exhausted, expected=False)
_P99_ARMS = {SERIES1: ARMS, SERIES2: ("uniform", "adaptive")}
REGISTRATION = register(
    "kip794",
    {
        "sticky-runs-away": _slow(runaway, SERIES1),
        "sticky-rises": _slow(rising, SERIES1),
        "sticky-after-heal": _slow(after_heal, SERIES1),
        "uniform-bytes": _slow(even, SERIES1),
        "uniform-draws": _slow(draws, SERIES1, "uniform", SERIES1),
        "adaptive-less": _slow(less_than, SERIES1, "adaptive", "uniform", SERIES1),
        "adaptive-order-series1": _slow(ordered, SERIES1, SERIES1),
        "adaptive-order-series2": _slow(ordered, SERIES2, SERIES2),
        "availability-series1": _slow(less_than, SERIES1, *_LEFT_OUT, SERIES1),
        "availability-series2": _slow(less_than, SERIES2, *_LEFT_OUT, SERIES2),
        "p99": _slow(p99_ratio, SERIES1, "adaptive"),
        "uniform-saturates": _slow(_refuses, SERIES2, "uniform"),
        "adaptive-bears": _slow(_accepts_all, SERIES2, "adaptive"),
        "batches": _slow(batches, EQUAL),
        "rack-near": on_part(RACK, near, faults=["home"]),
        "rack-away": on_part(RACK, away, faults=["gone"]),
        "equal-draws-uniform": _slow(draws, EQUAL, "uniform", EQUAL),
        "equal-draws-sticky": _slow(draws, EQUAL, "sticky", EQUAL),
        **{f"equal-bytes-{arm}": _slow(equal_bytes, EQUAL, arm) for arm in ARMS[1:]},
        "keyed": on_part(RACK, keyed),
        "equal-bytes-sticky": _slow(unstable_bytes, EQUAL),
        **{f"p99-{arm}-{fault}": _slow(p99, fault, fault, arm) for fault, arms in _P99_ARMS.items() for arm in arms},
    },
)

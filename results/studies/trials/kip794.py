"""Claims of KIP-794 (strictly uniform sticky partitioner, adaptive choice) and of KIP-1123 (choice in the rack).

KIP-794 measured 1 MB/s with one slow broker of three. The old sticky partitioner sent 46.8 of 65 MB to the slow broker;
uniform, adaptive and availability sent 22.2, 19.2 and 17.4 of 66 MB. At 2 MB/s the uniform partitioner saturates (1.85
MB/s, p99 2408 ms) and the adaptive partitioner does not (p99 167 ms; 14.9 of 65.7 MB to the slow broker).

**Two sets of arms.** The KIP was measured with a switch of the sticky partition after ``batch.size`` bytes (part
``text``). Kafka ships a switch that waits for a full batch (part ``shipped``; KAFKA-14156): records rarely fill a batch
to the byte, so a partition with a backlog gets up to two batches between switches, and a slow broker more than its
share of the bytes although it is drawn as often as before. Part ``foreign`` has partitioners of other projects.

**Statistic.** The slow broker's share of the bytes (by the records' intended times) or of the draws (counted in the
client) in slices of 20 s, without the first slice of a fault, in which the queues fill. In the simulation
``partitioner_model.py`` of the tests, the standard error from nine such slices is about the spread of the means of
several runs, so neighbouring slices count as independent. ``predicted`` of a claim is the simulation's figure.
Java's producer and librdkafka have no metric of draws, and turns of records would hide repeated draws, so their arms
are judged by bytes only.

A record belongs to the slice of time that contains its intended time, and the latency of a failed record is infinite.
One that found no room in the producer's buffer within ``max.block.ms`` failed before a partition was chosen. A record's
key depends only on the record's number, so the same record can be compared across arms. The slow broker leads partition
0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from aftershock.results.evidence.files import read_lines
from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.studies.part import Floats, Part, Slice, bootstrap, mean, median, quantile, slices, slope
from aftershock.results.studies.statement import Estimate, Measured, Plot, unknown
from aftershock.results.studies.trials.claim import Measure, Parts, on_part, register

TEXT, SHIPPED, FOREIGN, RACK = "text", "shipped", "foreign", "rack"
SHIPPED_PRODUCTION = f"{SHIPPED}-production"
SERIES1, SERIES2, EQUAL = "series1", "series2", "equal"
ARMS = ("uniform", "adaptive", "availability")
P99 = 0.99
TOST = 0.90  # confidence of the interval that corresponds to two one-sided tests at 0.05
PREDICTED: Mapping[tuple[str, str, str], float] = {
    (TEXT, "uniform", SERIES1): 33.4,
    (TEXT, "adaptive", SERIES1): 30.0,
    (TEXT, "availability", SERIES1): 26.9,
    (TEXT, "adaptive", SERIES2): 22.7,
    (SHIPPED, "uniform", SERIES1): 40.7,
    (SHIPPED, "adaptive", SERIES1): 36.9,
    (SHIPPED, "availability", SERIES1): 33.1,
    (SHIPPED, "adaptive", SERIES2): 26.2,
}
"""Percentage of the bytes to the slow broker in the simulation, by run, arm and fault."""
SLOW, PARTITIONS = 0, range(3)
THIRD = 100 / len(PARTITIONS)
SLICE_US = 20_000_000
NOWHERE = -1
"""Partition number of a record for which no partition was chosen."""


@dataclass(frozen=True)
class Placed:
    """Records of one producer in send order; ``partition`` is ``NOWHERE`` if no partition was chosen."""

    seq: NDArray[np.int64]
    partition: NDArray[np.int64]
    intended_us: NDArray[np.int64]
    latency_us: Floats
    size_bytes: Floats
    ok: NDArray[np.bool_]

    def within(self, span: Slice) -> "Placed":
        mask = (self.intended_us >= span.start_us) & (self.intended_us < span.end_us)
        return Placed(*(getattr(self, field.name)[mask] for field in fields(self)))

    def share(self, partition: int) -> float:
        """Return a partition's percentage of a producer's acknowledged bytes, NaN without acknowledged bytes."""
        total = float(self.size_bytes[self.ok].sum())
        return 100 * float(self.size_bytes[self.ok & (self.partition == partition)].sum()) / total if total else np.nan


def placed(part: Part, client: str) -> Placed:
    columns = ("seq", "partition", "intended_us", "done_us", "bytes")
    rows = part.outcomes("produce", (*columns, "status"), client).sort_by("seq")
    seq, partition, intended, done, size = (
        pc.fill_null(rows[name], NOWHERE).to_numpy().astype(np.int64) for name in columns
    )
    ok = pc.equal(rows["status"], "ok").to_numpy(zero_copy_only=False).astype(bool)
    latency = np.where(ok, done - intended, np.inf).astype(float)
    return Placed(seq, partition, intended, latency, np.maximum(size, 0).astype(float), ok)


def shares(records: Placed, spans: Sequence[Slice], partition: int) -> list[float]:
    return [share for span in spans if not np.isnan(share := records.within(span).share(partition))]


def spans(part: Part, fault: str) -> tuple[Slice, ...]:
    windows = [slices(row["start_us"], row["end_us"], SLICE_US) for row in part.phases(fault)]
    return tuple(span for window in windows for span in window)


def settled(part: Part, fault: str) -> tuple[Slice, ...]:
    return spans(part, fault)[1:]


def draws_by_partition(part: Part, worker: str, within: Sequence[Slice]) -> Floats:
    """Return a partitioner's draws as an array by partition and slice of time, from samples once a second."""
    ends = np.array(within, float).reshape(-1, 2)
    drawn = np.zeros((len(PARTITIONS), len(ends)))
    for partition in PARTITIONS:
        samples = part.samples(f"client.partition_draws_{partition}/{worker}")
        if samples.num_rows:
            times_us, counts = (samples[name].to_numpy() for name in ("t_us", "value"))
            drawn[partition] = np.diff(np.interp(ends, times_us, counts))[:, 0]
    return drawn


def of(part: Part, arm: str) -> Placed:
    return placed(part, f"orders/{arm}")


def _slow_shares(part: Part, arm: str, fault: str) -> list[float]:
    """Return the percentage of an arm's bytes that went to the slow broker, by slice of time."""
    return shares(of(part, arm), settled(part, fault), SLOW)


def _draws(part: Part, arm: str, fault: str) -> Floats:
    """Return an arm's draws by partition and slice of time."""
    return draws_by_partition(part, f"orders-{arm}-produce", settled(part, fault))


def _draw_shares(part: Part, arm: str, fault: str) -> list[float]:
    draws = _draws(part, arm, fault)
    total = draws.sum(axis=0)
    return [float(share) for share in 100 * draws[SLOW][total > 0] / total[total > 0]]


def bytes_share(part: Part, arm: str, fault: str, confidence: float = 0.95) -> Measured:
    """Measure the slow broker's percentage of an arm's bytes."""
    draws = mean(_draw_shares(part, arm, fault), "%").value
    why = "the client does not count its draws" if draws is None else f"{draws:.1f} % of the draws"
    return Measured(mean(_slow_shares(part, arm, fault), "%", confidence), why)


def draws_share(part: Part, arm: str, fault: str) -> Measured:
    """Measure the slow broker's percentage of an arm's draws, by the client's counters."""
    return Measured(mean(_draw_shares(part, arm, fault), "%", TOST), f"{_draws(part, arm, fault).sum():,.0f} draws")


def less_than(part: Part, ours: str, theirs: str, fault: str, confidence: float = 0.95) -> Measured:
    """Measure the slow broker's share of bytes in arm ``ours`` minus its share in arm ``theirs``."""
    pairs = zip(*(_slow_shares(part, arm, fault) for arm in (ours, theirs)), strict=True)
    return Measured(mean([left - right for left, right in pairs], "points", confidence))


def rising(part: Part) -> Measured:
    """Measure how much the median latency of records sent to the slow broker grows from slice to slice."""
    medians_ms = [
        median(records.latency_us[records.partition == SLOW]) / 1e3
        for records in map(of(part, "sticky").within, spans(part, SERIES1))
    ]
    return Measured(slope(medians_ms, "ms a slice"))


def p99_ratio(part: Part, ours: str) -> Measured:
    def figure(clients: Sequence[Floats]) -> float | None:
        our_p99, sticky_p99 = (quantile(latencies, P99) for latencies in clients)
        return our_p99 / sticky_p99 if np.isfinite(our_p99) and np.isfinite(sticky_p99) else None

    groups = [_latencies(part, arm, SERIES1) for arm in (ours, "sticky")]
    our_ms, sticky_ms = (quantile(np.concatenate(group), P99) / 1e3 for group in groups)
    why = f"p99 is {our_ms:.0f} ms with {ours} and {sticky_ms:.0f} ms with sticky"
    return Measured(bootstrap(groups, figure, "times", part.run.run_id), why)


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


def refused(part: Part, arm: str) -> Measured:
    """Measure the percentage of an arm's records that found no room in the buffer in series 2, by slice of time.

    A violation is a slice with such a record.
    """
    percent = [
        100 * float((~records.ok & (records.partition == NOWHERE)).mean())
        for records in map(of(part, arm).within, settled(part, SERIES2))
    ]
    why = f"{percent[-1]:.1f} % in the last 20 s" if percent else ""
    return Measured(mean(percent, "%"), why, sum(share > 0 for share in percent))


def keyed(part: Part) -> Measured:
    """Judge that a record has the same partition in all arms, ignoring records that failed without a partition."""
    places = []
    for arm in ("sticky", *ARMS, "librdkafka"):
        records = placed(part, f"keyed/{arm}")
        seq, partitions = records.seq[records.ok].tolist(), records.partition[records.ok].tolist()
        places.append(dict(zip(seq, partitions, strict=True)))
    common = sorted(set.intersection(*map(set, places)))
    unlike = sum(len({place[seq] for place in places}) > 1 for seq in common)
    ours = Estimate(unlike, None, None, len(common), "records")
    why = f"{unlike} of {len(common)} records are not in the same partition in all {len(places)} arms"
    return Measured(ours, why, unlike)


def _proven(part: Part, fault: str) -> list[dict[str, Any]]:
    """Return the windows of a fault, of the blocks of the plan in which all faults took effect."""
    blocks, _ = part.run.trials()
    return [row for row in part.phases(fault) if blocks is None or row["block"] in blocks]


def near(part: Part) -> Measured:
    """Measure the records that left the rack while its broker led, before the first kill and after each return.

    A violation is such a span of time with a record that left the rack.
    """
    topic = next(topic for topic in part.run.run["topics"] if topic["name"] == "orders")
    # The partition whose preferred leader is the rack's broker.
    home = next(int(number) for number, replicas in topic["assignment"].items() if replicas[0] == 1)
    rows = part.windows()
    led = [Slice(row["start_us"], row["end_us"]) for row in rows if row["name"] == "steady"]
    # The window of an election is ``timing.fault`` long; the broker leads until the next kill, or the end of the load.
    kills_us = [row["start_us"] for row in part.phases("gone")] + [max(row["end_us"] for row in rows)]
    led += [
        Slice(row["end_us"], min(at_us for at_us in kills_us if at_us >= row["end_us"]))
        for row in _proven(part, "home")
    ]
    records = [of(part, "near").within(span) for span in led]
    outside = [int((of_span.partition[of_span.ok] != home).sum()) for of_span in records]
    total = sum(int(of_span.ok.sum()) for of_span in records)
    percent = 100 * sum(outside) / total if total else None
    ours = Estimate(percent, None, None, len(led), "% of records outside the rack")
    # The producer without the setting proves that records could leave the rack.
    anywhere = [100 - of(part, "anywhere").within(span).share(home) for span in led]
    low, high = min(anywhere), max(anywhere)
    why = (
        f"{sum(outside)} of {total} records left the rack while its broker led; without the setting {low:.0f} to "
        f"{high:.0f} % of the bytes left the rack"
    )
    return Measured(ours, why, sum(count > 0 for count in outside) if total else None)


def away(part: Part) -> Measured:
    """Measure the records of a producer while its rack's broker is dead, from 5 s after each kill.

    A violation is a death in which a record failed, or all records went to one partition. Records that go elsewhere
    show nothing if the producer does not stay in its rack while the broker leads.
    """
    if (stayed := near(part)).violations != 0:
        return Measured(unknown(), doubt=f"the producer did not stay in its rack: {stayed.why}")
    lines = read_lines(part.home / "journal.jsonl")
    healing_us = {line["fault"]: int(line["t_us"]) for line in lines if line["state"] == "healing"}
    deaths = [
        of(part, "near").within(Slice(row["start_us"] + 5_000_000, healing_us[row["fault"]]))
        for row in _proven(part, "gone")
    ]
    failed, total = sum(int((~records.ok).sum()) for records in deaths), sum(len(records.ok) for records in deaths)
    bad = sum(not records.ok.all() or len({*records.partition.tolist()}) < 2 for records in deaths)  # noqa: PLR2004
    ours = Estimate(100 - 100 * failed / total if total else None, None, None, len(deaths), "% of records acknowledged")
    return Measured(ours, f"{failed} of {total} records failed", bad if total else None)


def plots(parts: Parts) -> tuple[Plot, ...]:
    """Return the bytes against the draws of the slow broker, and the bytes of a draw; none without a run."""
    shown = [(name, parts[name], arm) for name in (TEXT, SHIPPED) if name in parts for arm in ARMS]
    if not shown:
        return ()
    texts = []
    with drawing(5.2, 6.4) as figure:
        axis, relative = figure.subplots(2, 1, height_ratios=[3, 1.5])
        for name, part, arm in shown:
            draws, sent = _draw_shares(part, arm, SERIES1), _slow_shares(part, arm, SERIES1)
            if not draws or len(draws) != len(sent):
                continue
            colour, filled = LINES[ARMS.index(arm)][0], name == TEXT
            axis.plot(draws, sent, ".", color=colour, markersize=4, alpha=0.5, fillstyle="full" if filled else "none")
            at = float(np.mean(draws)), float(np.mean(sent))
            label = f"{arm}, {'text of the KIP' if filled else 'as shipped'}"
            axis.plot(*at, "o" if filled else "s", color=colour, markersize=8, label=label, linestyle="")
            predicted = PREDICTED[name, arm, SERIES1]
            axis.plot(at[0], predicted, "_", color=colour, markersize=16)
            times = np.array(sent) / np.subtract(100, sent) / (np.array(draws) / np.subtract(100, draws))
            place = ARMS.index(arm) + (0.12 if filled else -0.12)
            relative.plot(times, [place] * len(times), ".", color=colour, markersize=4, alpha=0.5)
            relative.plot(float(times.mean()), place, "o" if filled else "s", color=colour, markersize=8)
            texts.append(
                f"{label}: {at[0]:.1f} % of the draws, {at[1]:.1f} % of the bytes (predicted {predicted:g} %), "
                f"{times.mean():.2f} times the bytes a draw"
            )
        axis.axline((THIRD, THIRD), slope=1, linewidth=0.6, linestyle=":", color="#808080")
        axis.axhline(THIRD, linewidth=0.6, linestyle=":", color="#808080")
        plain(axis, "bytes to the slow broker, %")
        axis.set_xlabel("draws of the slow broker, %")
        relative.axvline(1, linewidth=0.6, linestyle=":", color="#808080")
        relative.set_yticks(range(len(ARMS)), ARMS)
        relative.set_ylim(-0.5, len(ARMS) - 0.5)
        plain(relative, "bytes a draw of the slow broker, relative to a draw of the others")
        relative.set_xlabel("times")
        legend(figure, axis, 2)
        svg = rendered(figure, "kip794-draws", "KIP-794, draws and bytes", "; ".join(texts))
    reading = (
        "A small point is a slice of 20 s of series 1, a large one the mean of an arm, a dash the simulation. On the "
        "rising line a draw of the slow broker brings as many bytes as any other draw, above it more. "
        "Arms above the horizontal line send a slow broker more than a third. Below: a switch that waits for a full "
        f"batch (KAFKA-14156) shows as more than 1 times the bytes a draw. {'; '.join(texts)}."
    )
    return (Plot("Bytes against draws of the slow broker", svg, reading),)


def _on(name: str, measure: Callable[..., Measured], fault: str, *arguments: object) -> Measure:
    """Return a function that measures the run ``name``, undecided unless ``fault`` took effect."""
    return on_part(name, measure, *arguments, faults=[fault])


_P99_ARMS = {SERIES1: ("sticky", *ARMS), SERIES2: ("uniform", "adaptive")}
REGISTRATION = register(
    "kip794",
    {
        "sticky-runs-away": _on(TEXT, bytes_share, SERIES1, "sticky", SERIES1),
        "sticky-rises": _on(TEXT, rising, SERIES1),
        "p99": _on(TEXT, p99_ratio, SERIES1, "adaptive"),
        **{
            f"{name}-{claim}": measure
            for name in (TEXT, SHIPPED)
            for claim, measure in {
                "uniform-bytes": _on(name, bytes_share, SERIES1, "uniform", SERIES1, TOST),
                "uniform-draws": _on(name, draws_share, SERIES1, "uniform", SERIES1),
                "adaptive-bytes": _on(name, bytes_share, SERIES1, "adaptive", SERIES1),
                "adaptive-less": _on(name, less_than, SERIES1, "adaptive", "uniform", SERIES1),
                "availability-less": _on(name, less_than, SERIES1, "availability", "adaptive", SERIES1),
                "adaptive-series2": _on(name, bytes_share, SERIES2, "adaptive", SERIES2),
                "uniform-saturates": _on(name, refused, SERIES2, "uniform"),
                "adaptive-bears": _on(name, refused, SERIES2, "adaptive"),
                **{f"equal-{arm}": _on(name, bytes_share, EQUAL, arm, EQUAL, TOST) for arm in ARMS},
            }.items()
        },
        "shipped-uniform-bytes-production": _on(SHIPPED_PRODUCTION, bytes_share, SERIES1, "uniform", SERIES1, TOST),
        "java-as-reference": _on(FOREIGN, less_than, SERIES1, "java", "adaptive", SERIES1, TOST),
        "java-adaptive-less": _on(FOREIGN, less_than, SERIES1, "java", "java-uniform", SERIES1),
        "java-bytes": _on(FOREIGN, bytes_share, SERIES1, "java", SERIES1),
        "java-uniform-bytes": _on(FOREIGN, bytes_share, SERIES1, "java-uniform", SERIES1, TOST),
        "librdkafka-bytes": _on(FOREIGN, bytes_share, SERIES1, "librdkafka", SERIES1),
        "rack-near": on_part(RACK, near),
        "rack-away": on_part(RACK, away),
        "keyed": on_part(RACK, keyed),
        **{
            f"p99-{arm}-{fault}": _on(TEXT, p99, fault, fault, arm) for fault, arms in _P99_ARMS.items() for arm in arms
        },
    },
)

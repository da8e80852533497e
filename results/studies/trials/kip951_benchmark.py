"""KIP-951's own micro-benchmark: Kafka's ProducerPerformance, 100 partitions that move once within 400 s.

**Design.** As in the KIP's section *Benchmark results*: ``acks=all``, ``linger.ms=0``, ``batch.size=16384``,
1000-byte records, and one reassignment that rotates all replica lists. The cause that the KIP names is that Metadata
waits behind slow Produce requests, for "a few 100 milliseconds". So each Produce response leaves a connection 60 ms
after the one before, from 5 s before the move until 15 s after it: with five requests in flight, the next one waits
300 ms, as in part ``busy-300``. No response to Metadata is delayed otherwise. Half of the units have one I/O thread a
broker, and followers that return after 100 ms, as in the other parts; the others have brokers with their default
settings.

**Load.** 3,000 records a second for 400 s are 1.2 million, so p99.9 rests on 1,200 records. In a pilot of 60 s (fast
profile, one I/O thread) this rate kept two cores 84 % busy, and latencies settled within 20 s; the warm-up has 70 s.
Two pilots without slow Produce, one of 60 s of arm ``whole`` and one of 90 s of ``capped``, had outages of 1.3 s and
0.7 s: Metadata did not wait, and only the followers' back-off counted.

**Unit.** A unit is three launches, one of each arm, so that no arm shares a broker, a page cache or a compiler's
decisions with another. The six units have the six orders of three arms. Arms are compared within a unit.

**Arms.** ``whole`` is the KIP as shipped; ``stripped`` has the hints removed from all responses to the producer, and
``capped`` meets brokers that offer Produce up to version 9. Kafka's producer of today retries at once after any news
of a leader, so both are between the KIP's baseline and the alternative that it rejected. The treatment of each arm
begins during the tool's warm-up, because it may close connections.

**Statistic.** p99.9 of all records that the tool counts after its own warm-up (``--warmup-records``), from sending to
acknowledgement in whole ms, as the tool computes it; the tool itself takes each second latency of so many records.
The outage length adds the time in which a thousandth of the records is sent, because p99.9 of a run with one outage
is the outage less this time. The tool's own count, mean and maximum must agree with those of the rows.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from aftershock.results.compare.blocks import Block
from aftershock.results.studies.part import Latencies, Part, ratio_of_blocks
from aftershock.results.studies.statement import Measured, unknown
from aftershock.results.studies.trials.claim import Measure, Parts

ARMS = ("whole", "stripped", "capped")
ORDERS = tuple(permutations(ARMS))
"""Order of the arms in each unit."""
PRODUCTION = (2, 4, 6)
"""Units whose brokers have their default settings."""
CLIENT = "moves/perf"
FAULTS = ("treatment", "busy", "move")
MEASURED_S = 400
"""Seconds of the tool's measurement."""
MS_MAX = 20
"""Largest difference of the tool's maximum from that of the rows: a collection of the heap between two readings."""
MEAN_MS_MAX = 2.0
"""Largest difference of the means: each of the tool's times is cut off to whole ms."""

_SUMMARY = re.compile(
    r"(?P<n>\d+)(?: steady state)? records sent, .* (?P<mean>[\d.]+) ms avg latency, (?P<max>[\d.]+) ms max latency, "
    r".* (?P<p999>\d+) ms 99\.9th"
)


def name_of(unit: int, arm: str) -> str:
    return f"benchmark-{unit}-{arm}"


def orders() -> Sequence[tuple[int, tuple[str, ...]]]:
    return [*enumerate(ORDERS, 1)]


Statistic = Callable[[Latencies], float]
STATISTICS: Mapping[str, Statistic] = {
    "p99.9": lambda found: found.quantile(0.999),
    "p50": lambda found: found.quantile(0.5),
    "max": lambda found: found.quantile(1),
    "mean": lambda found: found.mean(),
    "outage": lambda found: found.quantile(0.999) + MEASURED_S,  # a thousandth of the time, in ms
}


def latencies_of(part: Part) -> Latencies:
    return part.latencies(CLIENT, _warmup_records(part))


def _warmup_records(part: Part) -> int:
    (workload,) = part.run.timeline["workloads"]
    return int(workload["arms"]["perf"]["settings"]["warmup-records"])


def disagreement(part: Part) -> str | None:
    """Return how the tool's own summary differs from the rows; None if both agree."""
    found, (line, *_) = latencies_of(part), [*part.events("summary"), {"text": "(no summary)"}]
    own = _SUMMARY.search(line["text"])
    if own is None:
        return f"the tool ended with the line {line['text']!r}"
    pairs = (
        ("n", float(found.n - found.failed), 0.0, "records"),
        ("mean", found.mean(), MEAN_MS_MAX, "ms on average"),
        ("max", float(max(found.counts, default=0)), float(MS_MAX), "ms at most"),
    )
    for name, ours, margin, noun in pairs:
        if abs(float(own[name]) - ours) > margin:
            return f"the tool counts {own[name]} {noun}, and the rows have {ours:.6g}"
    return None


def doubt_of(part: Part) -> str | None:
    """Return why a launch is left out: a fault of it did not take effect, or the tool disagrees."""
    if doubt := part.doubt():
        return doubt
    unproven = part.run.unproven()
    for fault in FAULTS:
        if fault in unproven:
            return f"{fault}: {unproven[fault]}"
        if not part.phases(fault):
            return f"{fault} was never injected"
    return disagreement(part)


def compared(theirs: str, statistic: str = "p99.9") -> Measure:
    """Return the measurement of arm ``whole`` relative to arm ``theirs``, by the units of which both have run."""
    of = STATISTICS[statistic]

    def measure(parts: Parts) -> Measured:
        sides: tuple[dict[int, Block], dict[int, Block]] = ({}, {})
        texts, left_out, whole_of = [], [], ""
        for unit, _ in orders():
            names = [name_of(unit, arm) for arm in ("whole", theirs)]
            if not parts.keys() >= {*names}:
                continue
            pair = [parts[name] for name in names]
            if doubts := [f"{part.name}: {why}" for part in pair if (why := doubt_of(part))]:
                left_out += doubts
                continue
            values_ms = [of(latencies_of(part)) for part in pair]
            for side, part, value_ms in zip(sides, pair, values_ms, strict=True):
                finite = 0 < value_ms < float("inf")
                side[unit] = Block(round(1000 * value_ms) if finite else None, latencies_of(part).n)
            whole_of = whole_of or pair[0].run.run_id
            texts.append(f"{unit}: {' and '.join(f'{value:.4g}' for value in values_ms)} ms")
        if not texts:
            return Measured(unknown("times"), doubt="; ".join(left_out) or "no pair of launches is complete")
        ours = ratio_of_blocks(*sides, 0.95, whole_of)
        if len(texts) == 1:
            (left,), (right,) = (side.values() for side in sides)
            value = left.value_us / right.value_us if left.value_us and right.value_us else None
            ours = replace(ours, value=value)
        why = f"{len(texts)} of {len(ORDERS)} pairs, {statistic} with the KIP and without by unit: {', '.join(texts)}"
        return Measured(ours, "; ".join([why, *left_out]))

    needs = tuple(name_of(unit, arm) for unit, order in orders() for arm in order if arm in ("whole", theirs))
    return Measure(needs, measure, partial=True)


MEASURES: Mapping[str, Measure] = {
    **{f"benchmark-{theirs}": compared(theirs) for theirs in ARMS[1:]},
    **{
        f"benchmark-{theirs}-{statistic}": compared(theirs, statistic)
        for theirs in ARMS[1:]
        for statistic in ("outage", "max", "mean", "p50")
    },
}

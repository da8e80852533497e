"""Conversion of the rows that Spark jobs return to a run's ``Facts``, and the search for recovery.

**Recovery.** A client is calm while all its records succeed, and a latency quantile is at most ``factor`` times that in
``steady``. One Spark job counts each client's records in slots of time. A second Spark job examines the records of the
slots in which, by these counts (``where_to_look``), a calm period may begin.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aftershock.results.checks.check import SAMPLES_MAX
from aftershock.results.checks.explanations.model import Explanation, counted
from aftershock.results.checks.obligations.stalls import SECOND_US
from aftershock.results.evidence.phases import RUN, Interval, overlap_us
from aftershock.results.measure.facts import (
    MAX,
    Distribution,
    FailureSpan,
    Finding,
    LongestGap,
    MeasurementRequest,
    Outage,
    Perf,
    Recovered,
    RecoveryCriterion,
    SlowRecord,
    Stall,
)
from aftershock.results.measure.latency import Histogram
from aftershock.results.measure.recovery import GAP_SLOT_US
from aftershock.results.measure.tables import Longs, Mask, Scene
from aftershock.results.slo import quantile_needs

PERF_METRIC, PERF_QS = "produce.service", (0.5, 0.95, 0.99, 0.999)

Key = tuple[str, str, str]
Shares: TypeAlias = npt.NDArray[np.float64]
Distributions = Mapping[Key, Distribution]
Answers = dict[int, list[Any]]
"""Result rows of a Spark job, grouped by run number."""
Stalled = dict[Key, dict[tuple[str | None, int | None], list[int]]]
"""Durations of stalls in microseconds, by (side, client, window) and then by (topic, partition)."""


def by_run(rows: Iterable[Any]) -> Answers:
    grouped: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        grouped[row["run"]].append(row)
    return grouped


def banded(
    distribution: Distribution, histogram: Histogram, qs: Iterable[float], confidences: Iterable[float]
) -> Distribution:
    """Add confidence bands to quantiles; the ends of a band are the sample values at two ranks.

    Of n samples the number below a quantile has a binomial distribution (order statistics; see Hahn and Meeker,
    Statistical Intervals, 5.2). A confidence band covers only the error of random sampling.
    """
    keys = [(q, confidence) for q in qs if q < MAX for confidence in confidences]
    ps = [[(1 + side * confidence) / 2 for _, confidence in keys] for side in (-1, 1)]
    ranks = binomial_quantiles(np.array(ps), distribution.n, np.array([q for q, _ in keys])).tolist()
    bands = {
        key: (histogram.at_rank(low), histogram.at_rank(high + 1)) for key, low, high in zip(keys, *ranks, strict=True)
    }
    return replace(distribution, bands=bands)


def binomial_quantiles(p: Shares, n: int, q: Shares) -> Longs:
    """Return quantile ``p`` of the binomial distribution of ``n`` trials with success probability ``q``.

    The result equals that of ``scipy.stats.binom.ppf``, but is computed without importing SciPy, which takes a second.
    """
    from scipy.special import bdtr, bdtrik  # noqa: PLC0415 - a quarter of a second, while Spark starts

    near = np.ceil(bdtrik(p, n, q)) if n else np.zeros(np.broadcast(p, q).shape)
    exact: Longs = (near - ((near > 0) & (bdtr(near - 1, n, q) >= p))).astype(np.int64)
    return exact


def slowest(rows: Iterable[Any]) -> dict[tuple[str, str], tuple[SlowRecord, ...]]:
    """Return the slowest records by operation and client, in descending order of latency."""
    slowest: dict[tuple[str, str], list[SlowRecord]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["op"], row["client"], row["place"])):
        slowest[row["op"], row["client"]].append(SlowRecord(*[row[field.name] for field in fields(SlowRecord)]))
    return {key: tuple(records) for key, records in slowest.items()}


def backwards(histograms: Mapping[Key, Histogram], scene: Scene) -> int:
    """Return the number of records and phases that ended before they began, because the clock went backwards."""
    metrics = ("produce.service", "consume.latency", "commit.service")  # one metric for each kind of row
    phases = sum(phase.end_us < phase.start_us for phase in scene.evidence.phases)
    return phases + sum(
        histogram.backwards
        for (metric, _, window), histogram in histograms.items()
        if window in ("warmup", RUN) and metric in metrics
    )


def longest(
    rows: Iterable[Any], stalled: Stalled, scene: Scene, spread: Distributions, slot_us: int = GAP_SLOT_US
) -> dict[Key, LongestGap]:
    """Return the longest gap between successes of each client and window; ``rows`` are those of ``success_stretches``.

    A gap shorter than ``slot_us`` is reported as ``slot_us``. The start and the end of a window count as successes. If
    records were due and none succeeded, the gap is the whole window; if records waited for a client that read none, it
    is the longest stall.
    """
    silent = {
        (f"{side}.gap", client, window): LongestGap(0, max(chain(*durations.values())))
        for (side, client, window), durations in stalled.items()
    }
    due = {(f"{metric.split('.')[0]}.gap", client, window) for metric, client, window in spread}
    omitted = {key: {*scene.segments.of(spans)} for key, spans in scene.left_out.items()}
    for metric, client, window in due:
        out = scene.left_out.get((metric.split(".")[0], client), ())
        lengths = (end - start - overlap_us(out, start, end) for start, end in scene.windows[window])
        silent[metric, client, window] = LongestGap(0, max(lengths))
    stretches_of: dict[tuple[str, str], dict[int, Any]] = defaultdict(dict)
    for row in rows:
        stretches_of[row["metric"], row["client"]][row["segment"]] = row
    observed = {}
    for (metric, client), stretches in stretches_of.items():
        suspect = omitted.get((metric.split(".")[0], client), set())
        for window, spans in scene.windows.items():
            gaps, n = [], 0
            for start_us, end_us in spans:
                last_us = start_us
                for segment in scene.segments.of([(start_us, end_us)]):
                    row = stretches.get(segment)
                    if segment in suspect:  # its time does not count, its successes do
                        from_us, to_us = scene.segments.spans[segment]
                        if row:
                            gaps.append(from_us - last_us)
                            n += row["n"]
                        last_us = to_us if row else last_us + to_us - from_us
                    elif row:
                        gaps += [row["first_us"] - last_us, row["gap_us"]]
                        last_us, n = row["last_us"], n + row["n"]
                gaps.append(end_us - last_us)
            if n:
                observed[metric, client, window] = LongestGap(n, max(slot_us, *gaps))
    return silent | observed


def findings(rows: Iterable[Any], causes: Sequence[Explanation]) -> dict[Key, Finding]:
    """Return the findings by key; a row counts the breaches that one of ``causes`` explains, or none."""
    by_key: dict[Key, Finding] = {}
    # breaches that nothing explains come first, so that the samples begin with them
    for row in sorted(rows, key=lambda row: -1 if row["explanation"] is None else row["explanation"]):
        samples = tuple((record["producer_id"], record["seq"]) for record in row["samples"] or ())
        key = row["rule"], row["side"], row["client"]
        known = by_key.get(key, Finding(*key, 0, 0))
        number = row["explanation"]
        by_key[key] = replace(
            known,
            examined=known.examined + row["examined"],
            broken=known.broken + row["broken"],
            samples=(*known.samples, *samples)[:SAMPLES_MAX],
            explained=known.explained if number is None else (*known.explained, counted(causes[number], row["broken"])),
        )
    return by_key


def stalls(rows: Iterable[Any]) -> tuple[Stall, ...]:
    """Return the stalls, sorted by side, client, partition (None, the client as a whole, first) and time."""
    all_stalls = [Stall(*[row[field.name] for field in fields(Stall)]) for row in rows]
    return tuple(sorted(all_stalls, key=lambda stall: (stall.side, stall.client, _order(stall), stall.start_us)))


def _order(stall: Stall | Outage) -> tuple[int, str]:
    return -1 if stall.partition is None else stall.partition, stall.topic or ""


def failures(rows: Iterable[Any]) -> dict[tuple[str, str], tuple[FailureSpan, ...]]:
    """Return the spans of time with failed records, by side and client, in order of time."""
    by_client: dict[tuple[str, str], list[FailureSpan]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["side"], row["client"], row["from_s"], row["to_s"])):
        span = FailureSpan(row["from_s"] * SECOND_US, (row["to_s"] + 1) * SECOND_US, row["n"])
        by_client[row["side"], row["client"]].append(span)
    return {key: tuple(spans) for key, spans in by_client.items()}


def stalled_in(stalls: Sequence[Stall], scene: Scene) -> Stalled:
    """Return the durations of the parts of stalls that are within a window."""
    stalled: Stalled = {}
    for stall in stalls:
        out = scene.left_out.get((stall.side, stall.client), ())
        for window, spans in scene.windows.items():
            for span in spans:
                start, end = max(stall.start_us, span[0]), min(stall.end_us, span[1])
                if (us := end - start - overlap_us(out, start, end)) > 0:
                    of_window = stalled.setdefault((stall.side, stall.client, window), {})
                    of_window.setdefault((stall.topic, stall.partition), []).append(us)
    return stalled


def unavailable(stalled: Stalled, spread: Distributions) -> dict[Key, tuple[Outage, ...]]:
    """Return each partition's time in stalls by (side, client, window), for windows in which records were due."""
    due = {(metric.split(".")[0], client, window) for metric, client, window in spread if metric.endswith(".latency")}
    outages = {}
    for key in sorted(due | stalled.keys()):
        of_window = (
            Outage(partition, sum(durations), max(durations), len(durations), topic)
            for (topic, partition), durations in stalled.get(key, {}).items()
        )
        outages[key] = tuple(sorted(of_window, key=_order))
    return outages


def perf(histograms: Mapping[Key, Histogram], stretches: Iterable[Any], scene: Scene) -> dict[str, Perf]:
    """Calculate what ``kafka-producer-perf-test`` would print for each client, from warm-up to the last success.

    The quantiles are those of acknowledged records; ``kafka-producer-perf-test`` counts ranks from 0 and truncates them
    to integers.
    """
    last_us: dict[str, int] = defaultdict(int)
    for row in stretches:
        if row["metric"] == "produce.gap":
            last_us[row["client"]] = max(last_us[row["client"]], row["last_us"])
    figures = {}
    for (metric, client, window), service in sorted(histograms.items(), key=itemgetter(0)):
        if (metric, window) == (PERF_METRIC, RUN) and service.valued:
            n, seconds = service.valued, max(last_us[client] - scene.judged_from_us, 1) / 1e6
            megabytes = histograms["produce.latency", client, RUN].bytes / 2**20
            quantiles_us = [service.at_rank(min(n, int(q * n) + 1)) for q in PERF_QS]
            took_us = [service.mean_us, service.slowest_us, *quantiles_us]
            figures[client] = Perf(n, seconds, n / seconds, megabytes / seconds, *((us or 0) / 1e3 for us in took_us))
    return figures


def criteria_of(scene: Scene, request: MeasurementRequest) -> list[RecoveryCriterion]:
    """Return the default recovery criterion of every fault that began, and the recovery criteria of the SLOs."""
    started = [step["id"] for step in scene.evidence.steps if scene.inject_us(step["id"]) is not None]
    requested = [criterion for criterion in request.recoveries if criterion.fault in started]
    return list(dict.fromkeys([*map(RecoveryCriterion, started), *requested]))


@dataclass(frozen=True)
class Pace:
    """Condition of calm, that for ``for_us`` no record fails and at most ``allowed`` take longer than ``limit_us``."""

    run: int
    client: str
    end_us: int
    limit_us: int
    q: Fraction
    for_us: int

    @property
    def row(self) -> tuple[str, int, int, int, int]:
        return self.client, self.end_us, self.limit_us, *self.q.as_integer_ratio()

    def allowed(self, n: Longs) -> Longs:
        """Return how many of n records may be slow, if quantile q (the value of rank ceil(q*n)) is within the limit."""
        slow: Longs = n * (self.q.denominator - self.q.numerator) // self.q.denominator
        return slow


@dataclass(frozen=True)
class RecoverySearch:
    """Search for a client's recovery from a fault, injected at ``at_us``, by one recovery criterion."""

    criterion: RecoveryCriterion
    pace: Pace
    at_us: int


def recovery_searches(
    scenes: Sequence[Scene], criteria: Sequence[Sequence[RecoveryCriterion]], spread: Sequence[Distributions]
) -> list[RecoverySearch]:
    """Return a search per recovery criterion and client; clients with too few records in ``steady`` are left out."""
    searches = []
    for run, scene in enumerate(scenes):
        for criterion in criteria[run]:
            for client in scene.evidence.clients:
                steady = spread[run].get(("produce.latency", client.key, "steady"))
                steady_us = steady.at[criterion.q] if steady and steady.n >= quantile_needs(criterion.q) else None
                at_us = scene.inject_us(criterion.fault)
                if steady_us is not None and at_us is not None:
                    limit_us = int(Fraction(repr(criterion.factor)) * steady_us)  # in floats 1.1 * 3000 > 3300
                    q = Fraction(repr(criterion.q))
                    pace = Pace(run, client.key, scene.end_us, limit_us, q, criterion.for_us)
                    searches.append(RecoverySearch(criterion, pace, at_us))
    return searches


@dataclass(frozen=True, eq=False)
class Slots:
    """Counts of records, failed and slow records (``pace_slots``) by time slot and segment (-1 means no segment)."""

    segment: Longs
    slot: Longs
    n: Longs
    failed: Longs
    slow: Longs

    def after(self, starts_us: Longs) -> "Longs":
        """Return how many records lie in or after each segment that starts at ``starts_us``."""
        counts = np.zeros(len(starts_us) + 1, dtype=np.int64)
        np.add.at(counts, self.segment, self.n)  # segment -1 is the last
        return np.cumsum(counts[len(starts_us) - 1 :: -1])[::-1]


@dataclass(frozen=True, eq=False)
class CalmSlots:
    """Start of each slot with records, and whether a calm period of ``pace`` may or must begin in the slot."""

    start_us: Longs
    may: Mask
    must: Mask


def calm_slots(pace: Pace, slots: Slots) -> CalmSlots:
    """Return the slots in which a calm period may or must begin, whatever the time of the injection.

    ::

        slot       |=====|                 the calm period begins with a record of this slot
        surely           |---------|       records of the slots that lie completely in every such period
        perhaps    |--------------------|  records of the slots that such a period may contain in part

    A calm period can't begin in a slot if a record in ``surely`` failed, or if more records in ``surely`` are slow than
    the number of records in ``perhaps`` allows. A calm period begins in a slot if no record in ``perhaps`` failed, and
    the number of records in ``surely`` allows all slow records in ``perhaps``.
    """
    slot_us = slot_us_of(pace.for_us)
    first = slots.slot.min()
    sums = {}
    for name in ("n", "failed", "slow"):
        counts = np.zeros(slots.slot.max() - first + 2, dtype=np.int64)
        np.add.at(counts, slots.slot - first + 1, getattr(slots, name))
        sums[name] = np.cumsum(counts)  # before each slot, and before the end
    at = np.flatnonzero(np.diff(sums["n"]))
    surely = {name: _within(running, at + 1, at + pace.for_us // slot_us) for name, running in sums.items()}
    perhaps = {name: _within(running, at, at + 2 + (pace.for_us - 2) // slot_us) for name, running in sums.items()}
    start_us = (at + first) * slot_us
    may = (surely["failed"] == 0) & (surely["slow"] <= pace.allowed(perhaps["n"]))
    may &= start_us + pace.for_us <= pace.end_us
    must = (perhaps["failed"] == 0) & (perhaps["slow"] <= pace.allowed(surely["n"]))
    must &= start_us + slot_us + pace.for_us <= pace.end_us
    return CalmSlots(start_us, may, must)


def where_to_look(search: RecoverySearch, slots: CalmSlots | None) -> list[Interval]:
    """Return the intervals in which a calm period may begin, up to the first slot in which it certainly begins."""
    if slots is None:
        return []
    slot_us, pace = slot_us_of(search.pace.for_us), search.pace
    # only slots after the injection, until the first that begins after it and must be calm
    first, whole = np.searchsorted(slots.start_us, [search.at_us - slot_us + 1, search.at_us])
    certain = whole + int(np.argmax(slots.must[whole:])) if slots.must[whole:].any() else len(slots.must) - 1
    begins_us = slots.start_us[first : certain + 1][slots.may[first : certain + 1]]
    groups = np.split(begins_us, np.flatnonzero(np.diff(begins_us) > pace.for_us) + 1)
    return [(max(int(group[0]), search.at_us), int(group[-1]) + slot_us) for group in groups if len(group)]


def slot_us_of(for_us: int) -> int:
    """Return the length of the time slots, a tenth of a second, or a quarter of the calm period if that is shorter."""
    return max(1, min(100_000, for_us // 4))


def _within(running: Longs, start: Longs, end: Longs) -> Longs:
    last = len(running) - 1
    counts: Longs = running[np.minimum(end, last)] - running[np.minimum(start, last)]
    return counts


def recovered(
    results: Iterable[tuple[RecoverySearch, int | None]], slots: Mapping[Pace, Slots], scene: Scene, run: int
) -> dict[tuple[RecoveryCriterion, str], Recovered]:
    """Return a run's recoveries by criterion and client, with the number of records and the time examined."""
    # an injection is the edge of a segment; a record outside all segments precedes them
    starts_us = np.array([start for start, _ in scene.segments.spans])
    after = {pace: counts.after(starts_us) for pace, counts in slots.items() if pace.run == run}
    recoveries = {}
    for search, recovered_us in results:
        first = np.searchsorted(starts_us, search.at_us)
        n = int(after[search.pace][first]) if search.pace in after and first < len(starts_us) else 0
        observed_us = max(0, scene.end_us - search.at_us - search.criterion.for_us)
        if n:
            recoveries[search.criterion, search.pace.client] = Recovered(n, recovered_us, observed_us)
    return recoveries

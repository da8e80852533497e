"""Conversion of the rows that Spark jobs return to a run's ``Facts``, and what must be searched for recovery."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aftershock.results.checks.explanations.model import Explanation, counted
from aftershock.results.evidence.phases import RUN, overlap_us
from aftershock.results.measure.gaps import GAP_SLOT_US
from aftershock.results.measure.latency import Histogram
from aftershock.results.measure.stalls import SECOND_US
from aftershock.results.model.check import SAMPLES_MAX
from aftershock.results.model.facts import (
    MAX,
    Distribution,
    FailureSpan,
    Finding,
    GivenUp,
    LongestGap,
    MeasurementRequest,
    Outage,
    Perf,
    RecoveryCriterion,
    SlowRecord,
    Stall,
)
from aftershock.results.slo import quantile_needs
from aftershock.results.tables.dims import Longs, Scene

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

    A service that stands still at the end of the load is observed further, and the gap lasts until its next output.
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
    stretches_of: dict[tuple[str, str], dict[int | None, Any]] = defaultdict(dict)
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
                is_last = metric == "pipe.gap" and end_us == scene.end_us
                gaps += _after_load(scene, client, stretches.get(None), last_us) if is_last else [end_us - last_us]
            if n:
                observed[metric, client, window] = LongestGap(n, max(slot_us, *gaps))
            elif metric == "pipe.gap" and (key := (metric, client, window)) in silent:
                observed[key] = LongestGap(0, max(silent[key].longest_us or 0, *gaps))
    for client, until_us in scene.stood_still_until_us.items():
        for window, spans in scene.windows.items():
            key = "pipe.gap", client, window
            if key in silent and key not in observed and spans[-1][1] == scene.end_us:
                observed[key] = LongestGap(0, max(silent[key].longest_us or 0, until_us - spans[-1][0]))
    return silent | observed


def _after_load(scene: Scene, client: str, outputs: Any | None, last_us: int) -> Iterator[int]:
    """Yield the gaps between a service's last output in a window that ends with the load, and its outputs after it.

    ``outputs`` is the row of ``success_stretches`` of all outputs after the load.
    """
    if outputs and outputs["first_us"] >= scene.end_us:
        yield outputs["first_us"] - last_us
        yield outputs["gap_us"]
        last_us = outputs["last_us"]
    until_us = scene.stood_still_until_us.get(client)
    yield (scene.end_us if until_us is None else until_us) - last_us


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


def given_up(rows: Iterable[Any]) -> dict[tuple[str, str], GivenUp]:
    """Return the records that each producer gave up, by client and error."""
    found = {}
    for row in sorted(rows, key=lambda row: (row["client"], row["error"])):
        samples = tuple((one["producer_id"], one["seq"]) for one in row["samples"] or ())
        found[row["client"], row["error"]] = GivenUp(row["n"], row["early"], row["earliest_us"], samples)
    return found


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


STEADY_US_MIN = 50_000


@dataclass(frozen=True)
class Search:
    """Search for a client's recovery from a fault, injected at ``at_us``, by one recovery criterion.

    A record that takes longer than ``limit_us`` is slow. The search ends at ``until_us``: by definition 1 the end of
    the load, by definition 2 the next fault, if it is earlier. ``heal_us`` is the time from the inject to the heal;
    definition 1 has none.
    """

    run: int
    client: str
    criterion: RecoveryCriterion
    at_us: int
    until_us: int
    limit_us: int
    heal_us: int | None

    @property
    def q(self) -> Fraction:
        return Fraction(repr(self.criterion.q))


def searches(
    scenes: Sequence[Scene], criteria: Sequence[Sequence[RecoveryCriterion]], spread: Sequence[Distributions]
) -> list[Search]:
    """Return a search per recovery criterion and client; clients with too few records in ``steady`` are left out."""
    found = []
    for run, scene in enumerate(scenes):
        lasting = scene.evidence.recovery_definition > 1
        for criterion in criteria[run]:
            at_us = scene.inject_us(criterion.fault)
            if at_us is None or at_us >= scene.end_us:
                continue
            until_us = scene.until_us(at_us, criterion.for_us) if lasting else scene.end_us
            for client in scene.evidence.clients:
                metric = "pipe.latency" if client.pipe else "produce.latency"
                steady = spread[run].get((metric, client.key, "steady"))
                steady_us = steady.at[criterion.q] if steady and steady.n >= quantile_needs(criterion.q) else None
                if steady_us is not None:
                    reference_us = max(steady_us, STEADY_US_MIN) if lasting else steady_us
                    limit_us = int(Fraction(repr(criterion.factor)) * reference_us)  # in floats 1.1 * 3000 > 3300
                    heal_us = scene.heal_us(criterion.fault) if lasting else None
                    found.append(Search(run, client.key, criterion, at_us, until_us, limit_us, heal_us))
    return found


def slow_allowed(q: Fraction, n: Longs) -> Longs:
    """Return how many of n records may be slow, if quantile q (the value of rank ceil(q*n)) is within the limit."""
    slow: Longs = n * (q.denominator - q.numerator) // q.denominator
    return slow

"""Readings: the measured value of one selection and one client, for each subject and slot that the SLO distinguishes.

Rules: values are exact, in the language's base units (microseconds, shares of 1, records). A value of None is over any
limit, because the quantile falls on a failure. A partition or producer that was never observed has a reading with n =
0, so that its absence shows. Records without a known subject (a record that was never sent has no partition) form a
separate reading, ``unknown``. Lag and freshness are known at the end of each second, so a window or a slot has as many
values as seconds.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.phases import RUN, Interval, windows_of
from aftershock.results.measure.facts import MAX, Band, Cut, Distribution, Facts, Lag, LongestGap
from aftershock.results.slo import EachWord, Selection


def of_seconds(samples: Sequence[Lag], spans: Sequence[Interval], selection: Selection) -> Distribution:
    """Return the lag (records, or age of the oldest in microseconds) of the seconds that ended within the spans."""
    inside = [lag for lag in samples if any(start < lag.at_us <= end for start, end in spans)]
    values = sorted(lag.records if selection.about.unit == "records" else lag.oldest_us for lag in inside)
    if not values:
        return Distribution()
    q = selection.aggregate
    at = {MAX: values[-1]}
    if isinstance(q, float):
        # nearest rank, ceil(q * n), in whole numbers
        at[q] = values[max(math.ceil(Fraction(repr(q)) * len(values)), 1) - 1]
    return Distribution(len(values), 0, values[-1], at, sum(values) / len(values))


UNKNOWN = "unknown"


@dataclass(frozen=True)
class Reading:
    """Measured value.

    ``subject``: ``orders/3``, "" for all; ``start_us``: start of its slot; ``band``: confidence band.
    """

    n: int
    value: Fraction | None
    censored: int = 0
    subject: str = ""
    start_us: int | None = None
    band: Band | None = None


def cuts(selection: Selection, each: EachWord | None) -> tuple[Cut, ...]:
    """Return the cuts to measure besides the standard measurements.

    A gap also needs the latencies, to count due records.
    """
    about = selection.about
    if selection.metric.endswith(".unavailable") or about.sampled or not (each or selection.every_us):
        return ()
    metrics = [_source_metric(selection)]
    metrics += [f"{about.side}.latency"] if selection.metric.endswith(".gap") else []
    return tuple(Cut(metric, selection.window or RUN, each, selection.every_us) for metric in metrics)


def readings(
    evidence: Evidence,
    facts: Facts,
    selection: Selection,
    client: Client,
    each: EachWord | None = None,
    confidence: float | None = None,
) -> list[Reading]:
    """Return one reading, or one per subject and slot if the SLO distinguishes them."""
    if selection.metric.endswith(".unavailable"):
        return _unavailable(evidence, facts, selection, client, each)
    if selection.about.sampled:
        return _sampled(evidence, facts, selection, client)
    measured_cuts = cuts(selection, each)
    if measured_cuts:
        observed = _of_cuts(facts, selection, client, measured_cuts, confidence)
        return observed + _unobserved(evidence, selection, client, each, observed)
    window = selection.window or RUN
    if selection.metric.endswith(".gap"):
        longest = facts.longest.get((selection.metric, client.key, window), LongestGap())
        due = facts.distribution(f"{selection.about.side}.latency", client.key, window).n
        return [_gap(longest.longest_us, longest.n, due)]
    distribution = facts.distribution(_source_metric(selection), client.key, window)
    return [_of_distribution(distribution, selection, confidence)]


def _source_metric(selection: Selection) -> str:
    """Return the metric that is measured: shares are counted from latencies, where failures are censored."""
    return f"{selection.about.side}.latency" if selection.about.unit == "share" else selection.metric


def _of_cuts(
    facts: Facts, selection: Selection, client: Client, measured_cuts: Sequence[Cut], confidence: float | None
) -> list[Reading]:
    gaps = selection.metric.endswith(".gap")
    due = {(part.subject, part.start_us): part.seen.n for part in facts.slices(measured_cuts[-1], client.key)}
    result = []
    for part in facts.slices(measured_cuts[0], client.key):
        if gaps:
            reading = _gap(part.seen.slowest_us, part.seen.n, due.get((part.subject, part.start_us), 0))
        else:
            reading = _of_distribution(part.seen, selection, confidence)
        result.append(replace(reading, subject=part.subject, start_us=part.start_us))
    return result


def _gap(longest_us: int | None, successes: int, due: int) -> Reading:
    """Return the longest gap; without any success, all records that were due are censored."""
    if longest_us is None:
        return Reading(0, None)
    return Reading(successes or due, Fraction(longest_us), 0 if successes else due)


def _sampled(evidence: Evidence, facts: Facts, selection: Selection, client: Client) -> list[Reading]:
    """Return the lag or freshness of the whole window, or of each slot."""
    samples, window = facts.lag.get(client.key, ()), windows_of(evidence.phases).get(selection.window or RUN, ())
    every_us = selection.every_us
    if every_us is None:
        return [_of_distribution(of_seconds(samples, window, selection), selection, None)]
    result = []
    for at_us in _starts(evidence, selection):
        if at_us is not None:
            distribution = of_seconds(samples, [(at_us, at_us + every_us)], selection)
            result.append(replace(_of_distribution(distribution, selection, None), start_us=at_us))
    return result


def _of_distribution(distribution: Distribution, selection: Selection, confidence: float | None) -> Reading:
    q = selection.aggregate
    band = distribution.bands.get((q, confidence)) if isinstance(q, float) and confidence is not None else None
    value = _value(distribution, selection) if distribution.n else None
    return Reading(distribution.n, value, distribution.censored, band=band)


def _value(distribution: Distribution, selection: Selection) -> Fraction | None:
    """Return the value of a non-empty distribution; None if it is censored or the quantile was not measured."""
    if selection.target is not None:
        return Fraction(distribution.censored, distribution.n) / (1 - Fraction(selection.target))
    if selection.aggregate is None:
        return Fraction(distribution.n - distribution.censored, distribution.n)
    if selection.aggregate == "mean":
        mean_us = distribution.mean_us
        return None if distribution.censored or mean_us is None else Fraction(mean_us)
    value_us = distribution.at.get(MAX if selection.aggregate == "max" else selection.aggregate)
    return None if value_us is None else Fraction(value_us)


def _unavailable(
    evidence: Evidence, facts: Facts, selection: Selection, client: Client, each: EachWord | None
) -> list[Reading]:
    """Return the total stall time of each partition (0 without a stall), or the worst of all partitions."""
    side, window = selection.about.side, selection.window or RUN
    outages = facts.unavailable.get((side, client.key, window))
    due = facts.distribution(f"{side}.latency", client.key, window).n
    if outages is None or not due:
        return [Reading(0, None)]
    topic = topic_of(client, side)
    totals_us = {f"{topic}/{outage.partition}": outage.total_us for outage in outages if outage.partition is not None}
    whole_us = max((outage.total_us for outage in outages if outage.partition is None), default=0)
    if each is None:
        return [Reading(due, Fraction(max([whole_us, *totals_us.values()])))]
    names = dict.fromkeys([*partitions(evidence, topic), *totals_us])
    return [Reading(due, Fraction(max(totals_us.get(name, 0), whole_us)), subject=name) for name in names]


def _unobserved(
    evidence: Evidence, selection: Selection, client: Client, each: EachWord | None, observed: Sequence[Reading]
) -> list[Reading]:
    """Return an empty reading for each subject and slot that should have been observed and was not."""
    # racks, brokers and epochs come and go with the leaders, so only partitions and producers are expected
    expected: Iterable[str] = () if each else ("",)
    if each == "partition":
        expected = partitions(evidence, topic_of(client, selection.about.side))
    elif each == "producer" and selection.about.side == "produce":
        expected = [f"producer={number}" for number, key in evidence.producers.items() if key == client.key]
    present = {(reading.subject, reading.start_us) for reading in observed}
    subjects = {reading.subject for reading in observed} | {*expected}
    starts = _starts(evidence, selection)
    return [
        Reading(0, None, subject=subject, start_us=start)
        for subject in sorted(subjects - {UNKNOWN})
        for start in starts
        if (subject, start) not in present
    ]


def _starts(evidence: Evidence, selection: Selection) -> list[int | None]:
    """Return the start of each slot, without an incomplete slot at the end of an interval; [None] without slots."""
    every_us = selection.every_us
    if every_us is None:
        return [None]
    intervals = windows_of(evidence.phases).get(selection.window or RUN, ())
    return [at_us for start, end in intervals for at_us in range(start, end - every_us + 1, every_us)]


def partitions(evidence: Evidence, topic: str | None) -> list[str]:
    """Return ``orders/0``, ``orders/1`` … of a topic, as recorded by the run."""
    topics = (recorded for recorded in evidence.run.get("topics", ()) if recorded.get("name") == topic)
    return [f"{topic}/{number}" for recorded in topics for number in range(recorded.get("partitions", 0))]


def topic_of(client: Client, side: str) -> str | None:
    """Return the topic of a client's side, or None if it lacks that side."""
    return {"produce": client.produces_to, "consume": client.consumes_from, "commit": client.commits_to}[side]

"""Lag and freshness: known at the end of each second, so a window or a slot of it has as many values as seconds.

What was measured of one selection and one client: a value, of how many, for each subject and slot asked for.

Rules: values are exact, in the language's base units (microseconds, shares of 1, records); a value of None is over any
limit, because what it falls on failed. A partition or producer of which nothing was seen has a reading of n = 0: it
must not vanish behind the others. What is of no known subject (a record that was never sent has no partition) is kept
apart, as ``unknown``.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.phases import RUN, Interval, windows_of
from aftershock.results.measure.facts import MAX, Band, Cut, Distribution, Facts, Lag, Longest, Slice
from aftershock.results.slo import EachWord, Selection


def of_seconds(told: Sequence[Lag], spans: Sequence[Interval], selection: Selection) -> Distribution:
    """The values of the seconds that ended within the spans: records that waited, or microseconds of the oldest."""
    inside = [one for one in told if any(start < one.at_us <= end for start, end in spans)]
    values = sorted(one.records if selection.about.unit == "records" else one.oldest_us for one in inside)
    if not values:
        return Distribution()
    q = selection.aggregate
    at = {MAX: values[-1]} | ({q: _nearest_rank(values, q)} if isinstance(q, float) else {})
    return Distribution(len(values), 0, values[-1], at, sum(values) / len(values))


def _nearest_rank(values: Sequence[int], q: float) -> int:
    """An observed value: the one at rank ceil(q * n), in whole numbers."""
    return values[max(math.ceil(Fraction(repr(q)) * len(values)), 1) - 1]


UNKNOWN = "unknown"


@dataclass(frozen=True)
class Reading:
    """``subject``: ``orders/3``, "" for all; ``start_us``: of its slot; ``band``: as in ``Distribution.bands``."""

    n: int
    value: Fraction | None
    censored: int = 0
    subject: str = ""
    start_us: int | None = None
    band: Band | None = None


def cuts(selection: Selection, each: EachWord | None) -> tuple[Cut, ...]:
    """What has to be measured for it besides what always is. A gap's cut comes with how many were due in each part."""
    about = selection.about
    if selection.metric.endswith(".unavailable") or about.sampled or not (each or selection.every_us):
        return ()
    metrics = [_measured_as(selection)]
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
    """Every reading of the selection; one, unless it is told apart by subject or time."""
    if selection.metric.endswith(".unavailable"):
        return _unavailable(evidence, facts, selection, client, each)
    if selection.about.sampled:
        return _sampled(evidence, facts, selection, client)
    wanted = cuts(selection, each)
    if wanted:
        found = _of_cuts(facts, selection, client, wanted, confidence)
        return found + _unseen(evidence, selection, client, each, found)
    if selection.metric.endswith(".gap"):
        return [_gap(facts, selection, client)]
    seen = facts.distribution(_measured_as(selection), client.key, selection.window or RUN)
    return [_of_distribution(seen, selection, confidence)]


def _measured_as(selection: Selection) -> str:
    """Shares are counted off latencies, in which a failure is censored."""
    return f"{selection.about.side}.latency" if selection.about.unit == "share" else selection.metric


def _of_cuts(
    facts: Facts, selection: Selection, client: Client, wanted: Sequence[Cut], confidence: float | None
) -> list[Reading]:
    due = {(one.subject, one.start_us): one.seen.n for one in facts.slices(wanted[-1], client.key)}
    return [
        replace(
            _gap_in(one, due.get((one.subject, one.start_us), 0))
            if selection.metric.endswith(".gap")
            else _of_distribution(one.seen, selection, confidence),
            subject=one.subject,
            start_us=one.start_us,
        )
        for one in facts.slices(wanted[0], client.key)
    ]


def _sampled(evidence: Evidence, facts: Facts, selection: Selection, client: Client) -> list[Reading]:
    """Of the whole window, or of each slot."""
    told, window = facts.lag.get(client.key, ()), windows_of(evidence.phases).get(selection.window or RUN, ())
    every_us = selection.every_us
    if every_us is None:
        return [_of_distribution(of_seconds(told, window, selection), selection, None)]
    starts = [at for at in _starts(evidence, selection) if at is not None]
    seen = [of_seconds(told, [(at, at + every_us)], selection) for at in starts]
    return [replace(_of_distribution(one, selection, None), start_us=at) for one, at in zip(seen, starts, strict=True)]


def _of_distribution(seen: Distribution, selection: Selection, confidence: float | None) -> Reading:
    q = selection.aggregate
    band = seen.bands.get((q, confidence)) if isinstance(q, float) and confidence is not None else None
    return Reading(seen.n, _value(seen, selection) if seen.n else None, seen.censored, band=band)


def _value(seen: Distribution, selection: Selection) -> Fraction | None:
    """Of at least one; a quantile that needs more than were seen isn't there, and isn't asked for."""
    if selection.target is not None:
        return Fraction(seen.censored, seen.n) / (1 - Fraction(selection.target))
    if selection.aggregate is None:
        return Fraction(seen.n - seen.censored, seen.n)
    if selection.aggregate == "mean":
        return None if seen.censored or seen.mean_us is None else Fraction(seen.mean_us)
    found = seen.at.get(MAX if selection.aggregate == "max" else selection.aggregate)
    return None if found is None else Fraction(found)


def _gap(facts: Facts, selection: Selection, client: Client) -> Reading:
    window = selection.window or RUN
    longest = facts.longest.get((selection.metric, client.key, window), Longest())
    due = facts.distribution(f"{selection.about.side}.latency", client.key, window).n
    if longest.longest_us is None:
        return Reading(0, None)
    return Reading(longest.n or due, Fraction(longest.longest_us), 0 if longest.n else due)


def _gap_in(one: Slice, due: int) -> Reading:
    longest_us = one.seen.slowest_us
    if longest_us is None:
        return Reading(0, None)
    return Reading(one.seen.n or due, Fraction(longest_us), 0 if one.seen.n else due)


def _unavailable(
    evidence: Evidence, facts: Facts, selection: Selection, client: Client, each: EachWord | None
) -> list[Reading]:
    """Of each partition, 0 where it did not stall; of them all the worst."""
    side, window = selection.about.side, selection.window or RUN
    outages = facts.unavailable.get((side, client.key, window))
    due = facts.distribution(f"{side}.latency", client.key, window).n
    if outages is None or not due:
        return [Reading(0, None)]
    topic = topic_of(client, side)
    told = {f"{topic}/{one.partition}": one.total_us for one in outages if one.partition is not None}
    whole_us = max((one.total_us for one in outages if one.partition is None), default=0)
    if each is None:
        return [Reading(due, Fraction(max([whole_us, *told.values()])))]
    named = dict.fromkeys([*partitions(evidence, topic), *told])
    return [Reading(due, Fraction(max(told.get(name, 0), whole_us)), subject=name) for name in named]


def _unseen(
    evidence: Evidence, selection: Selection, client: Client, each: EachWord | None, found: Sequence[Reading]
) -> list[Reading]:
    """An empty reading of every subject and slot that should have been seen, and was not."""
    seen = {(one.subject, one.start_us) for one in found}
    subjects = {one.subject for one in found} | {*_expected(evidence, selection, client, each)}
    starts = _starts(evidence, selection)
    return [
        Reading(0, None, subject=subject, start_us=start)
        for subject in sorted(subjects - {UNKNOWN})
        for start in starts
        if (subject, start) not in seen
    ]


def _expected(evidence: Evidence, selection: Selection, client: Client, each: EachWord | None) -> Iterable[str]:
    """The subjects that are there whether seen or not. Racks and brokers come and go with who leads."""
    if each == "partition":
        return partitions(evidence, topic_of(client, selection.about.side))
    if each == "producer" and selection.about.side == "produce":
        return [f"producer={id_}" for id_, key in evidence.producers.items() if key == client.key]
    return () if each else ("",)


def _starts(evidence: Evidence, selection: Selection) -> list[int | None]:
    """When the selection's slots begin; the last of an interval is left out where it is cut short."""
    if selection.every_us is None:
        return [None]
    intervals = windows_of(evidence.phases).get(selection.window or RUN, ())
    every = selection.every_us
    return [at for start, end in intervals for at in range(start, end - every + 1, every)]


def partitions(evidence: Evidence, topic: str | None) -> list[str]:
    """``orders/0``, ``orders/1`` … of a topic, as the run had them."""
    told = (one for one in evidence.run.get("topics", ()) if one.get("name") == topic)
    return [f"{topic}/{number}" for one in told for number in range(one.get("partitions", 0))]


def topic_of(client: Client, side: str) -> str | None:
    """The topic of a client's side; None where it lacks that side."""
    return {"produce": client.produces_to, "consume": client.consumes_from, "commit": client.commits_to}[side]

"""Readings, which are a client's values measured for an SLO, one for each subject (such as a partition) and time slot.

Measured values are exact, in the SLO language's base units (microseconds, shares of 1, records). A partition or
producer that was never observed has a reading with n = 0. Records of unknown subject (a record that was never sent has
no partition) form a separate reading, ``unknown``.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.groups import group_of
from aftershock.results.evidence.outages import IDENTITY, KILLED, deaths_of, worker_outages
from aftershock.results.evidence.phases import RUN, Interval
from aftershock.results.evidence.transactions import written_in_transactions
from aftershock.results.model.facts import NO_OWNER, Cut, Distribution, Facts, Lag, LongestGap
from aftershock.results.slo import EachWord, Selection
from aftershock.results.slo.metrics import MAX, OF_EVENTS, OF_GROUPS, Reading

UNKNOWN = "unknown"


def cuts(selection: Selection, each: EachWord | None) -> tuple[Cut, ...]:
    """Return the measurements that an SLO needs by subject or time slot; a gap also needs the number of records due."""
    about = selection.about
    if about.sampled or about.source in OF_GROUPS | OF_EVENTS or not (each or selection.every_us):
        return ()
    sources = {"gap": ("gap", "latency"), "stalls": ("latency",)}.get(about.source, (about.source,))
    return tuple(Cut(f"{about.side}.{source}", selection.window or RUN, each, selection.every_us) for source in sources)


def readings(
    evidence: Evidence,
    facts: Facts,
    selection: Selection,
    client: Client,
    each: EachWord | None = None,
    confidence: float | None = None,
) -> list[Reading]:
    """Return one reading of a client's measurements, or one per subject (such as a partition) and time slot."""
    about, window = selection.about, selection.window or RUN
    spans = evidence.windows.get(window, ())
    latencies = facts.distribution(f"{about.side}.latency", client.key, window)
    if about.source in OF_GROUPS:
        observed = _of_group(evidence, facts, selection, client, each, spans)
    elif about.source in OF_EVENTS:
        observed = [_of_events(evidence, selection, client, spans, latencies.n - latencies.censored)]
    elif about.source == "stalls":
        observed = _stalls(evidence, facts, selection, client, each, latencies)
    elif about.source == "stable":
        observed = _of_stable_offsets(evidence, facts, selection, client, each, spans, idle=not latencies.n)
    elif about.sampled:
        if each == "member":
            observed = _of_members(facts, selection, client, spans, idle=not latencies.n)
        else:
            observed = _of_seconds(facts.lag.get(client.key, ()), selection, spans, idle=not latencies.n)
    elif measured_cuts := cuts(selection, each):
        observed = []
        due = {(part.subject, part.start_us): part.values.n for part in facts.slices(measured_cuts[-1], client.key)}
        for part in facts.slices(measured_cuts[0], client.key):
            if about.source == "gap":
                reading = _gap(part.values.slowest_us, part.values.n, due.get((part.subject, part.start_us), 0))
            else:
                reading = _of_distribution(part.values, selection, confidence)
            observed.append(replace(reading, subject=part.subject, start_us=part.start_us))
        observed += _unobserved(evidence, selection, client, each, observed, _slot_starts(selection, spans))
    elif about.source == "gap":
        gap = facts.longest.get((f"{about.side}.gap", client.key, window), LongestGap())
        observed = [_gap(gap.longest_us, gap.n, max(latencies.n, 1))]
    else:
        distribution = facts.distribution(f"{about.side}.{about.source}", client.key, window)
        observed = [_of_distribution(distribution, selection, confidence)]
    length_us = selection.every_us or sum(end_us - start_us for start_us, end_us in spans)
    placed = (replace(reading, length_us=length_us) for reading in observed)
    return [replace(reading, value=about.value(selection, reading) if reading.n else None) for reading in placed]


def _of_distribution(distribution: Distribution, selection: Selection, confidence: float | None) -> Reading:
    q = selection.aggregate
    band = distribution.bands.get((q, confidence)) if isinstance(q, float) and confidence is not None else None
    return Reading(distribution.n, distribution.censored, distribution.at, distribution.mean_us, band=band)


def _gap(longest_us: int | None, successes: int, due: int) -> Reading:
    """Return the longest time without a success as a reading; if no record succeeded, all due records are censored."""
    if longest_us is None:
        return Reading(0)
    return Reading(successes or due, 0 if successes else due, {MAX: longest_us})


def _of_members(
    facts: Facts, selection: Selection, client: Client, spans: Sequence[Interval], *, idle: bool
) -> list[Reading]:
    """Return the lag of each member that owned partitions in the window or slot, and the lag that no member had.

    Members come and go, so a member without any second in the window or slot has no reading.
    """
    result = []
    for number, worker in enumerate(client.workers("consume"), 1):
        seconds = facts.member_lag.get((client.key, worker), ())
        of_member = _of_seconds(seconds, selection, spans, idle=idle)
        result += [replace(reading, subject=f"member={number}") for reading in of_member if reading.n]
    behind = [lag for lag in facts.member_lag.get((client.key, NO_OWNER), ()) if lag.records]
    unowned = sum(reading.n for reading in _of_seconds(behind, selection, spans, idle=idle))
    known = {reading.start_us for reading in result}
    if result or not unowned:
        result += [Reading(0, start_us=start) for start in _slot_starts(selection, spans) if start not in known]
    return [*result, Reading(unowned, subject=UNKNOWN)] if unowned else result


def _of_stable_offsets(
    evidence: Evidence,
    facts: Facts,
    selection: Selection,
    client: Client,
    each: EachWord | None,
    spans: Sequence[Interval],
    *,
    idle: bool,
) -> list[Reading]:
    """Return the lag of the partitions to which a client writes in transactions: of all, or of each."""
    if each != "partition":
        return _of_seconds(facts.stable_lag.get(client.key, ()), selection, spans, idle=idle)
    topics = written_in_transactions(evidence, client)
    return [
        replace(reading, subject=f"{topic}/{number}")
        for (topic, number), stable in sorted(facts.stable.items())
        if topic in topics
        for reading in _of_seconds(stable.lags, selection, spans, idle=idle)
    ]


def _of_seconds(
    seconds: Sequence[Lag], selection: Selection, spans: Sequence[Interval], *, idle: bool
) -> list[Reading]:
    """Return the lag (records, or age of the oldest in us) of the seconds that end within the window or slot."""
    q, result = selection.aggregate, []
    ends_us = [lag.at_us for lag in seconds]
    for slot_us in _slot_starts(selection, spans):
        within = spans if slot_us is None else [(slot_us, slot_us + (selection.every_us or 0))]
        values = sorted(
            lag.records if selection.about.source == "lag" else lag.oldest_us
            for start, end in within
            for lag in seconds[bisect_right(ends_us, start) : bisect_right(ends_us, end)]
            # a lag of 0 in a window without records is no observation
            if lag.records or not idle
        )
        reading = Reading(0, start_us=slot_us)
        if values:
            at: dict[float, float | None] = {MAX: values[-1]}
            if isinstance(q, float):
                # nearest rank, ceil(q * n), in whole numbers
                at[q] = values[max(math.ceil(Fraction(repr(q)) * len(values)), 1) - 1]
            reading = replace(reading, n=len(values), at=at, mean=sum(values) / len(values))
        result.append(reading)
    return result


def _stalls(
    evidence: Evidence,
    facts: Facts,
    selection: Selection,
    client: Client,
    each: EachWord | None,
    latencies: Distribution,
) -> list[Reading]:
    """Return a reading of the total time in stalls for each partition, or of the longest of these times."""
    side = selection.about.side
    outages = facts.unavailable.get((side, client.key, selection.window or RUN))
    if outages is None or (not outages and not latencies.n):
        return [Reading(0)]
    topics = client.topics.get(side, ())
    named = [(outage, outage.topic or topics[0]) for outage in outages if outage.partition is not None]
    totals_us = {f"{topic}/{outage.partition}": outage.total_us for outage, topic in named}
    whole_us = max((outage.total_us for outage in outages if outage.partition is None), default=0)
    if each is None:
        due = max(latencies.n, 1)  # without deliveries, it is only known that some record waited
        failed = due if latencies.censored == latencies.n else 0
        return [Reading(due, failed, {MAX: max([whole_us, *totals_us.values()])})]
    (cut,) = cuts(selection, each)
    values = {part.subject: part.values for part in facts.slices(cut, client.key)}
    result = []
    for name in dict.fromkeys([*partitions(evidence, topics), *totals_us]):
        # a record of unknown partition may belong to any
        parts = [values[subject] for subject in (name, UNKNOWN) if subject in values]
        n, failed = sum(part.n for part in parts), sum(part.censored for part in parts)
        longest_us = max(totals_us.get(name, 0), whole_us)
        result.append(Reading(n, n if failed == n else 0, {MAX: longest_us}, subject=name))
    return result


def _of_group(
    evidence: Evidence,
    facts: Facts,
    selection: Selection,
    client: Client,
    each: EachWord | None,
    spans: Sequence[Interval],
) -> list[Reading]:
    """Return a reading of the rebalances, or of the waits without a delivering owner, that began in the window.

    Without a rebalance only their number is known.
    """
    delivered = facts.distribution("consume.latency", client.key, selection.window or RUN).n
    if client.members == 1:
        return [Reading(0)]
    source = selection.about.source
    if source == "unowned":
        # a partition that always had a delivering owner has no such wait
        waits_us = dict.fromkeys(partitions(evidence, client.consumes_from), 0) if each else {"": 0}
        for wait in facts.unowned.get(client.key, ()):
            if any(start <= wait.lacking_us < end for start, end in spans):
                name = f"{wait.place[0]}/{wait.place[1]}" if each else ""
                waits_us[name] = max(waits_us.get(name, 0), wait.end_us - wait.start_us)
        return [Reading(delivered, at={MAX: wait_us}, subject=name) for name, wait_us in waits_us.items()]
    began = [
        rebalance
        for rebalance in facts.rebalances.get(client.key, ())
        if any(start <= rebalance.start_us < end for start, end in spans)
    ]
    if source == "rebalances":
        return [Reading(delivered, at={MAX: len(began)})]
    chosen = {
        "duration": [rebalance.end_us - rebalance.start_us for rebalance in began],
        "stopped": [rebalance.kept_us for rebalance in began if rebalance.kept_us is not None],
        "skew": [rebalance.skew for rebalance in began],
    }[source]
    return [Reading(len(chosen), at={MAX: max(chosen)}) if chosen else Reading(0)]


def _of_events(
    evidence: Evidence, selection: Selection, client: Client, spans: Sequence[Interval], handled: int
) -> Reading:
    """Return how often something happened to a client in a window in which it ``handled`` so many records.

    There is no reading if nobody could have told.
    """
    side, source = selection.about.side, selection.about.source
    lines = [line for line in evidence.events if client.wrote(line) and line.get("op", side) == side]
    if source == "lost":
        moments = [int(line["t_us"]) for line in lines if line["event"] == "lost" for _ in line.get("partitions") or ()]
        observed = handled if group_of(evidence, client) else 0
    elif source == "fatal":
        moments = [int(line["t_us"]) for line in lines if line["event"] == "client_error" and line.get("fatal")]
        moments += [death.at_us for death in deaths_of(evidence) if (death.client, death.side) == (client, side)]
        observed = handled
    else:
        restarted = sequence_restarts(evidence, client)
        moments, observed = (restarted, handled) if restarted is not None else ([], 0)
    within = sum(start <= at_us < end for at_us in moments for start, end in spans)
    return Reading(observed, at={MAX: within}) if observed else Reading(0)


def sequence_restarts(evidence: Evidence, client: Client) -> list[int] | None:
    """Return the times at which a client's producers wrote with another id or epoch; None if the log does not tell.

    Each id and epoch has sequence numbers of its own. A process that a fault killed begins with another id, which is no
    restart. Transactions change the epoch each time, so their producers are left out.
    """
    identities: dict[int, list[int]] = {}
    for line in evidence.events:
        if line["event"] == IDENTITY and evidence.producers.get(int(line["producer_id"])) == client.key:
            identities.setdefault(int(line["producer_id"]), []).append(int(line["t_us"]))
    if not identities or written_in_transactions(evidence, client):
        return None
    outages = worker_outages(evidence, KILLED)
    numbers = sorted(number for number, key in evidence.producers.items() if key == client.key)
    workers = dict(zip(numbers, client.workers("produce"), strict=False))
    restarts = []
    for producer_id, times_us in identities.items():
        ends_us = [end for _, end in outages.get(workers.get(producer_id, ""), ())]
        for before_us, at_us in pairwise(sorted(times_us)):
            if not any(before_us < end_us <= at_us for end_us in ends_us):
                restarts.append(at_us)
    return sorted(restarts)


def _unobserved(
    evidence: Evidence,
    selection: Selection,
    client: Client,
    each: EachWord | None,
    observed: Sequence[Reading],
    starts: Sequence[int | None],
) -> list[Reading]:
    """Return an empty reading (n = 0) for each expected subject and time slot without observations."""
    # racks, brokers and epochs come and go with the leaders, so only partitions and producers are expected
    expected: Iterable[str] = () if each else ("",)
    if each == "partition":
        expected = partitions(evidence, client.topics.get(selection.about.side, ()))
    elif each == "producer" and selection.about.side == "produce":
        expected = [f"producer={number}" for number, key in evidence.producers.items() if key == client.key]
    present = {(reading.subject, reading.start_us) for reading in observed}
    subjects = {reading.subject for reading in observed} | {*expected}
    return [
        Reading(0, subject=subject, start_us=start)
        for subject in sorted(subjects - {UNKNOWN})
        for start in starts
        if (subject, start) not in present
    ]


def _slot_starts(selection: Selection, spans: Sequence[Interval]) -> list[int | None]:
    """Return the start of each complete time slot in ``spans``; [None] if the SLO does not divide time into slots."""
    every_us = selection.every_us
    if every_us is None:
        return [None]
    return [at_us for start, end in spans for at_us in range(start, end - every_us + 1, every_us)]


def partitions(evidence: Evidence, topics: Collection[str]) -> list[str]:
    """Return the names ``orders/0``, ``orders/1`` … of the topics' partitions, as recorded by the run."""
    recorded = [row for row in evidence.run.get("topics", ()) if row.get("name") in topics]
    return [f"{row['name']}/{number}" for row in recorded for number in range(row.get("partitions", 0))]

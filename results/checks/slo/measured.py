"""Judgement of SLOs on a measured value (``produce.latency p95 < 250ms in fault``), with limits, texts and checks.

An SLO on a measured value has one reading (the value, ``readings.py``) per subject (partition, broker, …) and slot of
time. Each reading is compared with its limit, a fixed value or a multiple of another reading, in exact arithmetic.

=================  ==============================================================================================
too few values     no status if a reading has fewer values than it needs
nothing to         INCONCLUSIVE if the reading to compare with is censored or zero, so that the limit is unknown
compare with
with confidence    PASS if the whole band is within the limit (of a multiple, the lower end of its band), FAIL if all
                   of it is outside (the upper end), else INCONCLUSIVE
all censored       INCONCLUSIVE if the value is within the limit: without any success a gap may last longer
otherwise          PASS or FAIL by the value; a censored value is over any limit
=================  ==============================================================================================

The worst reading decides the check of an SLO. A failed reading with enough values fails the check, even if other
readings lack values. For a PASS every reading needs enough values and must be within the limit. Records of unknown
subject (such as partition) may belong to any subject, so a PASS that such records could overturn is INCONCLUSIVE.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from aftershock.results.checks.slo.readings import UNKNOWN, readings
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.hosts import apart_us
from aftershock.results.evidence.phases import RUN
from aftershock.results.model.check import Check, Status, holds
from aftershock.results.model.facts import Facts
from aftershock.results.slo import METRICS, Measure, Multiple, Selection
from aftershock.results.slo.metrics import UNITS_READ_US, Reading, moment, number, percent, time

LOOK = "see the latency plot and the faults' bands in report.html"
_TIMES_MORE_MAX = 1000


def banded(selection: Selection, reading: Reading) -> str:
    """Return the text of a quantile's confidence band, which covers sampling error only."""
    low, high = reading.band or (None, None)
    ends = ("?" if end is None else selection.about.shown(Fraction(end)) for end in (low, high))
    return f"between {' and '.join(ends)} (sampling error only)"


def reading_name(selection: Selection, reading: Reading) -> str:
    """Return the subject and time slot of a reading, as in ``orders/3 in the 1s from 17.0 s``, or empty text."""
    slot = ""
    if reading.start_us is not None and selection.every_us is not None:
        slot = f"the {time(selection.every_us, UNITS_READ_US)} from {moment(reading.start_us)}"
    return " in ".join(word for word in (reading.subject, slot) if word)


def lengthened(selection: Selection, reading: Reading, minimum: int) -> str:
    """Return advice on how long the window, or a time slot, must be to contain ``minimum`` values."""
    more = "" if selection.about.sampled else " or raise the rate"
    enough_s = math.ceil(Fraction(reading.length_us * minimum, reading.n * 1_000_000))
    if selection.every_us is not None:
        return f"use slots of {enough_s}s{more}"
    window = selection.window or RUN
    part = "the fault" if window.startswith("fault") else "the run" if window == RUN else f"timing.{window}"
    return f"lengthen {part} to {enough_s}s{more}"


@dataclass(frozen=True)
class Pair:
    """Reading of an SLO; if the SLO's limit is ``2 * p99 in steady``, ``baseline`` is the reading of that p99.

    There is no ``limit`` if ``baseline`` has no value, and no ``status`` if a reading has too few values.
    """

    reading: Reading
    baseline: Reading | None
    limit: Fraction | None
    status: Status | None


def pairs(slo: Measure, own: Sequence[Reading], baselines: Sequence[Reading]) -> Iterator[Pair]:
    """Yield each reading with its limit; the limit ``2 * p99`` multiplies the p99 of the same subject's baseline."""
    by_subject = {reading.subject: reading for reading in baselines}
    for reading in own:
        enough = reading.n >= slo.needs_of(slo.of)
        if not isinstance(slo.limit, Multiple):
            limit = Fraction(slo.limit)
            yield Pair(reading, None, limit, _status(slo, reading, limit, limit, limit) if enough else None)
            continue
        baseline, factor = by_subject.get(reading.subject, Reading(0)), Fraction(slo.limit.factor)
        multiple = factor * baseline.value if baseline.value else None
        if not enough or baseline.n < slo.needs_of(slo.limit.of):
            status = None
        elif multiple is None:
            status = Status.INCONCLUSIVE
        else:
            low, high = (None if end is None else factor * end for end in baseline.band or (None, None))
            status = _status(slo, reading, multiple, low, high)
        yield Pair(reading, baseline, multiple, status)


def _status(slo: Measure, reading: Reading, limit: Fraction, low: Fraction | None, high: Fraction | None) -> Status:
    """Compare a reading with its limit; ``low`` and ``high`` are the ends of the limit's confidence band."""
    if slo.confidence is None:
        within = reading.value is not None and holds(reading.value, slo.op, limit)
        if within and reading.censored == reading.n:
            return Status.INCONCLUSIVE
        return Status.PASS if within else Status.FAIL
    bottom, top = reading.band or (None, None)
    if low is not None and top is not None and holds(top, slo.op, low):
        return Status.PASS
    over = reading.value is None if bottom is None else high is not None and not holds(bottom, slo.op, high)
    return Status.FAIL if over else Status.INCONCLUSIVE


def worst(candidates: Sequence[Pair], op: str) -> Pair:
    """Return the reading that decides an SLO, the worst in the order FAIL, too few values, INCONCLUSIVE, PASS."""

    def badness(pair: Pair) -> tuple[bool, Fraction]:
        value = pair.reading.value
        if value is None:
            return (True, Fraction(0))
        excess = value / pair.limit if pair.limit else value
        return (False, excess if op in ("<", "<=") else -excess)

    for status in (Status.FAIL, None, Status.INCONCLUSIVE, Status.PASS):
        same = [pair for pair in candidates if pair.status is status]
        if same and status is None:
            return min(same, key=lambda pair: min(side.n for side in (pair.reading, pair.baseline) if side))
        if same:
            return max(same, key=badness)
    raise ValueError("worst() got an empty list of readings; pass an empty Reading if nothing was measured")


def measured(evidence: Evidence, facts: Facts, empty: Check, slo: Measure, clients: tuple[Client, Client]) -> Check:
    """Judge an SLO on a measured value for the first of ``clients``, and return the check.

    In the SLO's limit ``N * p99 of …`` the p99 is that of the second client.
    """
    confidence = None if slo.confidence is None else float(slo.confidence)
    sides = [
        readings(evidence, facts, selection, client, slo.each, confidence)
        for selection, client in zip(slo.selections, clients, strict=False)
    ]
    own, baselines = sides[0], sides[1] if len(sides) > 1 else []
    about = slo.of.about
    of_subjects = [reading for reading in own if reading.subject != UNKNOWN]
    unknown = sum(reading.n for reading in own if reading.subject == UNKNOWN)
    if unknown and not of_subjects:
        # the client does not report the subject: librdkafka does not say which broker took a record
        why = f"none of {unknown} {about.counted} has a known {slo.each}"
        remedy = f"use `client: reference`, which reports the {slo.each}"
        if slo.each == "member":
            remedy = "let the client report `assigned` and `revoked`"
        advice = f"{remedy}, or remove 'for each {slo.each}'"
        return replace(empty, n=unknown, unit=about.shown_unit, why=why, next=advice)
    candidates = list(pairs(slo, of_subjects or [Reading(0)], baselines))
    decisive = worst(candidates, slo.op)
    check = _of_pair(empty, slo, decisive)

    prefix, suffix = reading_name(slo.of, decisive.reading), ""
    if prefix and len(candidates) > 1:
        noun = "slots" if slo.of.every_us is not None else f"{slo.each}s"
        failed = sum(pair.status is Status.FAIL for pair in candidates) or "none"
        rank = "fewest values in" if decisive.status is None else "worst"
        prefix = f"{failed} of {len(candidates)} {noun} violate the SLO, {rank} {prefix}"
    service = f"{slo.side}.service"
    plain = not (slo.each or slo.of.every_us or isinstance(slo.limit, Multiple))
    if decisive.status is not None and plain and slo.of.metric == f"{slo.side}.latency" and service in METRICS:
        # the same quantile from the actual send: the difference is the time in the client's queue
        selection = replace(slo.of, metric=service)
        (reading,) = readings(evidence, facts, selection, clients[0])
        if reading.n >= selection.needs():
            suffix = f"; measured from the actual send: {about.shown(reading.value)}"
    if slo.each == "member" and len({reading.subject for reading in of_subjects}) > 1:
        suffix = f"; {_by_member(slo, of_subjects)}"
    check = replace(check, why=(f"{prefix}: " if prefix else "") + check.why + suffix)
    if crosses_clocks(slo):
        factor = float(slo.limit.factor) if isinstance(slo.limit, Multiple) else 0.0
        distances = [(pair.status, _distance_us(pair, factor)) for pair in candidates]
        check = decided_by_clocks(evidence, check, distances, factor)

    if not unknown or check.status is not Status.PASS:
        return check
    if slo.each == "member":
        why = f"{check.why}; in {unknown} seconds, partitions with lag had no owner, nor got one until the load ended"
        advice = "see the owners of the partitions in report.html, or limit the lag of the whole group"
        return replace(check, status=Status.INCONCLUSIVE, why=why, next=advice)
    # failures of unknown subject may belong to any subject; of a quantile their effect can't be computed
    for pair in candidates:
        worse = replace(pair.reading, n=pair.reading.n + unknown, censored=pair.reading.censored + unknown)
        value = about.value(slo.of, worse) if about.unit == "share" else None
        if value is None or pair.limit is None or not holds(value, slo.op, pair.limit):
            why = f"{check.why}; {unknown} failed {about.counted} belong to an unknown {slo.each}, possibly to this one"
            advice = f"find out why failed {about.counted} in outcomes/ have no {slo.each}"
            return replace(check, status=Status.INCONCLUSIVE, why=why, next=advice)
    return check


_ONE_CLOCK = ("latency", "service")


def crosses_clocks(slo: Measure) -> bool:
    """Return True if an SLO limits times between several clients.

    The latency of a producer or committer is a difference of two times of one process.
    """
    abouts = [of.about for of in slo.selections]
    own = [about.source in _ONE_CLOCK and about.side in ("produce", "commit") for about in abouts]
    return any(about.unit == "time" and not alone for about, alone in zip(abouts, own, strict=True))


def decided_by_clocks(
    evidence: Evidence, check: Check, distances_us: Sequence[tuple[Status | None, float | None]], factor: float = 0.0
) -> Check:
    """Make a check INCONCLUSIVE if clocks of several hosts may be further apart than values are from their limits.

    ``distances_us`` has the status of each value that the check judges, and its distance, None if it has none; a limit
    is ``factor`` times another time, or a constant. One certain FAIL is enough.
    """
    apart = apart_us(evidence.run) * (1 + factor)
    if not apart or check.status not in (Status.PASS, Status.FAIL):
        return check
    same = [distance for status, distance in distances_us if status is check.status and distance is not None]
    open_ = [distance <= apart for distance in same]
    if not (any(open_) if check.status is Status.PASS else open_ and all(open_)):
        return check
    why = f"{check.why}; the clocks of the clients' hosts may be {apart / 1e3:.3f} ms apart, so that decides nothing"
    advice = "give the limit more room, or run the clients on one host"
    return replace(check, status=Status.INCONCLUSIVE, why=why, next=advice)


def _distance_us(pair: Pair, factor: float) -> float | None:
    """Return how far a value, or an end of its band, is from its limit; None if there is none."""
    band = pair.baseline.band if pair.baseline else None
    values = [float(value) for value in (pair.reading.value, *(pair.reading.band or ())) if value is not None]
    limits = [factor * end for end in band or () if end is not None]
    limits += [] if pair.limit is None else [float(pair.limit)]
    return min((abs(value - limit) for value in values for limit in limits), default=None)


def _by_member(slo: Measure, readings: Sequence[Reading]) -> str:
    """Return the figure of each member of a group, of several time slots the worst, as in ``member=1: 3 records``."""
    figures: dict[str, Fraction] = {}
    for reading in readings:
        if reading.value is not None:
            figures[reading.subject] = max(reading.value, figures.get(reading.subject, reading.value))
    return ", ".join(f"{name}: {slo.of.about.shown(value)}" for name, value in figures.items())


def _of_pair(empty: Check, slo: Measure, pair: Pair) -> Check:
    own, baseline, about = pair.reading, pair.baseline, slo.of.about
    sizes = [reading.n for reading in (own, baseline) if reading is not None]
    # n and minimum are those of the reading with the least surplus of values
    n, minimum = min(zip(sizes, map(slo.needs_of, slo.selections), strict=True), key=lambda side: Fraction(*side))
    check = replace(
        empty,
        subject=f"{empty.subject} {own.subject}".rstrip(),
        n=n,
        censored=own.censored + (baseline.censored if baseline else 0),
        minimum=minimum,
        unit=about.shown_unit,
        threshold=None if pair.limit is None else about.scaled(pair.limit),
    )
    if pair.status is None:
        return _too_few(check, slo, pair)
    if slo.compares_arms and isinstance(slo.limit, Multiple):
        ratio = float(own.value / baseline.value) if own.value is not None and baseline and baseline.value else None
        check = replace(check, observed=ratio, threshold=float(slo.limit.factor), unit="ratio")
    else:
        check = replace(check, observed=None if own.value is None else about.scaled(own.value))
    advice = None if pair.status is Status.PASS else LOOK
    if pair.limit is None:
        advice = (
            "find out why the measurement on the SLO's right side has no value, or write a fixed limit instead of "
            "a multiple"
        )
    elif pair.status is Status.INCONCLUSIVE and slo.confidence is None:
        advice = (
            "lower the limit below the length of the window: nothing succeeded in the window, so any length may follow"
        )
    elif pair.status is Status.INCONCLUSIVE:
        advice = _more_records(slo, own, pair.limit)
    return replace(check, status=pair.status, why=_why(slo, pair), next=advice)


def _too_few(check: Check, slo: Measure, pair: Pair) -> Check:
    reading, selection = pair.reading, slo.of
    if pair.baseline and isinstance(slo.limit, Multiple) and reading.n >= slo.needs_of(selection):
        reading, selection = pair.baseline, slo.limit.of
    minimum, noun, name = slo.needs_of(selection), selection.about.counted, reading_name(selection, reading)
    if reading.n:
        subject = selection.spread or selection.head()
        if isinstance(slo.limit, Decimal) and selection.about.unit == "share" and not selection.target:
            subject = percent(slo.limit)
        why = f"too few {noun}: {reading.n} of {minimum}" + (f" ({name})" if name else "")
        of_name, remedy = f" of {name}" if name else "", lengthened(selection, reading, minimum)
        advice = f"{subject} needs {minimum} {noun}, saw {reading.n}{of_name}: {remedy}"
    else:
        where = f" of {name}" if reading.subject else f" in {name}" if name else ""
        why = f"no {noun[:-1]} was observed{where}"
        advice = f"add traffic for {reading.subject or 'the plan'} in {selection.window_text}"
        if selection.about.source == "stable":
            why = f"{why} in which a leader told the last stable offset of a topic with transactions"
            advice = f"{advice}, in transactions"
        elif selection.about.sampled:
            why = f"{why} in which the end of the topic and the consumer's position are known"
            advice = f"{advice}; check in outcomes/ that the consumer got records, and that log/ has records"
    return replace(check, n=reading.n, minimum=minimum, observed=None, why=why, next=advice)


def _why(slo: Measure, pair: Pair) -> str:
    text = slo.of.about.sentence(slo.of, pair.reading)
    text += f", {banded(slo.of, pair.reading)}" if slo.confidence else ""
    if pair.baseline is None or not isinstance(slo.limit, Multiple):
        return text
    second, factor = slo.limit.of, number(slo.limit.factor)
    if pair.limit is None:
        state = "zero" if pair.baseline.value is not None else "censored"
        return f"{text}; {second.head()} in {second.window_text} is {state}, so there is nothing to compare with"
    arm = f" for {second.arm}" if slo.compares_arms else ""
    band = f", {banded(second, pair.baseline)}" if slo.confidence else ""
    name = second.spread if second.metric == slo.of.metric and second.spread else second.head()
    compared = f"{name} in {second.window_text}{arm} is {second.about.shown(pair.baseline.value)}{band}"
    return f"{text}; {compared}" if slo.compares_arms else f"{text}; {factor} x {compared}"


def _more_records(slo: Measure, reading: Reading, limit: Fraction) -> str:
    """Return advice on how many records an SLO needs; its confidence band shrinks with the root of their number."""
    value, (low, high) = reading.value, reading.band or (None, None)
    end = high if value is not None and value <= limit else low
    if value is None or end is None or value == limit:
        return (
            "raise the rate or lengthen the window: the confidence band is unbounded, or the value is exactly at the "
            "limit of the SLO"
        )
    times = (Fraction(end) - value) / (limit - value)
    if times > _TIMES_MORE_MAX:
        return (
            "the measured quantile is too close to the SLO's limit for a run of any length to tell which is greater; "
            "change the limit"
        )
    needed = math.ceil(reading.n * times * times)
    return f"about {needed - reading.n} more records are needed: {lengthened(slo.of, reading, needed)}"

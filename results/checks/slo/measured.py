"""Judgement of a measure (``produce.latency p95 < 250ms in fault``): figures in words, limits, and the resulting check.

A measure has one reading (``readings.py``) per subject (partition, broker, …) and slot of time. Each reading is
compared with its limit, a value or a multiple of another reading, in exact arithmetic:

=================  ==============================================================================================
too few values     one of the readings has fewer values than it needs: it has no status
nothing to         the other reading is censored or zero, so no multiple of it is known: INCONCLUSIVE
compare with
with confidence    PASS if the whole band is within the limit (of a multiple: the lower end of its band), FAIL if all
                   of it is outside (the upper end), else INCONCLUSIVE
otherwise          PASS or FAIL by the value; a censored value is over any limit
=================  ==============================================================================================

The worst reading decides the check and is reported: a failed reading with enough values fails the check, even if other
readings lack values. To pass, every reading needs enough values and must be within its limit. Records of unknown
subject may belong to any subject, so a PASS that they could overturn is INCONCLUSIVE.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from aftershock.results.checks.check import Check, Status, holds
from aftershock.results.checks.slo.readings import UNKNOWN, Reading, readings, topic_of
from aftershock.results.evidence.evidence import Client, Evidence, Objective
from aftershock.results.evidence.phases import RUN, length_s, windows_of
from aftershock.results.measure.facts import Facts
from aftershock.results.slo import METRICS, Measure, Multiple, Selection, Side, Slo
from aftershock.results.slo.model import number, percent, time

_IN_SECONDS = (".gap", ".unavailable")


def unit_of(selection: Selection) -> tuple[str, Fraction]:
    """Return the unit in which values are shown, and its size in base units (microseconds, shares of 1)."""
    unit = selection.about.unit
    if unit == "time":
        return ("s", Fraction(1_000_000)) if selection.metric.endswith(_IN_SECONDS) else ("ms", Fraction(1_000))
    return ("%", Fraction(1, 100)) if unit == "share" else ("records", Fraction(1))


def shown(selection: Selection, value: Fraction) -> float:
    """Return the value in its display unit."""
    return float(value / unit_of(selection)[1])


def figure(selection: Selection, value: Fraction | None) -> str:
    """Return ``41.7 ms``, or ``never`` for a censored value."""
    return "never" if value is None else f"{shown(selection, value):g} {unit_of(selection)[0]}"


def observation(selection: Selection, reading: Reading) -> str:
    """Return the reading as a sentence: ``p95 in fault is 41.7 ms``."""
    noun, failed, n = selection.about.counted, reading.censored, reading.n
    value_s = float(reading.value or 0) / 1e6
    if selection.target is not None:
        used = f"{float((reading.value or Fraction(0)) * 100):.4g}%"
        return f"{failed} of {n} {noun} failed: {used} of the error budget of {percent(1 - selection.target)}"
    if selection.about.unit == "share":
        return f"{n - failed} of {n} {noun} were acknowledged"
    if selection.metric.endswith(".gap"):
        none = f": all {failed} {noun} failed" if failed else ""
        return f"the longest time without a success was {value_s:.3f} s{none}"
    if selection.metric.endswith(".unavailable"):
        return f"no progress for {value_s:.3f} s in all, in stalls of a second or more"
    if reading.value is None:
        return f"{selection.spread} is censored: {failed} of {n} never succeeded"
    return f"{selection.spread} in {window_name(selection.window)} is {figure(selection, reading.value)}"


def banded(selection: Selection, reading: Reading) -> str:
    """Return the confidence band of the quantile, which covers sampling error only."""
    low, high = reading.band or (None, None)
    ends = ("?" if end is None else figure(selection, Fraction(end)) for end in (low, high))
    return f"between {' and '.join(ends)} (sampling error only)"


def reading_name(selection: Selection, reading: Reading) -> str:
    """Return ``orders/3``, ``the 1s from 17.0 s``, or both; an empty text if there is only one reading."""
    slot = ""
    if reading.start_us is not None and selection.every_us is not None:
        slot = f"the {time(selection.every_us)} from {reading.start_us / 1e6:.1f} s"
    return " in ".join(word for word in (reading.subject, slot) if word)


def window_name(window: str | None) -> str:
    """Return the window as part of a sentence."""
    return window or "the time after warm-up"


def too_few(evidence: Evidence, selection: Selection, reading: Reading, minimum: int, what: str) -> tuple[str, str]:
    """Return ``why`` and ``next`` if ``what`` needs more values than were observed."""
    noun, name = selection.about.counted, reading_name(selection, reading)
    if not reading.n:
        where = f" of {name}" if reading.subject else f" in {name}" if name else ""
        advice = f"add traffic for {reading.subject or 'the plan'} in {window_name(selection.window)}"
        return f"no {noun[:-1]} was observed{where}", advice
    why = f"too few {noun}: {reading.n} of {minimum}" + (f" ({name})" if name else "")
    advice = lengthened(evidence, selection, minimum, reading.n)
    return why, f"{what} needs {minimum} {noun}, saw {reading.n}{f' of {name}' if name else ''}: {advice}"


def lengthened(evidence: Evidence, selection: Selection, minimum: int, n: int) -> str:
    """Advise how long the window or its slots must be to hold ``minimum`` values, given that they held ``n``."""
    more = "" if selection.about.sampled else " or raise the rate"
    if selection.every_us is not None:
        return f"use slots of {math.ceil(selection.every_us * minimum / n / 1e6)}s{more}"
    window = selection.window or RUN
    have_s = length_s(window, windows_of(evidence.phases))
    part = "the fault" if window.startswith("fault") else "the run" if window == RUN else f"timing.{window}"
    return f"lengthen {part} to {math.ceil(have_s * minimum / n)}s{more}"


@dataclass(frozen=True)
class Pair:
    """Reading and, if its limit is a multiple, the reading it is compared with.

    ``limit`` is the resulting limit, None if it is unknown. ``status`` is None if there are too few values.
    """

    reading: Reading
    other: Reading | None
    limit: Fraction | None
    status: Status | None

    @property
    def excess(self) -> Fraction | None:
        """The reading divided by its limit; None for a censored reading."""
        if self.reading.value is None or not self.limit:
            return self.reading.value
        return self.reading.value / self.limit

    @property
    def n(self) -> int:
        """Number of values of the reading with fewer values."""
        return self.reading.n if self.other is None else min(self.reading.n, self.other.n)


def pairs(slo: Measure, own: Sequence[Reading], others: Sequence[Reading]) -> Iterator[Pair]:
    """Yield each reading with its limit. The limit of a multiple comes from the other reading of the same subject."""
    by_subject = {reading.subject: reading for reading in others}
    for reading in own:
        enough = reading.n >= slo.needs_of(slo.of)
        if not isinstance(slo.limit, Multiple):
            limit = Fraction(slo.limit)
            yield Pair(reading, None, limit, _status(slo, reading, limit, limit, limit) if enough else None)
            continue
        other, factor = by_subject.get(reading.subject, Reading(0, None)), Fraction(slo.limit.factor)
        multiple = factor * other.value if other.value else None
        if not enough or other.n < slo.needs_of(slo.limit.of):
            status = None
        elif multiple is None:
            status = Status.INCONCLUSIVE
        else:
            low, high = (None if end is None else factor * end for end in other.band or (None, None))
            status = _status(slo, reading, multiple, low, high)
        yield Pair(reading, other, multiple, status)


def _status(slo: Measure, reading: Reading, limit: Fraction, low: Fraction | None, high: Fraction | None) -> Status:
    """Compare a reading with its limit; ``low`` and ``high`` are the ends of the limit's confidence band."""
    if slo.confidence is None:
        within = reading.value is not None and holds(reading.value, slo.op, limit)
        return Status.PASS if within else Status.FAIL
    bottom, top = reading.band or (None, None)
    if low is not None and top is not None and holds(top, slo.op, low):
        return Status.PASS
    over = reading.value is None if bottom is None else high is not None and not holds(bottom, slo.op, high)
    return Status.FAIL if over else Status.INCONCLUSIVE


def worst(candidates: Sequence[Pair], op: str) -> Pair:
    """Return the pair that decides: a failed pair, else one that lacks values, an undecided one, or the tightest."""
    for status in (Status.FAIL, None, Status.INCONCLUSIVE, Status.PASS):
        same = [pair for pair in candidates if pair.status is status]
        if same and status is None:
            return min(same, key=lambda pair: pair.n)
        if same:
            return max(same, key=lambda pair: _badness(pair, op))
    raise ValueError("there must be at least one reading; it may be empty")


def _badness(pair: Pair, op: str) -> tuple[bool, Fraction]:
    excess = pair.excess
    if excess is None:
        return (True, Fraction(0))
    return (False, excess if op in ("<", "<=") else -excess)


LOOK = "see the latency plot and the faults' bands in report.html"


def clients_of(evidence: Evidence, side: Side, arm: str | None) -> list[Client]:
    """Return the clients that have the side, of one arm or (None) of all."""
    return [client for client in evidence.clients if topic_of(client, side) is not None and arm in (None, client.arm)]


def blank(objective: Objective, slo: Slo) -> Check:
    """Return the check of an SLO before anything is judged."""
    return Check(
        id=slo.check_id(),
        kind="compare" if isinstance(slo, Measure) and slo.compares_arms else "slo",
        subject="all arms",
        phase=slo.of.window if isinstance(slo, Measure) else None,
        status=Status.INCONCLUSIVE,
        n=0,
        minimum=slo.needs(),
        unit="ms",
        why="",
        at=objective.at,
        gate=objective.gate,
    )


def decided(check: Check, observed: float | None, op: str, why: str) -> Check:
    """Return the check with PASS or FAIL; ``observed`` None (slower than any value) exceeds every threshold."""
    passed = observed is not None and check.threshold is not None and holds(observed, op, check.threshold)
    status = Status.PASS if passed else Status.FAIL
    return replace(check, status=status, observed=observed, why=why, next=None if passed else LOOK)


_TIMES_MORE_MAX = 1000


def measured(evidence: Evidence, facts: Facts, empty: Check, slo: Measure, clients: tuple[Client, Client]) -> Check:
    """Judge an SLO for the first of ``clients`` and return the check.

    In ``N * p99 of …`` the second client provides the p99.
    """
    confidence = None if slo.confidence is None else float(slo.confidence)
    sides = [
        readings(evidence, facts, selection, client, slo.each, confidence)
        for selection, client in zip(slo.selections, clients, strict=False)
    ]
    own, others = sides[0], sides[1] if len(sides) > 1 else []
    known = [reading for reading in own if reading.subject != UNKNOWN]
    unknown = sum(reading.n for reading in own if reading.subject == UNKNOWN)
    if unknown and not known:
        # the client does not report the subject: librdkafka does not say which broker took a record
        why = f"none of {unknown} {slo.of.about.counted} has a known {slo.each}"
        advice = f"use `client: reference`, which reports it, or remove 'for each {slo.each}'"
        return replace(empty, n=unknown, unit=unit_of(slo.of)[0], why=why, next=advice)
    candidates = list(pairs(slo, known or [Reading(0, None)], others))
    decisive = worst(candidates, slo.op)
    check = _of_pair(evidence, empty, slo, decisive)
    service = _service_time(evidence, facts, slo, clients[0]) if decisive.status is not None else ""
    check = replace(check, why=_rank(slo, candidates, decisive) + check.why + service)
    if unknown and check.status is Status.PASS and not all(_holds_with(slo, pair, unknown) for pair in candidates):
        why = f"{check.why}; {unknown} {slo.of.about.counted} have no known {slo.each}, and may belong to any"
        advice = f"find out from outcomes/ why they have no {slo.each}"
        return replace(check, status=Status.INCONCLUSIVE, why=why, next=advice)
    return check


def _service_time(evidence: Evidence, facts: Facts, slo: Measure, client: Client) -> str:
    """Return the same quantile from the actual send, if known: the difference is the time in the client's queue."""
    service, plain = f"{slo.side}.service", not (slo.each or slo.of.every_us or isinstance(slo.limit, Multiple))
    if slo.of.metric != f"{slo.side}.latency" or service not in METRICS or not plain:
        return ""
    selection = replace(slo.of, metric=service)
    (reading,) = readings(evidence, facts, selection, client)
    return f"; from the actual send {figure(selection, reading.value)}" if reading.n >= selection.needs() else ""


def _of_pair(evidence: Evidence, empty: Check, slo: Measure, pair: Pair) -> Check:
    """Return the check for a single pair of readings."""
    own, other = pair.reading, pair.other
    sizes = [reading.n for reading in (own, other) if reading is not None]
    # of two readings, n and minimum are those of the one that has the least to spare
    n, minimum = min(zip(sizes, map(slo.needs_of, slo.selections), strict=True), key=lambda side: Fraction(*side))
    check = replace(
        empty,
        subject=f"{empty.subject} {own.subject}".rstrip(),
        n=n,
        censored=own.censored + (other.censored if other else 0),
        minimum=minimum,
        unit=unit_of(slo.of)[0],
        threshold=None if pair.limit is None else shown(slo.of, pair.limit),
    )
    if pair.status is None:
        return _too_few(evidence, check, slo, pair)
    if slo.compares_arms and isinstance(slo.limit, Multiple):
        ratio = float(own.value / other.value) if own.value is not None and other and other.value else None
        check = replace(check, observed=ratio, threshold=float(slo.limit.factor), unit="ratio")
    else:
        check = replace(check, observed=None if own.value is None else shown(slo.of, own.value))
    advice = None if pair.status is Status.PASS else LOOK
    if pair.limit is None:
        advice = "find out why the other selection failed, or replace the multiple by a value"
    elif pair.status is Status.INCONCLUSIVE:
        advice = _more_records(evidence, slo, pair)
    return replace(check, status=pair.status, why=_why(slo, pair), next=advice)


def _too_few(evidence: Evidence, check: Check, slo: Measure, pair: Pair) -> Check:
    """Report the reading that lacks values."""
    reading, selection = pair.reading, slo.of
    if pair.other and isinstance(slo.limit, Multiple) and reading.n >= slo.needs_of(selection):
        reading, selection = pair.other, slo.limit.of
    if isinstance(slo.limit, Multiple) or selection.about.unit != "share" or selection.target:
        what = selection.spread or selection.head()
    else:
        what = percent(slo.limit)
    minimum = slo.needs_of(selection)
    why, advice = too_few(evidence, selection, reading, minimum, what)
    return replace(check, n=reading.n, minimum=minimum, observed=None, why=why, next=advice)


def _why(slo: Measure, pair: Pair) -> str:
    text = observation(slo.of, pair.reading) + (f", {banded(slo.of, pair.reading)}" if slo.confidence else "")
    if pair.other is None or not isinstance(slo.limit, Multiple):
        return text
    other, factor = slo.limit.of, number(slo.limit.factor)
    if pair.limit is None:
        state = "zero" if pair.other.value is not None else "censored"
        return f"{text}; {other.head()} in {window_name(other.window)} is {state}, so there is nothing to compare with"
    arm = f" for {other.arm}" if slo.compares_arms else ""
    band = f", {banded(other, pair.other)}" if slo.confidence else ""
    name = other.spread if other.metric == slo.of.metric and other.spread else other.head()
    compared = f"{name} in {window_name(other.window)}{arm} is {figure(other, pair.other.value)}{band}"
    return f"{text}; {compared}" if slo.compares_arms else f"{text}; {factor} x {compared}"


def _rank(slo: Measure, candidates: Sequence[Pair], decisive: Pair) -> str:
    """Return ``2 of 6 partitions exceed the limit, worst orders/3: ``; an empty text for the only reading."""
    name = reading_name(slo.of, decisive.reading)
    if not name:
        return ""
    if len(candidates) == 1:
        return f"{name}: "
    noun = "slots" if slo.of.every_us is not None else f"{slo.each}s"
    failed = sum(pair.status is Status.FAIL for pair in candidates)
    rank = "fewest values in" if decisive.status is None else "worst"
    return f"{failed or 'none'} of {len(candidates)} {noun} violate the SLO, {rank} {name}: "


def _holds_with(slo: Measure, pair: Pair, failed: int) -> bool:
    """Return whether a share passes with this many more failures.

    Returns False for quantiles, for which this can't be computed.
    """
    if slo.of.about.unit != "share" or pair.limit is None:
        return False
    n, bad = pair.reading.n + failed, pair.reading.censored + failed
    budget = None if slo.of.target is None else Fraction(bad, n) / (1 - Fraction(slo.of.target))
    return holds(Fraction(n - bad, n) if budget is None else budget, slo.op, pair.limit)


def _more_records(evidence: Evidence, slo: Measure, pair: Pair) -> str:
    """Advise how many more records are needed; the confidence band shrinks with the square root of their number."""
    n, value, (low, high) = pair.reading.n, pair.reading.value, pair.reading.band or (None, None)
    end = high if value is not None and pair.limit is not None and value <= pair.limit else low
    if value is None or pair.limit is None or end is None or value == pair.limit:
        return "raise the rate or lengthen the window: the band is unbounded, or the value is exactly at the limit"
    times = (Fraction(end) - value) / (pair.limit - value)
    if times > _TIMES_MORE_MAX:
        return "the quantile is so close to the limit that no run could tell them apart; change the limit"
    needed = int(-(-n * times * times // 1))
    return f"about {needed - n} more records are needed: {lengthened(evidence, slo.of, needed, n)}"

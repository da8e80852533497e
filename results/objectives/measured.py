"""Judges a measure for one client: every subject and slot of it by itself, and the worst of them is what is told.

Rules: one that fails with enough values fails the check, however little is known of the others; else each of them
must be fed, and within its limit. Records of no known subject may be anyone's: they leave open what would pass.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from aftershock.results.check import Check, Status, holds
from aftershock.results.evidence import Client, Evidence
from aftershock.results.facts import Facts
from aftershock.results.objectives.judging import LOOK
from aftershock.results.objectives.pairs import Pair, pairs, worst
from aftershock.results.objectives.readings import UNKNOWN, Reading, readings
from aftershock.results.objectives.words import (
    banded,
    figure,
    lengthened,
    named,
    said,
    shown,
    too_few,
    unit_of,
    window_name,
)
from aftershock.results.slo import METRICS, Measure, Multiple, Selection
from aftershock.results.slo.figures import number, percent

_TIMES_MORE_MAX = 1000


def measured(evidence: Evidence, facts: Facts, empty: Check, slo: Measure, clients: tuple[Client, Client]) -> Check:
    """The check of a client; the second of ``clients`` is whose the other selection of a multiple is."""
    confidence = None if slo.confidence is None else float(slo.confidence)
    sides = [
        readings(evidence, facts, one, client, slo.each, confidence)
        for one, client in zip(slo.selections, clients, strict=False)
    ]
    ours, others = sides[0], sides[1] if len(sides) > 1 else []
    known = [one for one in ours if one.subject != UNKNOWN]
    unknown = sum(one.n for one in ours if one.subject == UNKNOWN)
    if unknown and not known:
        return _untold(empty, slo, unknown)
    found = list(pairs(slo, known or [Reading(0, None)], others))
    decisive = worst(found, slo.op)
    check = _of_pair(evidence, empty, slo, decisive)
    beside = _beside(evidence, facts, slo, clients[0]) if decisive.status is not None else ""
    check = replace(check, why=_counted(slo, found, decisive) + check.why + beside)
    return _unplaced(check, slo, found, unknown) if unknown and check.status is Status.PASS else check


def _untold(empty: Check, slo: Measure, n: int) -> Check:
    """Where the client does not tell what is asked: librdkafka says of no record which broker took it."""
    why = f"none of {n} {slo.of.about.counted} tells its {slo.each}"
    advice = f"use `client: reference`, which tells it, or take 'for each {slo.each}' away"
    return replace(empty, n=n, unit=unit_of(slo.of)[0], why=why, next=advice)


def _beside(evidence: Evidence, facts: Facts, slo: Measure, client: Client) -> str:
    """The same by service time, where there is one: what of the latency is the client's own queue."""
    service, plain = f"{slo.side}.service", not (slo.each or slo.of.every_us or isinstance(slo.limit, Multiple))
    if slo.of.metric != f"{slo.side}.latency" or service not in METRICS or not plain:
        return ""
    selection = replace(slo.of, metric=service)
    (reading,) = readings(evidence, facts, selection, client)
    return f"; from the actual send {figure(selection, reading.value)}" if reading.n >= selection.needs() else ""


def _of_pair(evidence: Evidence, empty: Check, slo: Measure, pair: Pair) -> Check:
    ours, other = pair.ours, pair.other
    n, minimum = _tightest(slo, pair)
    check = replace(
        empty,
        subject=f"{empty.subject} {ours.subject}".rstrip(),
        n=n,
        censored=ours.censored + (other.censored if other else 0),
        minimum=minimum,
        unit=unit_of(slo.of)[0],
        threshold=None if pair.limit is None else shown(slo.of, pair.limit),
    )
    if pair.status is None:
        return _few(evidence, check, slo, pair)
    check = _in_figures(check, slo, pair)
    check = replace(check, status=pair.status, why=_why(slo, pair))
    if pair.limit is None:
        return replace(check, next="see why the other selection failed, or give a value in the place of the multiple")
    if pair.status is Status.INCONCLUSIVE:
        return replace(check, next=_more(evidence, slo, pair))
    return replace(check, next=None if pair.status is Status.PASS else LOOK)


def _tightest(slo: Measure, pair: Pair) -> tuple[int, int]:
    """How many of how many needed; of two sides the one that has the least to spare."""
    seen = [one.n for one in (pair.ours, pair.other) if one is not None]
    needed = map(slo.needs_of, slo.selections)
    return min(zip(seen, needed, strict=True), key=lambda side: Fraction(*side))


def _few(evidence: Evidence, check: Check, slo: Measure, pair: Pair) -> Check:
    """The reading that is fed least for what it needs."""
    thin, selection = pair.ours, slo.of
    if pair.other and isinstance(slo.limit, Multiple) and thin.n >= slo.needs_of(selection):
        thin, selection = pair.other, slo.limit.of
    minimum = slo.needs_of(selection)
    why, advice = too_few(evidence, selection, thin, minimum, _needing(slo, selection))
    return replace(check, n=thin.n, minimum=minimum, observed=None, why=why, next=advice)


def _needing(slo: Measure, selection: Selection) -> str:
    if isinstance(slo.limit, Multiple) or selection.about.unit != "share" or selection.target:
        return selection.spread or selection.head()
    return percent(slo.limit)


def _in_figures(check: Check, slo: Measure, pair: Pair) -> Check:
    """What was observed, and the threshold; of two arms the ratio of both."""
    value = pair.ours.value
    if slo.compares_arms and isinstance(slo.limit, Multiple):
        ratio = float(value / pair.other.value) if value is not None and pair.other and pair.other.value else None
        return replace(check, observed=ratio, threshold=float(slo.limit.factor), unit="ratio")
    return replace(check, observed=None if value is None else shown(slo.of, value))


def _why(slo: Measure, pair: Pair) -> str:
    ours = said(slo.of, pair.ours) + (f", {banded(slo.of, pair.ours)}" if slo.confidence else "")
    if pair.other is None or not isinstance(slo.limit, Multiple):
        return ours
    other, times = slo.limit.of, number(slo.limit.factor)
    if pair.limit is None:
        gone = "zero" if pair.other.value is not None else "censored"
        return f"{ours}; {other.head()} in {window_name(other.window)} is {gone}: there is nothing to compare with"
    whose = f" for {other.arm}" if slo.compares_arms else ""
    band = f", {banded(other, pair.other)}" if slo.confidence else ""
    name = other.spread if other.metric == slo.of.metric and other.spread else other.head()
    beside = f"{name} in {window_name(other.window)}{whose} is {figure(other, pair.other.value)}{band}"
    return f"{ours}; {times} x {beside}" if not slo.compares_arms else f"{ours}; {beside}"


def _counted(slo: Measure, found: Sequence[Pair], decisive: Pair) -> str:
    """``2 of 6 partitions are over it, the worst orders/3: ``; nothing where there is but one to judge."""
    which = named(slo.of, decisive.ours)
    if not which:
        return ""
    if len(found) == 1:
        return f"{which}: "
    what = "slots" if slo.of.every_us is not None else f"{slo.each}s"
    broken = sum(one.status is Status.FAIL for one in found)
    return f"{broken or 'none'} of {len(found)} {what} broke it, {_rank(decisive)} {which}: "


def _rank(decisive: Pair) -> str:
    return "the least seen" if decisive.status is None else "the worst"


def _unplaced(check: Check, slo: Measure, found: Sequence[Pair], unknown: int) -> Check:
    """A PASS, as far as records of no known subject leave it standing: each subject with all of them failed."""
    if all(_holds_with(slo, one, unknown) for one in found):
        return check
    why = f"{check.why}; {unknown} {slo.of.about.counted} are of no known {slo.each}, and may be of any"
    return replace(check, status=Status.INCONCLUSIVE, why=why, next=f"see in outcomes/ why they have no {slo.each}")


def _holds_with(slo: Measure, pair: Pair, failed: int) -> bool:
    """Known of shares alone: what more failures would make of a quantile can't be told from the quantile."""
    if slo.of.about.unit != "share" or pair.limit is None:
        return False
    n, bad = pair.ours.n + failed, pair.ours.censored + failed
    budget = None if slo.of.target is None else Fraction(bad, n) / (1 - Fraction(slo.of.target))
    return holds(Fraction(n - bad, n) if budget is None else budget, slo.op, pair.limit)


def _more(evidence: Evidence, slo: Measure, pair: Pair) -> str:
    """How many more records would narrow the band enough: it shrinks with the square root of their number."""
    n, value, (low, high) = pair.ours.n, pair.ours.value, pair.ours.band or (None, None)
    end = high if value is not None and pair.limit is not None and value <= pair.limit else low
    if value is None or pair.limit is None or end is None or value == pair.limit:
        return "raise the rate or lengthen the window: the band reaches past what was seen, or lies on the limit"
    times = (Fraction(end) - value) / (pair.limit - value)
    if times > _TIMES_MORE_MAX:
        return "the quantile is all but at the limit: no run would tell them apart; move the limit"
    wanted = -(-n * times * times // 1)
    return f"about {int(wanted) - n} more records would do: {lengthened(evidence, slo.of, int(wanted), n)}"

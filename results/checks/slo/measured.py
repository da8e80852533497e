"""Readings in words and in the units that people read: a ``why`` says what was seen, a ``next`` what to do about it.

One reading held against its limit: a value, or a multiple of another reading. Exact, in whole numbers and fractions.

=================  ==============================================================================================
too few            either reading has fewer values than it needs: nothing is said of it
nothing to         the other reading is censored or zero: no multiple of it is known
compare with
with confidence    PASS if the whole band is within the limit (of a multiple: the lower end of its band), FAIL if all
                   of it is outside (the upper end), else open
else               PASS or FAIL by the value; one that is censored is over any limit
=================  ==============================================================================================

How any SLO becomes a check: its blank, whose rows it reads, PASS or FAIL by its threshold.

Judges a measure for one client: every subject and slot of it by itself, and the worst of them is what is told.

Rules: one that fails with enough values fails the check, however little is known of the others; else each of them
must be fed, and within its limit. Records of no known subject may be anyone's: they leave open what would pass.
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
    """The unit that its values are shown in, and what it is in the language's own."""
    unit = selection.about.unit
    if unit == "time":
        return ("s", Fraction(1_000_000)) if selection.metric.endswith(_IN_SECONDS) else ("ms", Fraction(1_000))
    return ("%", Fraction(1, 100)) if unit == "share" else ("records", Fraction(1))


def shown(selection: Selection, value: Fraction) -> float:
    """The value in that unit."""
    return float(value / unit_of(selection)[1])


def figure(selection: Selection, value: Fraction | None) -> str:
    """``41.7 ms``; ``never`` for what did not succeed."""
    return "never" if value is None else f"{shown(selection, value):g} {unit_of(selection)[0]}"


def said(selection: Selection, reading: Reading) -> str:
    """``p95 in fault is 41.7 ms``, and the like of what has no quantile."""
    what, failed, n = selection.about.counted, reading.censored, reading.n
    stood_s = float(reading.value or 0) / 1e6
    if selection.target is not None:
        used = f"{float((reading.value or Fraction(0)) * 100):.4g}%"
        return f"{failed} of {n} {what} failed: {used} of the {percent(1 - selection.target)} that may"
    if selection.about.unit == "share":
        return f"{n - failed} of {n} {what} were acknowledged"
    if selection.metric.endswith(".gap"):
        none = f": of {failed} {what} none succeeded" if failed else ""
        return f"the longest time without a success was {stood_s:.3f} s{none}"
    if selection.metric.endswith(".unavailable"):
        return f"it stood still for {stood_s:.3f} s, in stalls of a second or more"
    if reading.value is None:
        return f"{selection.spread} is censored: {failed} of {n} never succeeded"
    return f"{selection.spread} in {window_name(selection.window)} is {figure(selection, reading.value)}"


def banded(selection: Selection, reading: Reading) -> str:
    """Between what the quantile lies, and what that does not speak of."""
    low, high = reading.band or (None, None)
    ends = ("?" if end is None else figure(selection, Fraction(end)) for end in (low, high))
    return f"between {' and '.join(ends)} (sampling only)"


def named(selection: Selection, reading: Reading) -> str:
    """Which of many: ``orders/3``, ``the 1s from 17.0 s``, or both; nothing where there is but one."""
    slot = ""
    if reading.start_us is not None and selection.every_us is not None:
        slot = f"the {time(selection.every_us)} from {reading.start_us / 1e6:.1f} s"
    return " in ".join(word for word in (reading.subject, slot) if word)


def window_name(window: str | None) -> str:
    """The window in words."""
    return window or "the time after warm-up"


def too_few(evidence: Evidence, selection: Selection, reading: Reading, minimum: int, what: str) -> tuple[str, str]:
    """``why`` and ``next`` where ``what`` needs more values than were seen."""
    counted, which = selection.about.counted, named(selection, reading)
    if not reading.n:
        why = f"no {counted[:-1]} was seen" + (f" of {which}" if reading.subject else f" in {which}" if which else "")
        return why, f"give {reading.subject or 'the plan'} traffic in {window_name(selection.window)}"
    why = f"too few {counted}: {reading.n} of {minimum}" + (f" ({which})" if which else "")
    advice = lengthened(evidence, selection, minimum, reading.n)
    return why, f"{what} needs {minimum} {counted}, saw {reading.n}{f' of {which}' if which else ''}: {advice}"


def lengthened(evidence: Evidence, selection: Selection, minimum: int, n: int) -> str:
    """How long its window, or its slots, would have to be to hold ``minimum`` where they held ``n``."""
    more = "" if selection.about.sampled else " or raise the rate"
    if selection.every_us is not None:
        return f"ask for slots of {math.ceil(selection.every_us * minimum / n / 1e6)}s{more}"
    window = selection.window or RUN
    have_s = length_s(window, windows_of(evidence.phases))
    part = "the fault" if window.startswith("fault") else "the run" if window == RUN else f"timing.{window}"
    return f"lengthen {part} to {math.ceil(have_s * minimum / n)}s{more}"


@dataclass(frozen=True)
class Pair:
    """A reading and the other one, if the limit is a multiple; ``limit``: what it comes to, None if nothing is known.

    ``status`` None: too few to say anything.
    """

    ours: Reading
    other: Reading | None
    limit: Fraction | None
    status: Status | None

    @property
    def excess(self) -> Fraction | None:
        """How much of its limit the reading is; None for what is over any."""
        if self.ours.value is None or not self.limit:
            return self.ours.value
        return self.ours.value / self.limit


def pairs(slo: Measure, ours: Sequence[Reading], others: Sequence[Reading]) -> Iterator[Pair]:
    """Each reading with its limit. Of a multiple, the other reading is the one of the same subject."""
    by_subject = {one.subject: one for one in others}
    for reading in ours:
        if isinstance(slo.limit, Multiple):
            yield _against(slo, slo.limit, reading, by_subject.get(reading.subject, Reading(0, None)))
        else:
            limit = Fraction(slo.limit)
            fed = reading.n >= slo.needs_of(slo.of)
            yield Pair(reading, None, limit, _status(slo, reading, limit, limit, limit) if fed else None)


def _against(slo: Measure, multiple: Multiple, ours: Reading, other: Reading) -> Pair:
    limit = Fraction(multiple.factor) * other.value if other.value else None
    if ours.n < slo.needs_of(slo.of) or other.n < slo.needs_of(multiple.of):
        return Pair(ours, other, limit, None)
    if limit is None:
        return Pair(ours, other, None, Status.INCONCLUSIVE)
    low, high = (None if end is None else Fraction(multiple.factor) * end for end in other.band or (None, None))
    return Pair(ours, other, limit, _status(slo, ours, limit, low, high))


def _status(slo: Measure, ours: Reading, limit: Fraction, low: Fraction | None, high: Fraction | None) -> Status:
    """``low`` and ``high``: the ends of the limit's own band, which is the limit itself where that is a value."""
    if slo.confidence is None:
        within = ours.value is not None and holds(ours.value, slo.op, limit)
        return Status.PASS if within else Status.FAIL
    bottom, top = ours.band or (None, None)
    if low is not None and top is not None and holds(top, slo.op, low):
        return Status.PASS
    over = ours.value is None if bottom is None else high is not None and not holds(bottom, slo.op, high)
    return Status.FAIL if over else Status.INCONCLUSIVE


def worst(found: Sequence[Pair], op: str) -> Pair:
    """Which one decides: a failure, else the least fed, else an open one, else the one nearest to its limit."""
    for status in (Status.FAIL, None, Status.INCONCLUSIVE, Status.PASS):
        those = [one for one in found if one.status is status]
        if those and status is None:
            return min(those, key=_fed)
        if those:
            return max(those, key=lambda one: _badness(one, op))
    raise ValueError("there is always a reading, be it an empty one")


def _fed(one: Pair) -> int:
    return one.ours.n if one.other is None else min(one.ours.n, one.other.n)


def _badness(one: Pair, op: str) -> tuple[bool, Fraction]:
    excess = one.excess
    if excess is None:
        return (True, Fraction(0))
    return (False, excess if op in ("<", "<=") else -excess)


LOOK = "see the latency plot and the faults' bands in report.html"


def clients_of(evidence: Evidence, side: Side, arm: str | None) -> list[Client]:
    """Those that have the side; of one arm, or of all."""
    return [one for one in evidence.clients if topic_of(one, side) is not None and arm in (None, one.arm)]


def blank(objective: Objective, slo: Slo) -> Check:
    """The check of an SLO with nothing judged yet."""
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
    """PASS or FAIL; None is over any threshold."""
    good = observed is not None and check.threshold is not None and holds(observed, op, check.threshold)
    status = Status.PASS if good else Status.FAIL
    return replace(check, status=status, observed=observed, why=why, next=None if good else LOOK)


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

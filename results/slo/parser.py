"""The words of one text with their columns, and the error that says where it stopped making sense.

Reads the quantities of the language: times, shares, factors, whole numbers, quantiles.

Rules: what is refused is still the next token, so that the error points at it; numbers are exact, and bounded.

Reads one text into the value it states, by recursive descent: a function a rule of the grammar.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches
from typing import NoReturn, cast

from aftershock.results.slo.model import (
    COUNTS,
    LATENCIES,
    METRICS,
    SECOND_US,
    SLOT_US_MIN,
    UNITS_US,
    WINDOWS,
    Aggregate,
    Count,
    EachWord,
    Measure,
    Multiple,
    Op,
    Recovery,
    Selection,
    Slo,
    Unit,
    aggregate_name,
)

_TOKEN = re.compile(
    r"\s*(?:(?P<token><=|>=|==|[<>()*]|[0-9]+(?:\.[0-9]+)?\s+(?:us|ms|s|%)(?![A-Za-z0-9_.-])|[A-Za-z0-9_./%-]+)"
    r"|(?P<bad>\S))"
)
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class SloSyntaxError(ValueError):
    """The text is not an SLO. ``column`` (from 1) is where in the text it stopped making sense."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.column = column


class Tokens:
    """The tokens of one text, taken one at a time. A number and its unit are one token, whatever stands between."""

    def __init__(self, text: str) -> None:
        self._length = len(text.rstrip())
        self._tokens = _split(text)
        self._next = 0

    @property
    def column(self) -> int:
        """Where the next token begins; just after the text at its end."""
        return self._tokens[self._next][1] if self._next < len(self._tokens) else self._length + 1

    def peek(self, ahead: int = 0) -> str:
        """The next token, or the one ``ahead`` of it; an empty string after the end."""
        place = self._next + ahead
        return self._tokens[place][0] if place < len(self._tokens) else ""

    def take(self) -> str:
        """The next token, which is passed."""
        token = self.peek()
        self._next += 1
        return token

    def fail(self, message: str, column: int | None = None) -> NoReturn:
        """Raises SloSyntaxError at the next token, or at ``column``."""
        raise SloSyntaxError(message, column or self.column)

    def one_of(self, words: Sequence[str], what: str) -> str:
        """The next token, which must be one of ``words``; the error names the nearest."""
        if self.peek() not in words:
            near = get_close_matches(self.peek(), words, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]!r}?" if near else f"write {' or '.join(words)}"
            self.fail(f"{what} expected, {self.seen()}; {hint}")
        return self.take()

    def accept(self, word: str) -> bool:
        """Whether the next token is ``word``, which then is passed."""
        accepted = self.peek() == word
        self._next += accepted
        return accepted

    def name(self, what: str) -> str:
        """The next token, which must be a name."""
        if not is_name(self.peek()):
            self.fail(f"the name of {what} expected, {self.seen()}")
        return self.take()

    def seen(self) -> str:
        """What stands here, for an error."""
        return f"got {self.peek()!r}" if self.peek() else "but the text ends here"


def is_name(token: str) -> bool:
    """Whether it can be the name of an arm or a fault."""
    return bool(_NAME.fullmatch(token))


def _split(text: str) -> list[tuple[str, int]]:
    found = list(_TOKEN.finditer(text))
    bad = next((token for token in found if token["bad"]), None)
    if bad:
        raise SloSyntaxError(f"unexpected {bad['bad']!r} in an SLO; take it out", bad.start("bad") + 1)
    return [("".join(token["token"].split()), token.start("token") + 1) for token in found]


_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)(.*)", re.DOTALL)
_EXACT = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_QUANTILE = re.compile(r"p([0-9]{1,2}(?:\.[0-9]{1,6})?)")


def amount(tokens: Tokens, unit: Unit) -> Decimal:
    """A value of the unit, in microseconds, as a fraction of 1, or in records."""
    if unit == "time":
        return Decimal(time_us(tokens))
    return share(tokens) if unit == "share" else records(tokens)


def time_us(tokens: Tokens) -> int:
    """``250ms`` as 250000."""
    value, unit = _number(tokens, "a time like 250ms or 5s")
    if unit not in UNITS_US:
        shown = f"{tokens.peek()!r} has no unit" if not unit else f"unit {unit!r} is unknown"
        tokens.fail(f"{shown}; write a time in us, ms or s, like 250ms")
    micros = value * UNITS_US[unit]
    if micros != int(micros) or not micros:
        tokens.fail(f"a time of {tokens.peek()} can't be judged; give at least 1us, in whole microseconds")
    tokens.take()
    return int(micros)


def slot_us(tokens: Tokens, *, sampled: bool) -> int:
    """The length of a slot; whole seconds where the metric is known once a second."""
    column, us = tokens.column, time_us(tokens)
    if sampled and us % SECOND_US:
        tokens.fail("this metric is known at the end of each second; give whole seconds, like 5s", column)
    if us < SLOT_US_MIN:
        tokens.fail(f"slots of {us}us are too short; give at least {SLOT_US_MIN // 1000}ms", column)
    return us


def share(tokens: Tokens) -> Decimal:
    """``99.9%`` as 0.999."""
    value, unit = _number(tokens, "a share like 99.9%")
    if unit != "%":
        tokens.fail(f"{tokens.peek()!r} is not a share; write it in percent, like 99.9%")
    if not 0 < value <= 100:  # noqa: PLR2004 - percent
        tokens.fail(f"a share of {tokens.peek()} can't be; give more than 0% and at most 100%")
    tokens.take()
    return value / 100


def read_target(tokens: Tokens) -> Decimal:
    """The success that leaves an error budget, which 100 % doesn't."""
    column, wanted = tokens.column, share(tokens)
    if wanted == 1:
        tokens.fail("a target of 100% leaves no budget to use up; write `produce.success >= 100%`", column)
    return wanted


def confidence(tokens: Tokens) -> Decimal:
    """``95%`` as 0.95."""
    column, wanted = tokens.column, share(tokens)
    if not Decimal("0.5") <= wanted <= Decimal("0.9999"):
        tokens.fail("a confidence is from 50% to 99.99%; 95% is usual", column)
    return wanted


def factor(tokens: Tokens) -> Decimal:
    """A number above 0 without a unit."""
    value, unit = _number(tokens, "a factor like 0.7")
    if unit or not value:
        tokens.fail(f"a factor above 0 without a unit expected, got {tokens.peek()!r}")
    tokens.take()
    return value


def records(tokens: Tokens) -> Decimal:
    """``100`` or ``100 records``."""
    count = Decimal(whole(tokens))
    tokens.accept("records")
    return count


def whole(tokens: Tokens) -> int:
    """A whole number from 0."""
    value, unit = _number(tokens, "a whole number")
    if unit or value != int(value) or "." in tokens.peek():
        tokens.fail(f"a whole number expected, {tokens.seen()}")
    tokens.take()
    return int(value)


def is_factor(token: str) -> bool:
    """Whether this is a number without a unit."""
    found = _NUMBER.fullmatch(token)
    return bool(found and not found[2])


def read_aggregate(tokens: Tokens) -> Aggregate:
    """``p99.9`` as 0.999, ``max``, ``mean``."""
    if tokens.peek() == "max" or tokens.peek() == "mean":
        return "max" if tokens.take() == "max" else "mean"
    return quantile(tokens, "a quantile like p95 or p99.9, max or mean,")


def quantile(tokens: Tokens, what: str = "a quantile like p95 or p99.9") -> float:
    """``p99.9`` as 0.999."""
    found = _QUANTILE.fullmatch(tokens.peek())
    if not found or not Decimal(found[1]):
        tokens.fail(f"{what} expected, {tokens.seen()}")
    tokens.take()
    return float(Decimal(found[1]) / 100)


def is_aggregate(token: str) -> bool:
    """Whether this is written like a quantile, or is ``max`` or ``mean``."""
    return token in ("max", "mean") or bool(_QUANTILE.fullmatch(token))


def _number(tokens: Tokens, what: str) -> tuple[Decimal, str]:
    """The number that comes next and its unit; takes nothing."""
    found = _NUMBER.fullmatch(tokens.peek())
    if not found:
        tokens.fail(f"{what} expected, {tokens.seen()}")
    if not _EXACT.fullmatch(found[1]):
        tokens.fail(f"{found[1]} has more digits than can be judged; give 12 before the point and 9 after it at most")
    return Decimal(found[1]), found[2]


_SPREAD = tuple(name for name, metric in METRICS.items() if metric.spread)
_AFTER_AN_ARM = ("", "in", "for", "with", "<", "<=", ">", ">=", "==")


def parse(text: str) -> Slo:
    """The SLO that ``text`` states. Raises SloSyntaxError, which says what is wrong and at which column."""
    tokens = Tokens(text)
    slo = _statement(tokens)
    if tokens.peek():
        order = "'in WINDOW' comes before 'for ARM', then 'for each SUBJECT', then 'with 95% confidence'"
        tokens.fail(f"unexpected {tokens.peek()!r} after the end of the SLO; {order}")
    return slo


def _statement(tokens: Tokens) -> Slo:
    """Chooses the form by the first word."""
    first = tokens.peek()
    if is_aggregate(first):
        return _of_arms(tokens)
    if first in METRICS:
        return _measure(tokens)
    if first in COUNTS:
        return _count(tokens)
    tokens.one_of(("recovery", *METRICS, *COUNTS), "a metric")
    return _recovery(tokens)


def _measure(tokens: Tokens) -> Measure:
    """``METRIC [AGGREGATE] [PLACE] < VALUE [PLACE]``, or ``... <= 2 * OTHER``; the place is said once."""
    head = _head(tokens)
    first = _placed(tokens, head)
    each = _each(tokens, first)
    op = _op(tokens, *first.about.ops)
    column = tokens.column
    if _is_multiple(tokens) and first.about.unit != "share":
        return _ended(tokens, Measure(first, op, _multiple(tokens, first), each), column)
    limit = amount(tokens, first.about.unit)
    said = each is not None or first != head
    return _ended(tokens, Measure(first if said else _placed(tokens, head), op, limit, each), column)


def _ended(tokens: Tokens, measure: Measure, column: int) -> Measure:
    """With ``[for each SUBJECT] [with 95% confidence]``, if what was said fits together."""
    column = tokens.column if _is_each(tokens) else column
    measure = replace(measure, each=measure.each or _each(tokens, measure.of))
    _refuse_each(tokens, measure, column)
    return _confident(tokens, measure) if tokens.peek() == "with" else measure


def _confident(tokens: Tokens, measure: Measure) -> Measure:
    """``with 95% confidence``: of the band of a quantile, or of the ratio of two arms over a plan's blocks."""
    column = tokens.column
    tokens.take()
    sure = confidence(tokens)
    tokens.one_of(("confidence",), "'confidence'")
    if measure.compares_arms and not _is_paired(measure):
        like = "like 'p95(a) <= 0.7 * p95(b) of produce.latency in fault'"
        tokens.fail(f"with confidence two arms are compared by one quantile, or the gap, of one window, {like}", column)
    if not measure.compares_arms and not all(map(_has_band, measure.selections)):
        tokens.fail("only a quantile of latency has a confidence band; take 'with ... confidence' away", column)
    return replace(measure, confidence=sure)


def _has_band(selection: Selection) -> bool:
    return selection.about.confident and isinstance(selection.aggregate, float)


def _is_paired(measure: Measure) -> bool:
    """Whether two named arms differ in nothing but their arm."""
    one, other = measure.selections
    known = (one.about.confident and one.aggregate != "mean") or one.metric.endswith(".gap")
    return replace(other, arm=one.arm) == one and bool(one.arm) and measure.each is None and known


def _refuse_each(tokens: Tokens, measure: Measure, column: int) -> None:
    """Where the two sides of a multiple have no subjects in common."""
    if measure.each is None or not isinstance(measure.limit, Multiple):
        return
    other = measure.limit.of
    if measure.each not in other.about.each:
        tokens.fail(f"{other.metric} is not known of each {measure.each}; take 'for each' away", column)
    if measure.each == "epoch" and other.window != measure.of.window:
        tokens.fail("an epoch of one window is none of another; write a value, or take 'for each' away", column)
    if measure.each == "producer" and measure.compares_arms:
        tokens.fail("two arms have no producer in common; take 'for each' away", column)


def _head(tokens: Tokens) -> Selection:
    """``produce.latency p99``, ``produce.gap``, ``produce.budget(99.9%)``."""
    metric = tokens.take()
    if metric.endswith(".budget"):
        tokens.one_of(("(",), "'(TARGET)', like (99.9%),")
        target = read_target(tokens)
        tokens.one_of((")",), "')'")
        return Selection(metric, target=target)
    return Selection(metric, read_aggregate(tokens) if METRICS[metric].spread else None)


def _placed(tokens: Tokens, selection: Selection) -> Selection:
    """The selection ``[in WINDOW | in every 1s of WINDOW] [for ARM]``."""
    if tokens.accept("in"):
        every_us = _every_us(tokens, selection)
        slots = every_us is None and selection.about.slots
        selection = replace(selection, every_us=every_us, window=_window(tokens, *(["every"] if slots else [])))
    return _of_arm(tokens, selection)


def _every_us(tokens: Tokens, selection: Selection) -> int | None:
    column = tokens.column
    if not tokens.accept("every"):
        return None
    if not selection.about.slots:
        tokens.fail(f"{selection.metric} is measured over a whole window; write 'in WINDOW'", column)
    every_us = slot_us(tokens, sampled=selection.about.sampled)
    tokens.one_of(("of",), "'of WINDOW'")
    return every_us


def _window(tokens: Tokens, *also: str) -> str | None:
    """The name of a window; None for the whole run. ``also``: what else might have been meant."""
    word = tokens.peek()
    if word.startswith("fault/") and is_name(word.removeprefix("fault/")):
        return tokens.take()
    found = tokens.one_of((*WINDOWS, *also), "a window (warmup, steady, fault, recovery, run or fault/<id>)")
    return None if found == "run" else found


def _of_arm(tokens: Tokens, selection: Selection) -> Selection:
    """The selection ``[for ARM]``."""
    if tokens.peek() != "for" or _is_each(tokens):
        return selection
    tokens.take()
    return replace(selection, arm=tokens.name("an arm"))


def _is_each(tokens: Tokens) -> bool:
    """Whether ``for each SUBJECT`` comes; an arm may be called ``each``."""
    return (tokens.peek(), tokens.peek(1)) == ("for", "each") and tokens.peek(2) not in _AFTER_AN_ARM


def _each(tokens: Tokens, selection: Selection) -> EachWord | None:
    if not _is_each(tokens):
        return None
    if not selection.about.each:
        tokens.fail(f"{selection.metric} is known as a whole only; take 'for each' away")
    tokens.take()
    tokens.take()
    return cast("EachWord", tokens.one_of(selection.about.each, "a subject"))


def _is_multiple(tokens: Tokens) -> bool:
    """Whether what comes is ``2 * ...``, or another selection without a factor."""
    if is_factor(tokens.peek()):
        return tokens.peek(1) == "*"
    return is_aggregate(tokens.peek()) or tokens.peek() in METRICS


def _multiple(tokens: Tokens, first: Selection) -> Multiple:
    """``2 * p99 of produce.service in steady for b``: what it leaves out is as in the first selection."""
    times = _times(tokens) if is_factor(tokens.peek()) else Decimal(1)
    column, like = tokens.column, replace(first, every_us=None)
    other = _other(tokens, like)
    if other.about.unit != first.about.unit:
        tokens.fail(f"{first.metric} and {other.metric} are of different units; compare like with like", column)
    if other == first:
        tokens.fail(f"{first.head()} is compared with itself; name another window, arm or metric", column)
    return Multiple(times, other)


def _times(tokens: Tokens) -> Decimal:
    times = factor(tokens)
    tokens.one_of(("*",), "'*'")
    return times


def _other(tokens: Tokens, like: Selection) -> Selection:
    """``p99 [of METRIC] [in WINDOW] [for ARM]``, or a metric in the place of the quantile."""
    column = tokens.column
    if tokens.peek() in METRICS:
        head = _head(tokens)
    else:
        aggregate = read_aggregate(tokens)
        metric = tokens.one_of(_SPREAD, "a metric") if tokens.accept("of") else like.metric
        head = Selection(metric, aggregate)
    if head.aggregate is not None and not head.about.spread:
        tokens.fail(f"{head.metric} has one value, and no {head.spread}; write 'of METRIC' behind it", column)
    window = _window(tokens) if tokens.accept("in") else like.window
    return _of_arm(tokens, replace(head, window=window, arm=like.arm))


def _of_arms(tokens: Tokens) -> Measure:
    """``p95(a) <= 0.7 * p95(b) of produce.latency [in PLACE]``: two arms, as the language began."""
    aggregate, left = _aggregate_of_arm(tokens)
    op, times, column = _op(tokens, "<=", "<"), _times(tokens), tokens.column
    other, right = _aggregate_of_arm(tokens)
    if other != aggregate:
        one, two = aggregate_name(aggregate), aggregate_name(other)
        tokens.fail(f"{one} can't be compared with {two}; use one", column)
    if left == right:
        tokens.fail(f"arm {left!r} is compared with itself; name two arms", column)
    tokens.one_of(("of",), "'of METRIC'")
    first = replace(Selection(tokens.one_of(LATENCIES, "a latency"), aggregate), arm=left)
    if tokens.accept("in"):
        every_us = _every_us(tokens, first)
        first = replace(first, every_us=every_us, window=_window(tokens))
    multiple = Multiple(times, replace(first, every_us=None, arm=right))
    return _ended(tokens, Measure(first, op, multiple), column)


def _aggregate_of_arm(tokens: Tokens) -> tuple[Aggregate, str]:
    aggregate = read_aggregate(tokens)
    tokens.one_of(("(",), "'(ARM)'")
    arm = tokens.name("an arm")
    tokens.one_of((")",), "')'")
    return aggregate, arm


def _recovery(tokens: Tokens) -> Recovery:
    """``recovery [(p99 <= 3 * steady for 5s)] < 5s after FAULT [for ARM]``."""
    terms = _terms(tokens) if tokens.accept("(") else (Recovery.q, Recovery.factor, Recovery.for_us)
    op, limit_us = _op(tokens, "<", "<="), time_us(tokens)
    tokens.one_of(("after",), "'after FAULT'")
    after = tokens.name("a fault")
    arm = tokens.name("an arm") if tokens.accept("for") else None
    return Recovery(op, limit_us, after, arm, *terms)


def _terms(tokens: Tokens) -> tuple[float, Decimal, int]:
    q = quantile(tokens)
    tokens.one_of(("<=",), "a comparison")
    times = _times(tokens)
    tokens.one_of(("steady",), "'steady'")
    tokens.one_of(("for",), "'for TIME'")
    for_us = time_us(tokens)
    tokens.one_of((")",), "')'")
    return q, times, for_us


def _count(tokens: Tokens) -> Count:
    rule, op, limit = tokens.take(), _op(tokens, "==", "<=", "<"), whole(tokens)
    return Count(rule, op, limit, tokens.name("an arm") if tokens.accept("for") else None)


def _op(tokens: Tokens, *allowed: Op) -> Op:
    return cast("Op", tokens.one_of(allowed, "a comparison"))

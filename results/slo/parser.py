"""Reads one text into the value it states, by recursive descent: a function a rule of the grammar."""

from dataclasses import replace
from decimal import Decimal
from typing import cast

from aftershock.results.slo import quantities
from aftershock.results.slo.figures import aggregate_name
from aftershock.results.slo.selection import Multiple, Selection
from aftershock.results.slo.tokens import Tokens, is_name
from aftershock.results.slo.tree import Count, Measure, Recovery, Slo
from aftershock.results.slo.words import COUNTS, LATENCIES, METRICS, WINDOWS, Aggregate, EachWord, Op

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
    if quantities.is_aggregate(first):
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
    limit = quantities.amount(tokens, first.about.unit)
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
    sure = quantities.confidence(tokens)
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
        target = quantities.target(tokens)
        tokens.one_of((")",), "')'")
        return Selection(metric, target=target)
    return Selection(metric, quantities.aggregate(tokens) if METRICS[metric].spread else None)


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
    every_us = quantities.slot_us(tokens, sampled=selection.about.sampled)
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
    if quantities.is_factor(tokens.peek()):
        return tokens.peek(1) == "*"
    return quantities.is_aggregate(tokens.peek()) or tokens.peek() in METRICS


def _multiple(tokens: Tokens, first: Selection) -> Multiple:
    """``2 * p99 of produce.service in steady for b``: what it leaves out is as in the first selection."""
    times = _times(tokens) if quantities.is_factor(tokens.peek()) else Decimal(1)
    column, like = tokens.column, replace(first, every_us=None)
    other = _other(tokens, like)
    if other.about.unit != first.about.unit:
        tokens.fail(f"{first.metric} and {other.metric} are of different units; compare like with like", column)
    if other == first:
        tokens.fail(f"{first.head()} is compared with itself; name another window, arm or metric", column)
    return Multiple(times, other)


def _times(tokens: Tokens) -> Decimal:
    times = quantities.factor(tokens)
    tokens.one_of(("*",), "'*'")
    return times


def _other(tokens: Tokens, like: Selection) -> Selection:
    """``p99 [of METRIC] [in WINDOW] [for ARM]``, or a metric in the place of the quantile."""
    column = tokens.column
    if tokens.peek() in METRICS:
        head = _head(tokens)
    else:
        aggregate = quantities.aggregate(tokens)
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
    aggregate = quantities.aggregate(tokens)
    tokens.one_of(("(",), "'(ARM)'")
    arm = tokens.name("an arm")
    tokens.one_of((")",), "')'")
    return aggregate, arm


def _recovery(tokens: Tokens) -> Recovery:
    """``recovery [(p99 <= 3 * steady for 5s)] < 5s after FAULT [for ARM]``."""
    terms = _terms(tokens) if tokens.accept("(") else (Recovery.q, Recovery.factor, Recovery.for_us)
    op, limit_us = _op(tokens, "<", "<="), quantities.time_us(tokens)
    tokens.one_of(("after",), "'after FAULT'")
    after = tokens.name("a fault")
    arm = tokens.name("an arm") if tokens.accept("for") else None
    return Recovery(op, limit_us, after, arm, *terms)


def _terms(tokens: Tokens) -> tuple[float, Decimal, int]:
    q = quantities.quantile(tokens)
    tokens.one_of(("<=",), "a comparison")
    times = _times(tokens)
    tokens.one_of(("steady",), "'steady'")
    tokens.one_of(("for",), "'for TIME'")
    for_us = quantities.time_us(tokens)
    tokens.one_of((")",), "')'")
    return q, times, for_us


def _count(tokens: Tokens) -> Count:
    rule, op, limit = tokens.take(), _op(tokens, "==", "<=", "<"), quantities.whole(tokens)
    return Count(rule, op, limit, tokens.name("an arm") if tokens.accept("for") else None)


def _op(tokens: Tokens, *allowed: Op) -> Op:
    return cast("Op", tokens.one_of(allowed, "a comparison"))

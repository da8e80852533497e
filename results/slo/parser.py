"""Parser of the SLO language by recursive descent; the function ``parse`` is the entry point.

A syntax error points at the first token that is not consumed. Numbers in an SLO are exact and bounded.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches
from typing import NoReturn, cast

from aftershock.results.model.rules import RULES
from aftershock.results.slo.metrics import (
    METRICS,
    UNITS_READ_US,
    Aggregate,
    EachWord,
    Op,
    Selection,
    aggregate_name,
    number,
)
from aftershock.results.slo.model import Count, Measure, Multiple, Recovery, Slo

WINDOWS = ("warmup", "steady", "fault", "recovery", "run")
SECOND_US = 1_000_000
SLOT_US_MIN = 100_000

_TOKEN = re.compile(
    r"\s*(?:(?P<token><=|>=|==|[<>()*]|[0-9]+(?:\.[0-9]+)?\s+(?:us|ms|s|m|h|%)(?![A-Za-z0-9_.-])|[A-Za-z0-9_./%-]+)"
    r"|(?P<bad>\S))"
)
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class SloSyntaxError(ValueError):
    """Text that is not a valid SLO; ``column`` is the position of the error, from 1."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.column = column


class Tokens:
    """Tokens of an SLO and the position of the next token; a number and its unit are one token, even if spaced."""

    def __init__(self, text: str) -> None:
        matches = list(_TOKEN.finditer(text))
        bad = next((match for match in matches if match["bad"]), None)
        if bad:
            raise SloSyntaxError(f"unexpected {bad['bad']!r} in an SLO; remove it", bad.start("bad") + 1)
        self._length = len(text.rstrip())
        self._tokens = [("".join(match["token"].split()), match.start("token") + 1) for match in matches]
        self._next = 0

    @property
    def column(self) -> int:
        """Column at which the next token starts, or the column after the text."""
        return self._tokens[self._next][1] if self._next < len(self._tokens) else self._length + 1

    def peek(self, ahead: int = 0) -> str:
        """Return the next token, or the token ``ahead`` tokens later, without consuming it; empty after the end."""
        index = self._next + ahead
        return self._tokens[index][0] if index < len(self._tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self._next += 1
        return token

    def fail(self, message: str, column: int | None = None) -> NoReturn:
        """Raise SloSyntaxError with the column of the next token, or with ``column``."""
        raise SloSyntaxError(message, column or self.column)

    def one_of(self, words: Sequence[str], description: str) -> str:
        """Consume the next token, which must be in ``words``; the error suggests the most similar word."""
        if self.peek() not in words:
            near = get_close_matches(self.peek(), words, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]!r}?" if near else f"write {' or '.join(words)}"
            self.fail(f"{description} expected, {self.next_text()}; {hint}")
        return self.take()

    def accept(self, word: str) -> bool:
        """Consume the next token if it is ``word``, and return True if it was."""
        accepted = self.peek() == word
        self._next += accepted
        return accepted

    def name(self, description: str) -> str:
        """Consume the next token, which must be a name (of an arm, a fault or a window)."""
        if not is_name(self.peek()):
            self.fail(f"the name of {description} expected, {self.next_text()}")
        return self.take()

    def next_text(self) -> str:
        return f"got {self.peek()!r}" if self.peek() else "but the text ends here"


def is_name(token: str) -> bool:
    return bool(_NAME.fullmatch(token))


_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)(.*)", re.DOTALL)
_EXACT = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_QUANTILE = re.compile(r"p([0-9]{1,2}(?:\.[0-9]{1,6})?)")


def time_us(tokens: Tokens) -> int:
    """Parse a time such as ``250ms``, which is 250000 us."""
    value, unit = _number(tokens, "a time like 250ms or 5s")
    if unit not in UNITS_READ_US:
        shown = f"{tokens.peek()!r} has no unit" if not unit else f"unit {unit!r} is unknown"
        tokens.fail(f"{shown}; write a time in us, ms, s, m or h, like 250ms")
    micros = value * UNITS_READ_US[unit]
    if micros != int(micros) or not micros:
        tokens.fail(f"a time of {tokens.peek()} can't be judged; write at least 1us, in whole microseconds")
    tokens.take()
    return int(micros)


def share(tokens: Tokens) -> Decimal:
    value, unit = _number(tokens, "a share like 99.9%")
    if unit != "%":
        tokens.fail(f"{tokens.peek()!r} is not a share; write a share in percent, like 99.9%")
    if not 0 < value <= 100:  # noqa: PLR2004 - percent
        tokens.fail(f"{tokens.peek()} is out of range; a share is more than 0% and at most 100%")
    tokens.take()
    return value / 100


def rate(tokens: Tokens) -> Decimal:
    """Parse a rate, ``50/s`` or ``50 records/s``."""
    value, unit = _number(tokens, "a rate like 50/s")
    if unit != "/s" and (unit or tokens.peek(1) != "records/s"):
        tokens.fail(f"{tokens.peek()!r} is not a rate; write records per second, like 50/s")
    tokens.take()
    tokens.accept("records/s")
    return value


def times(tokens: Tokens) -> Decimal:
    """Parse the factor of a limit such as ``0.7 * p99``, a number above 0 without a unit, and ``*``."""
    value, unit = _number(tokens, "a factor like 0.7")
    if unit or not value:
        tokens.fail(f"expected a factor above 0 without a unit, got {tokens.peek()!r}")
    tokens.take()
    tokens.one_of(("*",), "'*'")
    return value


def whole(tokens: Tokens, wanted: str = "an integer") -> int:
    value, unit = _number(tokens, wanted)
    if unit or value != int(value) or "." in tokens.peek():
        tokens.fail(f"{wanted} expected, {tokens.next_text()}")
    tokens.take()
    return int(value)


def is_factor(token: str) -> bool:
    match = _NUMBER.fullmatch(token)
    return bool(match and not match[2])


def read_aggregate(tokens: Tokens) -> Aggregate:
    """Parse an aggregate of an SLO, such as ``p99.9`` (as 0.999), ``max`` or ``mean``."""
    if tokens.peek() == "max" or tokens.peek() == "mean":
        return "max" if tokens.take() == "max" else "mean"
    return quantile(tokens, "a quantile like p95 or p99.9, max or mean,")


def quantile(tokens: Tokens, description: str = "a quantile like p95 or p99.9") -> float:
    match = _QUANTILE.fullmatch(tokens.peek())
    if not match or not Decimal(match[1]):
        tokens.fail(f"{description} expected, {tokens.next_text()}")
    if (percent := Decimal(match[1])) < 1:  # a fraction of 1, as other tools write quantiles
        meant = number(percent * 100)
        tokens.fail(f"p{match[1]} is a value that {match[1]}% of all stay below; did you mean p{meant}?")
    tokens.take()
    return float(percent / 100)


def is_aggregate(token: str) -> bool:
    return token in ("max", "mean") or bool(_QUANTILE.fullmatch(token))


def _number(tokens: Tokens, description: str) -> tuple[Decimal, str]:
    """Return the next token as a number and its unit, without consuming the token."""
    match = _NUMBER.fullmatch(tokens.peek())
    if not match:
        tokens.fail(f"{description} expected, {tokens.next_text()}")
    if not _EXACT.fullmatch(match[1]):
        tokens.fail(
            f"number {match[1]} has more digits than can be judged; write at most 12 before the point and 9 after it"
        )
    return Decimal(match[1]), match[2]


_WITH_AGGREGATE = tuple(name for name, metric in METRICS.items() if metric.has_aggregate)
_LATENCIES = tuple(name for name, metric in METRICS.items() if metric.confident)
_AFTER_AN_ARM = ("", "in", "for", "with", "<", "<=", ">", ">=", "==")


def parse(text: str) -> Slo:
    """Parse one SLO. Raises SloSyntaxError with the column of the error if the text is not a valid SLO."""
    tokens = Tokens(text)
    first = tokens.peek()
    slo: Slo
    if is_aggregate(first):
        slo = _arm_ratio(tokens)
    elif first in METRICS:
        slo = _measure(tokens)
    elif first in RULES:
        rule, op, limit = tokens.take(), _op(tokens, "==", "<=", "<"), whole(tokens)
        slo = Count(rule, op, limit, tokens.name("an arm") if tokens.accept("for") else None)
    else:
        tokens.one_of(("recovery", *METRICS, *RULES), "a metric")
        slo = _recovery(tokens)
    if tokens.peek():
        order = "'in WINDOW' comes before 'for ARM', then 'for each SUBJECT', then 'with 95% confidence'"
        tokens.fail(f"unexpected {tokens.peek()!r} after the end of the SLO; {order}")
    return slo


def _measure(tokens: Tokens) -> Measure:
    """Parse an SLO ``METRIC [AGGREGATE] [PLACE] < VALUE [PLACE]`` with at most one PLACE; VALUE may be a multiple."""
    head = _head(tokens)
    first = _placed(tokens, head)
    each = _each(tokens, first)
    op = _op(tokens, *first.about.ops)
    column, unit = tokens.column, first.about.unit
    if is_factor(tokens.peek()):
        multiple = tokens.peek(1) == "*"
    else:
        multiple = is_aggregate(tokens.peek()) or tokens.peek() in METRICS
    if multiple and unit != "share":
        return _ended(tokens, Measure(first, op, _multiple(tokens, first), each), column)
    if unit in ("time", "share"):
        limit = Decimal(time_us(tokens)) if unit == "time" else share(tokens)
    elif unit == "records/s":
        limit = rate(tokens)
    else:
        limit = Decimal(whole(tokens, f"an integer like 1000 {unit}"))
        tokens.accept(unit)
    place_known = each is not None or first != head
    return _ended(tokens, Measure(first if place_known else _placed(tokens, head), op, limit, each), column)


def _ended(tokens: Tokens, measure: Measure, column: int) -> Measure:
    """Parse the end ``[for each SUBJECT] [with 95% confidence]`` of an SLO, and check that the combination is valid."""
    column = tokens.column if _is_each(tokens) else column
    measure = replace(measure, each=measure.each or _each(tokens, measure.of))
    if measure.each is not None and isinstance(measure.limit, Multiple):
        second = measure.limit.of
        if measure.each not in second.about.each:
            tokens.fail(f"{second.metric} is not measured for each {measure.each}; remove 'for each'", column)
        if measure.each == "epoch" and second.window != measure.of.window:
            tokens.fail(
                "a leader epoch of one window does not occur in another; write a fixed limit, or remove 'for each'",
                column,
            )
        if measure.each in ("producer", "member") and measure.compares_arms:
            tokens.fail(f"two arms have no {measure.each} in common; remove 'for each'", column)
    column = tokens.column
    if not tokens.accept("with"):
        return measure
    level_column, level = tokens.column, share(tokens)
    if not Decimal("0.5") <= level <= Decimal("0.9999"):
        tokens.fail("a confidence is from 50% to 99.99%; 95% is usual", level_column)
    tokens.one_of(("confidence",), "'confidence'")
    first = measure.of
    if measure.compares_arms:
        # blocks can be paired if the two selections differ only in the arms that they name
        second = measure.selections[1]
        comparable = (first.about.confident and first.aggregate != "mean") or first.metric.endswith(".gap")
        paired = replace(second, arm=first.arm) == first and bool(first.arm) and measure.each is None and comparable
        if not paired:
            tokens.fail(
                "a comparison of two arms with confidence needs the same quantile, or the gap, in the same window, "
                "like 'p95(a) <= 0.7 * p95(b) of produce.latency in fault'",
                column,
            )
    elif not all(part.about.confident and isinstance(part.aggregate, float) for part in measure.selections):
        tokens.fail("only a quantile of latency has a confidence band; remove 'with ... confidence'", column)
    return replace(measure, confidence=level)


def _head(tokens: Tokens) -> Selection:
    """Parse the beginning of an SLO, such as ``produce.latency p99``, ``produce.gap`` or ``produce.budget(99.9%)``."""
    metric = tokens.take()
    if METRICS[metric].has_target:
        tokens.one_of(("(",), "'(TARGET)', like (99.9%),")
        column, target = tokens.column, share(tokens)
        if target == 1:
            tokens.fail("a target of 100% leaves no error budget to use up; write `produce.success >= 100%`", column)
        tokens.one_of((")",), "')'")
        return Selection(metric, target=target)
    if METRICS[metric].has_aggregate:
        return Selection(metric, read_aggregate(tokens))
    if is_aggregate(tokens.peek()):
        tokens.fail(f"{metric} is a single value, which has no {tokens.peek()}; remove {tokens.peek()!r}")
    return Selection(metric)


def _placed(tokens: Tokens, selection: Selection) -> Selection:
    """Parse the words ``[in WINDOW | in every 1s of WINDOW] [for ARM]`` of an SLO."""
    if tokens.accept("in"):
        every_us = _every_us(tokens, selection)
        slots = every_us is None and selection.about.slots
        selection = replace(selection, every_us=every_us, window=_window(tokens, *(["every"] if slots else [])))
    return _with_arm(tokens, selection)


def _every_us(tokens: Tokens, selection: Selection) -> int | None:
    """Parse the words ``every 1s of``; a metric that is sampled once per second needs whole seconds."""
    column = tokens.column
    if not tokens.accept("every"):
        return None
    if not selection.about.slots:
        tokens.fail(f"{selection.metric} is measured over a whole window; write 'in WINDOW'", column)
    column, every_us = tokens.column, time_us(tokens)
    if selection.about.sampled and every_us % SECOND_US:
        tokens.fail(f"{selection.metric} is measured once a second; give whole seconds, like 5s", column)
    if every_us < SLOT_US_MIN:
        tokens.fail(f"time slots of {every_us}us are too short; give at least {SLOT_US_MIN // 1000}ms", column)
    tokens.one_of(("of",), "'of WINDOW'")
    return every_us


def _window(tokens: Tokens, *suggestions: str) -> str | None:
    """Parse the name of an SLO's window, None for ``run``; an error may also suggest words of ``suggestions``."""
    word = tokens.peek()
    if word.startswith("fault/") and is_name(word.removeprefix("fault/")):
        return tokens.take()
    window = tokens.one_of((*WINDOWS, *suggestions), "a window (warmup, steady, fault, recovery, run or fault/<id>)")
    return None if window == "run" else window


def _with_arm(tokens: Tokens, selection: Selection) -> Selection:
    if tokens.peek() != "for" or _is_each(tokens):
        return selection
    tokens.take()
    return replace(selection, arm=tokens.name("an arm"))


def _is_each(tokens: Tokens) -> bool:
    """Return True if the next words are ``for each SUBJECT`` and not ``for ARM`` with an arm called ``each``."""
    return (tokens.peek(), tokens.peek(1)) == ("for", "each") and tokens.peek(2) not in _AFTER_AN_ARM


def _each(tokens: Tokens, selection: Selection) -> EachWord | None:
    if not _is_each(tokens):
        return None
    if not selection.about.each:
        tokens.fail(f"{selection.metric} has no value for each subject, only one value; remove 'for each'")
    tokens.take()
    tokens.take()
    return cast("EachWord", tokens.one_of(selection.about.each, "a subject"))


def _multiple(tokens: Tokens, first: Selection) -> Multiple:
    """Parse a limit ``2 * p99 [of METRIC] [in WINDOW] [for ARM]``, or with a metric instead of the aggregate."""
    factor = times(tokens) if is_factor(tokens.peek()) else Decimal(1)
    column = tokens.column
    if tokens.peek() in METRICS:
        second = _head(tokens)
    else:
        aggregate = read_aggregate(tokens)
        metric = tokens.one_of(_WITH_AGGREGATE, "a metric") if tokens.accept("of") else first.metric
        second = Selection(metric, aggregate)
    if second.aggregate is not None and not second.about.has_aggregate:
        tokens.fail(
            f"{second.metric} has a single value, so no {second.spread}; write '{second.spread} of METRIC'",
            column,
        )
    window = _window(tokens) if tokens.accept("in") else first.window
    second = _with_arm(tokens, replace(second, window=window, arm=first.arm))
    if second.about.unit != first.about.unit:
        tokens.fail(f"{first.metric} and {second.metric} are of different units; compare metrics of one unit", column)
    if second == first:
        tokens.fail(f"{first.head()} is compared with itself; name another window, arm or metric", column)
    return Multiple(factor, second)


def _arm_ratio(tokens: Tokens) -> Measure:
    """Parse an SLO ``p95(a) <= 0.7 * p95(b) of produce.latency [in PLACE]``, the older form for two arms."""
    aggregate, arm = _aggregate_of_arm(tokens)
    op, factor, column = _op(tokens, "<=", "<"), times(tokens), tokens.column
    second_aggregate, second_arm = _aggregate_of_arm(tokens)
    if second_aggregate != aggregate:
        first_name, second_name = aggregate_name(aggregate), aggregate_name(second_aggregate)
        tokens.fail(f"{first_name} can't be compared with {second_name}; use the same aggregate for both", column)
    if arm == second_arm:
        tokens.fail(f"arm {arm!r} is compared with itself; name two arms", column)
    tokens.one_of(("of",), "'of METRIC'")
    first = replace(Selection(tokens.one_of(_LATENCIES, "a latency"), aggregate), arm=arm)
    if tokens.accept("in"):
        every_us = _every_us(tokens, first)
        first = replace(first, every_us=every_us, window=_window(tokens))
    multiple = Multiple(factor, replace(first, every_us=None, arm=second_arm))
    return _ended(tokens, Measure(first, op, multiple), column)


def _aggregate_of_arm(tokens: Tokens) -> tuple[Aggregate, str]:
    aggregate = read_aggregate(tokens)
    tokens.one_of(("(",), "'(ARM)'")
    arm = tokens.name("an arm")
    tokens.one_of((")",), "')'")
    return aggregate, arm


def _recovery(tokens: Tokens) -> Recovery:
    """Parse the rest of an SLO ``recovery [(p99 <= 3 * steady for 5s)] < 5s after FAULT [for ARM]``."""
    q, factor, for_us = Recovery.q, Recovery.factor, Recovery.for_us
    if tokens.accept("("):
        q = quantile(tokens)
        tokens.one_of(("<=",), "a comparison")
        factor = times(tokens)
        tokens.one_of(("steady",), "'steady'")
        tokens.one_of(("for",), "'for TIME'")
        for_us = time_us(tokens)
        tokens.one_of((")",), "')'")
    op, limit_us = _op(tokens, "<", "<="), time_us(tokens)
    tokens.one_of(("after",), "'after FAULT'")
    after = tokens.name("a fault")
    arm = tokens.name("an arm") if tokens.accept("for") else None
    return Recovery(op, limit_us, after, arm, q, factor, for_us)


def _op(tokens: Tokens, *allowed: Op) -> Op:
    return cast("Op", tokens.one_of(allowed, "a comparison"))

"""Reads the quantities of the language: times, shares, factors, whole numbers, quantiles.

Rules: what is refused is still the next token, so that the error points at it; numbers are exact, and bounded.
"""

import re
from decimal import Decimal

from aftershock.results.slo.tokens import Tokens
from aftershock.results.slo.words import SECOND_US, SLOT_US_MIN, UNITS_US, Aggregate, Unit

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


def target(tokens: Tokens) -> Decimal:
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


def aggregate(tokens: Tokens) -> Aggregate:
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

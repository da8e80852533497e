"""Statements of a trial: each a line of the result table, with a figure, its interval, and a word for the result.

The word is confirmed, not seen, contradicted or inconclusive, depending on where the whole interval lies::

    below(bound)             no effect at 1                       within(low, high)
    ──────────┬───────────────────┬──────────▶            ──────┬────────────┬──────▶
    confirmed │     not seen      │ contradicted    contradicted│  confirmed │contradicted

An interval that straddles a line is inconclusive, and so is one from fewer than ``least`` observations (six blocks,
because five signs can't be more significant than 1 in 16). *Not seen* is an effect that is too small for the bound but
not contrary to it; such an interval may include the line of no effect.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from markupsafe import Markup

from aftershock.results.compare.comparison import BLOCKS_MIN, Tested

Word: TypeAlias = Literal["confirmed", "not seen", "contradicted", "inconclusive"]
Role: TypeAlias = Literal["claim", "control", "report"]


@dataclass(frozen=True)
class Estimate:
    """Figure with its interval. ``n`` counts blocks, moves or nodes, never records; None is unknown.

    ``confidence``: confidence level of the interval; 0.9 for equivalence, which corresponds to two one-sided tests
    (TOST) at 0.05. ``p``: p-value of an exact test that flips the signs of the blocks, if such a test applies.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    unit: str = ""
    confidence: float = 0.95
    p: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Judged:
    """Result for one claim: the measured figure, the result word, and the reason in a sentence."""

    ours: Estimate
    word: Word
    why: str


@dataclass(frozen=True)
class Statement:
    """Claim with its measured result. A statement of role ``report`` is shown but has no effect on the verdict.

    ``published``: the figure in the KIP's text; ``bound``: the condition for *confirmed*, in words.
    """

    id: str
    claim: str
    published: str
    bound: str
    ours: Estimate
    word: Word
    why: str
    role: Role


def ratio_of(tested: Tested, n: int, confidence: float = 0.95) -> Estimate:
    """Return the ratio of paired blocks, without an interval if a block has no value."""
    if (interval := tested.interval) is None:
        return Estimate(None, None, None, n, "times", confidence, tested.p)
    return Estimate(interval.ratio, interval.low, interval.high, n, "times", confidence, tested.p_flip)


def unknown(unit: str = "") -> Estimate:
    """Return an estimate without a value, because nothing was measured."""
    return Estimate(None, None, None, 0, unit)


def below(ours: Estimate, bound: float, no_effect: float = 1.0, least: int = BLOCKS_MIN) -> Judged:
    """Confirm that the whole interval is below ``bound``; contradicted if it is all above ``no_effect`` >= bound."""
    if undecided := _undecided(ours, least):
        return undecided
    low, high = ours.interval or (0.0, 0.0)
    if high < bound:
        return Judged(ours, "confirmed", f"the whole interval is below {bound:g}")
    if low > no_effect:
        return Judged(ours, "contradicted", f"the whole interval is above {no_effect:g}")
    if low >= bound and bound != no_effect:
        return Judged(ours, "not seen", f"no part of the interval is below {bound:g}")
    return Judged(ours, "inconclusive", f"the interval includes {bound:g}: more blocks are needed")


def above(ours: Estimate, bound: float, no_effect: float = 0.0, least: int = BLOCKS_MIN) -> Judged:
    """Confirm that the whole interval is above ``bound``; contradicted if it is all below ``no_effect`` <= bound."""
    if undecided := _undecided(ours, least):
        return undecided
    low, high = ours.interval or (0.0, 0.0)
    if low > bound:
        return Judged(ours, "confirmed", f"the whole interval is above {bound:g}")
    if high < no_effect:
        return Judged(ours, "contradicted", f"the whole interval is below {no_effect:g}")
    if high <= bound and bound != no_effect:
        return Judged(ours, "not seen", f"no part of the interval is above {bound:g}")
    return Judged(ours, "inconclusive", f"the interval includes {bound:g}: more blocks are needed")


def within(ours: Estimate, low: float, high: float, least: int = BLOCKS_MIN) -> Judged:
    """Confirm that the whole interval is within a margin: with a 90 % interval this is TOST at 0.05."""
    if undecided := _undecided(ours, least):
        return undecided
    ours_low, ours_high = ours.interval or (0.0, 0.0)
    if low <= ours_low and ours_high <= high:
        return Judged(ours, "confirmed", f"the whole interval is within {low:g} to {high:g}")
    if ours_high < low or ours_low > high:
        return Judged(ours, "contradicted", f"the whole interval is outside {low:g} to {high:g}")
    return Judged(ours, "inconclusive", f"the interval extends beyond {low:g} to {high:g}: more blocks are needed")


def fact(holds: bool | None, of: Estimate, why: str) -> Judged:  # noqa: FBT001 - a yes-or-no fact
    """Judge a yes-or-no fact; inconclusive if ``holds`` is None or nothing was observed."""
    if holds is None or of.n < 1:
        return Judged(of, "inconclusive", why)
    return Judged(of, "confirmed" if holds else "contradicted", why)


def report(ours: Estimate, why: str) -> Judged:
    """Report a figure without a bound; it has no effect on the verdict."""
    return Judged(ours, "inconclusive", why)


def add_reason(judged: Judged, text: str) -> Judged:
    """Return the result with ``text`` added to its reason, after a semicolon."""
    return Judged(judged.ours, judged.word, "; ".join(filter(None, (judged.why, text))))


def _undecided(ours: Estimate, least: int) -> Judged | None:
    if ours.n < least:
        return Judged(ours, "inconclusive", f"too few observations: {ours.n} of {least}")
    if ours.interval is None:
        why = "no figure: some blocks have no value, which counts as slower than any value"
        return Judged(ours, "inconclusive", why)
    return None


def figure(ours: Estimate) -> str:
    """Return ``0.21 times, 0.17 .. 0.26 (95 %), n = 40, p = 0.0005``."""
    if ours.value is None:
        return f"no figure, n = {ours.n}"
    unit = f" {ours.unit}" if ours.unit else ""
    texts = [f"{_number(ours.value)}{unit}"]
    if ours.interval:
        texts.append(f"{' .. '.join(map(_number, ours.interval))} ({100 * ours.confidence:g} %)")
    texts.append(f"n = {ours.n}")
    if ours.p is not None:
        texts.append(f"p = {ours.p:.2g}" if ours.p >= 0.0001 else "p < 0.0001")  # noqa: PLR2004
    return ", ".join(texts)


def _number(value: float) -> str:
    """Format with three significant digits, or with all digits of the integer part: ``0.0118``, ``28,800``."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"  # noqa: PLR2004


def word(statement: Statement) -> str:
    return statement.word if statement.bound else "-"


@dataclass(frozen=True)
class Plot:
    """Chart of a trial's page; the name under which ``svg`` was rendered is unique in the page."""

    title: str
    svg: Markup
    reading: str

"""Statements of a trial, which are rows of the result table with a figure, its interval, and a result word.

The result word is confirmed, not seen, contradicted or inconclusive, by where the whole interval lies::

    below(bound)             no effect at 1                       within(low, high)
    ──────────┬───────────────────┬──────────▶            ──────┬────────────┬──────▶
    confirmed │     not seen      │ contradicted    contradicted│  confirmed │contradicted

A result is inconclusive if its interval straddles a bound, or comes from fewer than ``least`` observations (by default
six, because a sign test of five blocks of the plan can't be more significant than 1 in 16). The result *not seen* means
an effect that is too small for the bound but not contrary to the claim; the interval may include the line of no effect.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from markupsafe import Markup

from aftershock.results.compare.comparison import BLOCKS_MIN, Tested

Word: TypeAlias = Literal["confirmed", "not seen", "contradicted", "inconclusive"]
Role: TypeAlias = Literal["claim", "control", "report"]


@dataclass(frozen=True)
class Estimate:
    """A measured figure with its confidence interval.

    ``n`` is the number of observations (such as blocks of the plan, slices of time or brokers), never of records.
    ``confidence`` is the confidence level of the interval; 0.9 for equivalence, which corresponds to two one-sided
    tests (TOST) at 0.05. ``p`` is the p-value of a sign-flip test of the blocks, None without such a test.
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
    """Result of one claim, with the measured figure, the result word (such as confirmed), and the reason."""

    ours: Estimate
    word: Word
    why: str


@dataclass(frozen=True)
class Statement:
    """Claim about a KIP with the measured result; a statement of role ``report`` has no effect on the verdict.

    ``published`` is the figure in the KIP's text; ``bound`` is the condition for *confirmed*, in words.
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
    """Return the ratio of two clients from paired blocks of the plan, without an interval if a block has no value."""
    if (interval := tested.interval) is None:
        return Estimate(None, None, None, n, "times", confidence, tested.p)
    return Estimate(interval.ratio, interval.low, interval.high, n, "times", confidence, tested.p_flip)


def unknown(unit: str = "") -> Estimate:
    return Estimate(None, None, None, 0, unit)


def below(ours: Estimate, bound: float, no_effect: float = 1.0, least: int = BLOCKS_MIN) -> Judged:
    """Judge an estimate, confirmed if its interval is below ``bound``, contradicted if above ``no_effect`` >= bound."""
    if undecided := _undecided(ours, least):
        return undecided
    low, high = ours.interval or (0.0, 0.0)
    if high < bound:
        return Judged(ours, "confirmed", f"the whole confidence interval is below {bound:g}")
    if low > no_effect:
        return Judged(ours, "contradicted", f"the whole confidence interval is above {no_effect:g}")
    if low >= bound and bound != no_effect:
        return Judged(ours, "not seen", f"no part of the confidence interval is below {bound:g}")
    return Judged(
        ours, "inconclusive", f"the confidence interval includes {bound:g}: repeat the trial with more blocks"
    )


def above(ours: Estimate, bound: float, no_effect: float = 0.0, least: int = BLOCKS_MIN) -> Judged:
    """Judge an estimate, confirmed if its interval is above ``bound``, contradicted if below ``no_effect`` <= bound."""
    if undecided := _undecided(ours, least):
        return undecided
    low, high = ours.interval or (0.0, 0.0)
    if low > bound:
        return Judged(ours, "confirmed", f"the whole confidence interval is above {bound:g}")
    if high < no_effect:
        return Judged(ours, "contradicted", f"the whole confidence interval is below {no_effect:g}")
    if high <= bound and bound != no_effect:
        return Judged(ours, "not seen", f"no part of the confidence interval is above {bound:g}")
    return Judged(
        ours, "inconclusive", f"the confidence interval includes {bound:g}: repeat the trial with more blocks"
    )


def within(ours: Estimate, low: float, high: float, least: int = BLOCKS_MIN) -> Judged:
    """Judge an estimate, confirmed if its interval is in ``low`` to ``high`` (TOST at 0.05 for a 90 % interval)."""
    if undecided := _undecided(ours, least):
        return undecided
    ours_low, ours_high = ours.interval or (0.0, 0.0)
    if low <= ours_low and ours_high <= high:
        return Judged(ours, "confirmed", f"the whole confidence interval is within {low:g} to {high:g}")
    if ours_high < low or ours_low > high:
        return Judged(ours, "contradicted", f"the whole confidence interval is outside {low:g} to {high:g}")
    why = f"part of the confidence interval is outside {low:g} to {high:g}: repeat the trial with more blocks"
    return Judged(ours, "inconclusive", why)


def fact(holds: bool | None, of: Estimate, why: str) -> Judged:  # noqa: FBT001 - a yes-or-no fact
    """Judge a yes-or-no fact, inconclusive without a value of ``holds`` or without observations."""
    if holds is None or of.n < 1:
        return Judged(of, "inconclusive", why)
    return Judged(of, "confirmed" if holds else "contradicted", why)


def report(ours: Estimate, why: str) -> Judged:
    """Return the result of a claim that is only reported, so that its figure is not judged."""
    return Judged(ours, "inconclusive", why)


def add_reason(judged: Judged, text: str) -> Judged:
    """Return the result of a claim with ``text`` added to its reason, after a semicolon."""
    return Judged(judged.ours, judged.word, "; ".join(filter(None, (judged.why, text))))


def _undecided(ours: Estimate, least: int) -> Judged | None:
    if ours.n < least:
        return Judged(ours, "inconclusive", f"{ours.n} observations are too few; at least {least} are needed")
    if ours.interval is None:
        return Judged(
            ours, "inconclusive", "no confidence interval: an observation has no value, because records failed"
        )
    return None


def figure(ours: Estimate) -> str:
    """Format an estimate, as in ``0.21 times, 0.17 to 0.26 (95 %), n = 40, p = 0.0005``."""
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
    """Format a number with three significant digits or a whole integer part, as in ``0.0118`` or ``28,800``."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"  # noqa: PLR2004


def word(statement: Statement) -> str:
    return statement.word if statement.bound else "-"


@dataclass(frozen=True)
class Plot:
    """Chart on the page of a trial; ``reading`` is a sentence that explains the chart."""

    title: str
    svg: Markup
    reading: str

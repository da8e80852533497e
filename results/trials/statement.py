"""What a trial says: one statement a line of the result table, each with its figure, interval and word.

The word for a figure: confirmed, not seen, contradicted or inconclusive, by where its whole interval lies.

::

    below(bound)             no effect at 1                       within(low, high)
    ──────────┬───────────────────┬──────────▶            ──────┬────────────┬──────▶
    confirmed │     not seen      │ contradicted    contradicted│  confirmed │contradicted

Rules: an interval that straddles a line is inconclusive, and so is one of fewer than ``least`` (six blocks: what five
signs can say is 1 in 16). *Not seen* is an effect too small for the bound and not contrary to it; at the line of no
effect an interval may lie on both sides of it. Nothing observed is never confirmed. Each answer has its reason.

How figures of a trial are shown, the same on the terminal, the page and in the table.

A picture of a trial's report page, with the line under it that says what to see in it.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from markupsafe import Markup

from aftershock.results.compare.comparison import BLOCKS_MIN, Tested

Word: TypeAlias = Literal["confirmed", "not seen", "contradicted", "inconclusive"]
Role: TypeAlias = Literal["claim", "control", "report"]


@dataclass(frozen=True)
class Estimate:
    """A figure with where it lies. ``n`` counts blocks, moves or nodes, never records; None is what can't be told.

    ``confidence``: of the interval; 0.9 where equivalence is asked for, whose two one-sided tests it is the picture of.
    ``p``: of an exact test that flips the signs of the blocks, where there is one.
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
        """Both ends, or None where one is not known."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Judged:
    """What the evidence says of one claim, and why in a sentence."""

    ours: Estimate
    word: Word
    why: str


@dataclass(frozen=True)
class Statement:
    """A claim beside what was measured. ``report``: shown, and decides nothing.

    ``published``: the figure in the KIP's own text; ``bound``: what ours must be for *confirmed*, in words.
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
    """The ratio of paired blocks; without an interval where a block has no value."""
    if (found := tested.interval) is None:
        return Estimate(None, None, None, n, "times", confidence, tested.p)
    return Estimate(found.ratio, found.low, found.high, n, "times", confidence, tested.p_flip)


def unknown(unit: str = "") -> Estimate:
    """Nothing was measured."""
    return Estimate(None, None, None, 0, unit)


def below(ours: Estimate, bound: float, no_effect: float = 1.0, least: int = BLOCKS_MIN) -> Judged:
    """Whether all of it is below ``bound``; contradicted where all of it is above ``no_effect``, which isn't below."""
    if untold := _untold(ours, least):
        return untold
    low, high = ours.interval or (0.0, 0.0)
    if high < bound:
        return _said(ours, "confirmed", f"all of the interval is below {bound:g}")
    if low > no_effect:
        return _said(ours, "contradicted", f"all of the interval is above {no_effect:g}")
    if low >= bound and bound != no_effect:
        return _said(ours, "not seen", f"none of the interval is below {bound:g}")
    return _straddles(ours, bound)


def above(ours: Estimate, bound: float, no_effect: float = 0.0, least: int = BLOCKS_MIN) -> Judged:
    """The same upwards: confirmed where all of it is above ``bound``, contradicted where all is below ``no_effect``."""
    if untold := _untold(ours, least):
        return untold
    low, high = ours.interval or (0.0, 0.0)
    if low > bound:
        return _said(ours, "confirmed", f"all of the interval is above {bound:g}")
    if high < no_effect:
        return _said(ours, "contradicted", f"all of the interval is below {no_effect:g}")
    if high <= bound and bound != no_effect:
        return _said(ours, "not seen", f"none of the interval is above {bound:g}")
    return _straddles(ours, bound)


def within(ours: Estimate, low: float, high: float, least: int = BLOCKS_MIN) -> Judged:
    """Whether it is the same within a margin: of a 90 % interval this is TOST at one in twenty."""
    if untold := _untold(ours, least):
        return untold
    ours_low, ours_high = ours.interval or (0.0, 0.0)
    if low <= ours_low and ours_high <= high:
        return _said(ours, "confirmed", f"all of the interval is within {low:g} to {high:g}")
    if ours_high < low or ours_low > high:
        return _said(ours, "contradicted", f"all of the interval is outside {low:g} to {high:g}")
    return _said(ours, "inconclusive", f"the interval reaches out of {low:g} to {high:g}: more blocks would tell")


def seen(holds: bool | None, of: Estimate, why: str) -> Judged:  # noqa: FBT001 - the question is yes or no
    """A fact that is so or not; None, or nothing looked at, is inconclusive."""
    if holds is None or of.n < 1:
        return _said(of, "inconclusive", why)
    return _said(of, "confirmed" if holds else "contradicted", why)


def reported(ours: Estimate, why: str) -> Judged:
    """A figure that has no bound: its word says that nothing was decided, whatever it is."""
    return _said(ours, "inconclusive", why)


def _untold(ours: Estimate, least: int) -> Judged | None:
    if ours.n < least:
        return _said(ours, "inconclusive", f"too few: {ours.n} of {least}")
    if ours.interval is None:
        return _said(ours, "inconclusive", "there is no figure: some have no value, which is slower than any")
    return None


def _straddles(ours: Estimate, bound: float) -> Judged:
    return _said(ours, "inconclusive", f"the interval reaches across {bound:g}: more blocks would tell")


def _said(ours: Estimate, word: Word, why: str) -> Judged:
    return Judged(ours, word, why)


NO_BOUND = "-"
_P_LEAST = 0.0001
_LONG = 1000


def figure(ours: Estimate) -> str:
    """``0.21 times, 0.17 .. 0.26 (95 %), n = 40, p = 0.0005``."""
    if ours.value is None:
        return f"no figure, n = {ours.n}"
    unit = f" {ours.unit}" if ours.unit else ""
    said = [f"{_number(ours.value)}{unit}"]
    if ours.interval:
        said.append(f"{' .. '.join(map(_number, ours.interval))} ({100 * ours.confidence:g} %)")
    said.append(f"n = {ours.n}")
    if ours.p is not None:
        said.append(f"p = {ours.p:.2g}" if ours.p >= _P_LEAST else f"p < {_P_LEAST:g}")
    return ", ".join(said)


def _number(value: float) -> str:
    """Three digits, or all before the point: ``0.0118``, ``28,800``."""
    return f"{value:.3g}" if abs(value) < _LONG else f"{value:,.0f}"


def word(statement: Statement) -> str:
    """Its word; what has no bound has none."""
    return statement.word if statement.bound else NO_BOUND


@dataclass(frozen=True)
class Plot:
    """``svg`` as ``results.report.svg.rendered`` makes it; its name is unique in the page."""

    title: str
    svg: Markup
    reading: str

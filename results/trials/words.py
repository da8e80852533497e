"""The word for a figure: confirmed, not seen, contradicted or inconclusive, by where its whole interval lies.

::

    below(bound)             no effect at 1                       within(low, high)
    ──────────┬───────────────────┬──────────▶            ──────┬────────────┬──────▶
    confirmed │     not seen      │ contradicted    contradicted│  confirmed │contradicted

Rules: an interval that straddles a line is inconclusive, and so is one of fewer than ``least`` (six blocks: what five
signs can say is 1 in 16). *Not seen* is an effect too small for the bound and not contrary to it; at the line of no
effect an interval may lie on both sides of it. Nothing observed is never confirmed. Each answer has its reason.
"""

from aftershock.results.comparing.comparison import BLOCKS_MIN
from aftershock.results.trials.statement import Estimate, Judged, Word


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

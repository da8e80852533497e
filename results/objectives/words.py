"""Readings in words and in the units that people read: a ``why`` says what was seen, a ``next`` what to do about it."""

import math
from fractions import Fraction

from aftershock.results.evidence import Evidence
from aftershock.results.objectives.readings import Reading
from aftershock.results.phases import RUN, length_s, windows_of
from aftershock.results.slo import Selection
from aftershock.results.slo.figures import percent, time

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

"""How figures and sentences are shown, alike in the terminal and in the report.

Rules: names come from strangers' plans, so what can't be printed is replaced; a censored value says so.
"""

from collections.abc import Sequence

from aftershock.results.check import Check, Status
from aftershock.results.verdict import Verdict

_SENTENCES = {
    Status.PASS: "every check passed",
    Status.FAIL: "a promise was broken",
    Status.INCONCLUSIVE: "the evidence does not decide it",
    Status.ERROR: "the harness failed",
}


def sentence(verdict: Verdict) -> str:
    """``FAIL: demo, seed 7: a promise was broken (2 of 40 checks failed, 1 inconclusive)``."""
    seed = "" if verdict.seed is None else f", seed {verdict.seed}"
    counts = tally([check.status for check in verdict.checks])
    return f"{verdict.status}: {printable(verdict.plan)}{seed}: {_SENTENCES[verdict.status]} ({counts})"


def tally(statuses: Sequence[Status]) -> str:
    """``2 of 40 checks failed, 1 inconclusive``, or ``40 of 40 checks passed``."""
    words = {Status.ERROR: "in error", Status.FAIL: "failed", Status.INCONCLUSIVE: "inconclusive"}
    counts = [(statuses.count(status), word) for status, word in words.items() if status in statuses]
    first, *others = counts or [(len(statuses), "passed")]
    told = [f"{first[0]} of {len(statuses)} checks {first[1]}", *[f"{count} {word}" for count, word in others]]
    return ", ".join(told)


def observed(check: Check) -> str:
    """``41.7 ms``; ``never`` for a censored value that was judged; ``-`` where there is nothing to show."""
    if check.observed is not None:
        return amount(check.observed, check.unit)
    return "never" if check.status is Status.FAIL else "-"


def threshold(check: Check) -> str:
    """What it was held against, with its unit."""
    return "-" if check.threshold is None else amount(check.threshold, check.unit)


def amount(value: float, unit: str) -> str:
    """Four significant digits, whole numbers whole: ``1712 ms``, ``0.052 s``, ``1080000 bytes``."""
    digits = f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004 - four digits
    return f"{digits} {unit}".rstrip()


def milliseconds(value_us: int | None) -> str:
    """Microseconds as ms; a dash for none."""
    return "-" if value_us is None else amount(value_us / 1e3, "").strip()


def printable(text: str) -> str:
    """``text`` without control characters: a name must not move a terminal's cursor."""
    return "".join(char if char.isprintable() else "?" for char in text)

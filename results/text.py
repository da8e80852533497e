"""How figures and sentences are shown, alike in the terminal and in the report.

Rules: names come from strangers' plans, so what can't be printed is replaced; a censored value says so.

Markdown that a stranger's names can't break: cells and tables.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from aftershock.results.checks.check import Check, Status, Verdict

_SENTENCES = {
    Status.PASS: "every check passed",
    Status.FAIL: "a promise was broken",
    Status.INCONCLUSIVE: "the evidence does not decide it",
    Status.ERROR: "the harness failed",
}


def sentence(verdict: Verdict) -> str:
    """``FAIL: demo, seed 7: a promise was broken (2 of 40 checks failed, 1 inconclusive; 3 more are watched)``."""
    seed = "" if verdict.seed is None else f", seed {verdict.seed}"
    counts = tally([check.status for check in verdict.gating])
    watched = len(verdict.checks) - len(verdict.gating)
    counts += f"; {watched} more {'is' if watched == 1 else 'are'} watched" if watched else ""
    return f"{verdict.status}: {printable(verdict.plan)}{seed}: {_SENTENCES[verdict.status]} ({counts})"


def tally(statuses: Sequence[Status], what: str = "checks") -> str:
    """``2 of 40 checks failed, 1 inconclusive``, or ``40 of 40 checks passed``; ``what``: of what."""
    words = {Status.ERROR: "in error", Status.FAIL: "failed", Status.INCONCLUSIVE: "inconclusive"}
    counts = [(statuses.count(status), word) for status, word in words.items() if status in statuses]
    first, *others = counts or [(len(statuses), "passed")]
    told = [f"{first[0]} of {len(statuses)} {what} {first[1]}", *[f"{count} {word}" for count, word in others]]
    return ", ".join(told)


def observed(check: Check) -> str:
    """``41.7 ms``; ``never`` for a censored value that was judged; ``-`` where there is nothing to show."""
    if check.observed is not None:
        return amount(check.observed, check.unit)
    return "never" if check.status is Status.FAIL else "-"


def threshold(check: Check) -> str:
    """What it was held against, with its unit."""
    return "-" if check.threshold is None else amount(check.threshold, check.unit)


def details(check: Check) -> list[tuple[str, str]]:
    """What is known of a check besides its reason: names and values, without those that there are none of.

    ``[("observed", "41.7 ms"), ("threshold", "25 ms"), ("n", "2000, at least 200"), ("records", "0:7, 1:12")]``
    """
    facts = {
        "observed": observed(check),
        "threshold": threshold(check),
        "n": f"{check.n}, at least {check.minimum}" + (f", {check.censored} censored" if check.censored else ""),
        "records": ", ".join(f"{producer}:{seq}" for producer, seq in check.samples),
        "next": check.next or "",
        "asked for at": check.at or "",
    }
    return [(name, value) for name, value in facts.items() if value not in ("", "-")]


def troubled(verdict: Verdict) -> list[Check]:
    """What needs attention: the worst first; among equals the causes (witness, harness) before what they leave open.

    What is only watched comes last: the run's status does not hang on it.
    """
    unsettled = (check for check in verdict.checks if check.status is not Status.PASS)
    return sorted(unsettled, key=_urgency)


def _urgency(check: Check) -> tuple[bool, int, bool]:
    return not check.gate, -check.status.severity, check.kind in ("slo", "compare")


def status(check: Check) -> str:
    """``FAIL``; ``FAIL (watched)`` where the run's status does not hang on it (``gate: report``)."""
    return check.status.value if check.gate else f"{check.status} (watched)"


def run_s(run: Mapping[str, Any]) -> float | None:
    """From the start of a run (its ``run.json``) to the end of its load; None where it did not come to that."""
    end_us = (run.get("marks") or {}).get("load_end_us")
    return None if end_us is None else end_us / 1e6


def amount(value: float, unit: str) -> str:
    """Four significant digits, whole numbers whole: ``1712 ms``, ``0.052 s``, ``1080000 bytes``."""
    digits = f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004 - four digits
    return f"{digits} {unit}".rstrip()


def milliseconds(value_us: int | None) -> str:
    """Microseconds as ms; a dash for none."""
    return "-" if value_us is None else amount(value_us / 1e3, "").strip()


def megabytes(size_bytes: int) -> str:
    """``12.3 MB``, ``40 kB``."""
    kilo = 1000
    return f"{size_bytes / kilo**2:.3g} MB" if size_bytes >= kilo**2 else f"{size_bytes / kilo:.0f} kB"


def seconds(value_s: float) -> str:
    """``6.572 s``, ``63.83 s``."""
    return amount(value_s, "s")


def printable(text: str) -> str:
    """``text`` without control characters: a name must not move a terminal's cursor."""
    return "".join(char if char.isprintable() else "?" for char in text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    yield _line(head)
    yield _line(["---"] * len(head))
    yield from map(_line, rows)


def cell(text: str) -> str:
    """A name from a plan must neither end a cell nor become markup."""
    for special in "\\`*_[]<>|":
        text = text.replace(special, f"\\{special}")
    return printable(text)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(cell, cells))} |\n"

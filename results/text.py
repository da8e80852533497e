"""Formatting of figures, checks and tables, the same in the terminal, in Markdown and in the report.

Rules: names come from plans that others wrote, so unprintable characters are replaced and Markdown is escaped. A
censored value is shown as such.
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


def tally(statuses: Sequence[Status], noun: str = "checks") -> str:
    """``2 of 40 checks failed, 1 inconclusive``, or ``40 of 40 checks passed``."""
    words = {Status.ERROR: "in error", Status.FAIL: "failed", Status.INCONCLUSIVE: "inconclusive"}
    counts = [(statuses.count(status), word) for status, word in words.items() if status in statuses]
    (count, word), *rest = counts or [(len(statuses), "passed")]
    return ", ".join([f"{count} of {len(statuses)} {noun} {word}", *[f"{count} {word}" for count, word in rest]])


def observed(check: Check) -> str:
    """``41.7 ms``; ``never`` for a censored value that failed; ``-`` where there is no value."""
    if check.observed is not None:
        return amount(check.observed, check.unit)
    return "never" if check.status is Status.FAIL else "-"


def threshold(check: Check) -> str:
    """The threshold with its unit, or ``-``."""
    return "-" if check.threshold is None else amount(check.threshold, check.unit)


def details(check: Check) -> list[tuple[str, str]]:
    """Names and values of everything known about a check besides its reason; empty values are left out.

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


def problems(verdict: Verdict) -> list[Check]:
    """The checks that did not pass, the most urgent first.

    Gating checks come before watched ones, worse statuses before better ones. Among equals the causes (witness,
    exposure, harness, integrity) come before the slo and compare checks that depend on them.
    """

    def urgency(check: Check) -> tuple[bool, int, bool]:
        return not check.gate, -check.status.severity, check.kind in ("slo", "compare")

    return sorted((check for check in verdict.checks if check.status is not Status.PASS), key=urgency)


def status(check: Check) -> str:
    """``FAIL``; ``FAIL (watched)`` where the run's status does not depend on the check (``gate: report``)."""
    return check.status.value if check.gate else f"{check.status} (watched)"


def run_s(run: Mapping[str, Any]) -> float | None:
    """Seconds from the start of a run (its ``run.json``) to the end of its load; None where the load never ended."""
    end_us = (run.get("marks") or {}).get("load_end_us")
    return None if end_us is None else end_us / 1e6


def amount(value: float, unit: str) -> str:
    """Four significant digits, integers without a fraction: ``1712 ms``, ``0.052 s``, ``1080000 bytes``."""
    digits = f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004 - four digits
    return f"{digits} {unit}".rstrip()


def milliseconds(value_us: int | None) -> str:
    """Microseconds as milliseconds, without the unit; a dash for None."""
    return "-" if value_us is None else amount(value_us / 1e3, "")


def megabytes(size_bytes: int) -> str:
    """``12.3 MB``, ``40 kB``."""
    kilo = 1000
    return f"{size_bytes / kilo**2:.3g} MB" if size_bytes >= kilo**2 else f"{size_bytes / kilo:.0f} kB"


def seconds(value_s: float) -> str:
    """``6.572 s``, ``63.83 s``."""
    return amount(value_s, "s")


def printable(text: str) -> str:
    """``text`` with unprintable characters replaced: a name must not move a terminal's cursor."""
    return "".join(char if char.isprintable() else "?" for char in text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(map(cell, cells))} |\n"


def cell(text: str) -> str:
    """``text`` escaped for a Markdown table: a name must neither end a cell nor become markup."""
    for special in "\\`*_[]<>|":
        text = text.replace(special, f"\\{special}")
    return printable(text)

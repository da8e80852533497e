"""Formatting of figures, checks and tables; they look the same in the terminal, in Markdown and in the report.

Names come from plans of unknown origin, so unprintable characters in names are replaced and Markdown is escaped.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from aftershock.results.model.check import Check, Status, Verdict, percent
from aftershock.results.model.facts import Explained

EXPLAINED_MAX = 20

_HIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SENTENCES = {
    Status.PASS: "every check passed",
    Status.FAIL: "a requirement was violated",
    Status.INCONCLUSIVE: "the evidence is not sufficient for a verdict",
    Status.ERROR: "the harness failed",
}


def sentence(verdict: Verdict) -> str:
    """Summarise a verdict in a line with status, plan, seed, reason and the number of checks with each status."""
    seed = "" if verdict.seed is None else f", seed {verdict.seed}"
    counts = tally([check.status for check in verdict.gating])
    report_only = len(verdict.checks) - len(verdict.gating)
    counts += f"; {report_only} more {'is' if report_only == 1 else 'are'} only reported" if report_only else ""
    altered = " (evidence was changed after the run)" if verdict.trusted else ""
    altered += (
        " (as stored by the author of the pack; `aftershock verdict` judges it here)" if verdict.by_author else ""
    )
    return f"{verdict.status}{altered}: {printable(verdict.plan)}{seed}: {_SENTENCES[verdict.status]} ({counts})"


def certainty(verdict: Verdict) -> str:
    """Say on how much evidence a verdict rests: records examined, time in which progress was due, repetitions."""
    lost = [check for check in verdict.checks if check.id == "integrity/lost"]
    examined = {
        "acknowledged records": sum(check.n for check in lost if check.subject.endswith("produce")),
        "records due to readers": sum(check.n for check in lost if check.subject.endswith("consume")),
    }
    parts = [f"{n} {words}" for words, n in examined.items() if n]
    if shares := [check.share for check in verdict.checks if check.share is not None]:
        parts.append(f"progress was required for at least {percent(min(shares))} of the time")
    if repeated := [answer.injections for answer in verdict.answers if answer.fault]:
        parts.append(
            "each fault injected once" if max(repeated) == 1 else f"faults injected up to {max(repeated)} times"
        )
    return f"examined: {'; '.join(parts)}" if parts else ""


def tally(statuses: Sequence[Status], noun: str = "checks") -> str:
    """Count statuses in words, as in ``2 of 40 checks failed, 1 inconclusive`` or ``40 of 40 checks passed``."""
    words = {Status.ERROR: "in error", Status.FAIL: "failed", Status.INCONCLUSIVE: "inconclusive"}
    counts = [(statuses.count(status), word) for status, word in words.items() if status in statuses]
    (first_count, first_word), *further = counts or [(len(statuses), "passed")]
    texts = [f"{first_count} of {len(statuses)} {noun} {first_word}", *[f"{count} {word}" for count, word in further]]
    return ", ".join(texts)


def observed(check: Check) -> str:
    """The value observed by a check, such as ``41.7 ms``; ``never`` for a censored value, ``-`` without a value."""
    if check.observed is not None:
        return amount(check.observed, check.unit)
    return "never" if check.status is Status.FAIL else "-"


def threshold(check: Check) -> str:
    """A check's threshold with its unit, or ``-`` for a check without a threshold."""
    return "-" if check.threshold is None else amount(check.threshold, check.unit)


def explained(verdict: Verdict) -> list[tuple[Check, Explained]]:
    """The anomalies that a cause permits, or may permit, by check and cause; the most frequent cause of a check first.

    A check has at most ``EXPLAINED_MAX`` causes here; ``verdict.json`` has all.
    """
    return [
        (check, part)
        for check in verdict.checks
        for part in sorted(check.explained, key=lambda part: (part.certain, -part.n))[:EXPLAINED_MAX]
    ]


def explanation(check: Check, part: Explained) -> str:
    """A sentence such as ``integrity/lost arm=a produce: 31 explained by the change of leader … (leaders.jsonl)``."""
    by = "explained by" if part.certain else "perhaps explained by"
    return f"{check.id} {check.subject}: {part.n} {check.unit} {by} {part.cause} ({part.evidence})"


def details(check: Check) -> list[tuple[str, str]]:
    """Names and values of a check's fields that are not empty, as in ``[("observed", "41.7 ms"), ("n", "2000")]``."""
    facts = {
        "observed": observed(check),
        "threshold": threshold(check),
        "n": f"{check.n}, at least {check.minimum}" + (f", {check.censored} censored" if check.censored else ""),
        "records": ", ".join(f"{producer}:{seq}" for producer, seq in check.samples),
        "next": check.next or "",
        "SLO at": check.at or "",
    }
    return [(name, value) for name, value in facts.items() if value not in ("", "-")]


def problems(verdict: Verdict) -> list[Check]:
    """The checks that did not pass, the most urgent first."""
    return by_urgency([check for check in verdict.checks if check.status is not Status.PASS])


def by_urgency(checks: Iterable[Check]) -> list[Check]:
    """Sort checks.

    Checks that determine the run's status come before checks that are only reported, and worse statuses come first.
    Causes (witness, exposure, harness, integrity) come before the slo and compare checks that depend on these causes.
    """

    def urgency(check: Check) -> tuple[bool, int, bool]:
        return not check.gate, -check.status.severity, check.kind in ("slo", "compare")

    return sorted(checks, key=urgency)


def status(check: Check) -> str:
    """A check's status as text; ``FAIL (report only)`` if the run's status does not depend on the check."""
    return check.status.value if check.gate else f"{check.status} (report only)"


def run_s(run: Mapping[str, Any]) -> float | None:
    """Seconds from the start of a run (its ``run.json``) to the end of the load; None if the load never ended."""
    end_us = (run.get("marks") or {}).get("load_end_us")
    return None if end_us is None else end_us / 1e6


def amount(value: float, unit: str) -> str:
    """Format a value with four significant digits, such as ``1712 ms``, ``0.052 s`` or ``1080000 bytes``."""
    digits = f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004 - four digits
    return f"{digits} {unit}".rstrip()


def milliseconds(value_us: int | None) -> str:
    """Format microseconds as milliseconds without the unit; a dash for None."""
    return "-" if value_us is None else amount(value_us / 1e3, "")


def megabytes(size_bytes: int) -> str:
    """Format a number of bytes, such as ``12.3 MB`` or ``40 kB``."""
    kilo = 1000
    return f"{size_bytes / kilo**2:.3g} MB" if size_bytes >= kilo**2 else f"{size_bytes / kilo:.0f} kB"


def seconds(value_s: float) -> str:
    """Format a time in seconds, such as ``6.572 s`` or ``63.83 s``."""
    return amount(value_s, "s")


def recovery(row: Mapping[str, Any], since: str = " after inject") -> str:
    """Describe a recovery, as in ``normal again 6.400 s after inject (before the heal); first calm 1.200 s; ..``.

    ``row`` is a row of ``analysis.json``; by definition 1 (``Recovered``) only the first calm is known.
    """
    recovered_us, lasting = row["recovered_us"], row.get("definition", 1) > 1
    if recovered_us is None:
        what = "not normal again" if lasting else "not recovered"
        text = f"{what} in the {row['observed_us'] / 1e6:.3f} s observed{since}"
    else:
        what = "normal again" if lasting else "recovered"
        text = f"{what} {recovered_us / 1e6:.3f} s{since}{_beside_heal(row)}"
    if not lasting:
        return text
    if row["first_calm_us"] is not None:
        text += f"; first calm {row['first_calm_us'] / 1e6:.3f} s; {row['slow_after']} slow records after it"
    return f"{text}; slow is over {milliseconds(row['limit_us'])} ms"


def _beside_heal(row: Mapping[str, Any]) -> str:
    after_us = row.get("after_heal_us")
    if after_us is None:
        return ""
    return f" (not before the heal, {after_us / 1e6:.3f} s after it)" if after_us > 0 else " (before the heal)"


def printable(text: str) -> str:
    """Replace unprintable characters, which could move a terminal's cursor."""
    return "".join(char if char.isprintable() else "?" for char in text)


def visible(text: str) -> str:
    """Replace control characters except newline and tab, and characters that hide or reorder the text around them."""
    return _HIDDEN.sub("?", text)


def xml_text(text: str) -> str:
    """Replace the characters that XML 1.0 can't hold, not even escaped."""
    return _NOT_XML.sub("?", text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(map(cell, cells))} |\n"


def cell(text: str) -> str:
    for special in "\\`*_[]<>|":
        text = text.replace(special, f"\\{special}")
    return printable(text)

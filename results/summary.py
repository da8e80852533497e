"""The verdict as plain text for a terminal: the sentence first, then what needs attention, then a short table.

Rules: no line is wider than 80 columns; no colours, so that it can be piped.
"""

from collections.abc import Sequence
from textwrap import fill

from aftershock.results.check import Check, Status
from aftershock.results.shown import observed, printable, sentence, status, threshold, troubled
from aftershock.results.verdict import Verdict

WIDTH = 80
_ATTENTION_MAX = 6
_COLUMNS = (12, 11, 11, 43)


def summary(verdict: Verdict) -> str:
    """The text, with a newline at its end."""
    unsettled = troubled(verdict)
    blocks = [fill(sentence(verdict), WIDTH), *map(_attention, unsettled[:_ATTENTION_MAX])]
    if len(unsettled) > _ATTENTION_MAX:
        blocks.append(f"and {len(unsettled) - _ATTENTION_MAX} more, in verdict.json")
    blocks.append(_table([check for check in verdict.checks if check.kind in ("slo", "compare")]))
    blocks.append(_kinds(verdict))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _attention(check: Check) -> str:
    head = fill(printable(f"{status(check)} {check.id} ({check.subject})"), WIDTH, subsequent_indent="  ")
    samples = ", ".join(f"{producer}:{seq}" for producer, seq in check.samples[:5])
    more = ", ..." if len(check.samples) > 5 else ""  # noqa: PLR2004 - five samples fit a line
    said = [check.why, f"records: {samples}{more}" if samples else "", f"next: {check.next}" if check.next else ""]
    return "\n".join([head, *[_indented(printable(text)) for text in said if text]])


def _indented(text: str) -> str:
    return fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _table(checks: Sequence[Check]) -> str:
    if not checks:
        return ""
    rows = [("", "observed", "threshold", "check")]
    rows += [(check.status.value, observed(check), threshold(check), _label(check)) for check in checks]
    return "\n".join(" ".join(map(_cell, row, _COLUMNS)).rstrip() for row in rows)


def _label(check: Check) -> str:
    """The id without its kind, then the subject; the id is cut where both don't fit."""
    whose = check.subject.replace("arm=", "") + ("" if check.gate else " (watched)")
    name = check.id.split("/", 1)[1]
    room = max(_COLUMNS[-1] - len(whose) - 1, 8)
    return printable(f"{name if len(name) <= room else name[: room - 1] + '~'} {whose}")


def _cell(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else text[: width - 1] + "~"


def _kinds(verdict: Verdict) -> str:
    """One line a kind that the table leaves out: how many passed."""
    kinds = dict.fromkeys(check.kind for check in verdict.checks if check.kind not in ("slo", "compare"))
    lines = []
    for kind in kinds:
        statuses = [check.status for check in verdict.checks if check.kind == kind]
        lines.append(f"{kind:<12} {statuses.count(Status.PASS)} of {len(statuses)} passed")
    return "\n".join(lines)

"""The verdict as Markdown, for a pull request or a job's summary: the sentence, then every check in one table."""

from pathlib import Path

from aftershock.results.report.page import judged
from aftershock.results.shown import observed, printable, sentence, threshold

_COLUMNS = ("status", "check", "subject", "observed", "threshold", "n", "why", "next")


def markdown(run_dir: Path) -> str:
    """The text, with a newline at its end. Raises EvidenceError where the run was not judged."""
    verdict, _ = judged(run_dir)
    rows = [
        (c.status.value, c.id, c.subject, observed(c), threshold(c), str(c.n), c.why, c.next or "")
        for c in verdict.checks
    ]
    lines = [f"**{_cell(sentence(verdict))}**", "", _line(_COLUMNS), _line(["---"] * len(_COLUMNS)), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: "tuple[str, ...] | list[str]") -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    """A name from a plan must neither end a cell nor become markup."""
    for special in "\\`*_[]<>|":
        text = text.replace(special, f"\\{special}")
    return printable(text)

"""A trial in 80 columns, and as a document."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from aftershock.harness.trials.told import Told
from aftershock.results.trials import shown
from aftershock.results.trials.statement import Statement

SCHEMA_VERSION = 1
WIDTH = 80
_INDENT = 14


def text(told: Told) -> str:
    """The verdict, each statement with its figures, then what was not run, shortened, and where."""
    return "\n".join(
        [
            *_wrapped(f"KIP-{told.kip} {told.title}: {told.verdict.word.upper()}", ""),
            *_wrapped(told.verdict.why, "  "),
            *(line for statement in told.statements for line in _statement(statement)),
            "",
            *_lines("not run", [f"{name}: {why}" for name, why in told.left_out.items()]),
            *_lines("shorter", [f"{said}, so the interval is wider" for said in told.shortened]),
            *_lines("measured on", told.about),
            *_lines("runs", [f"{name}: {part.run.run_id}" for name, part in told.parts.items()]),
        ]
    )


def document(told: Sequence[Told]) -> dict[str, Any]:
    """What ``--json`` prints: every number, of every trial."""
    return {"schema_version": SCHEMA_VERSION, "trials": [_trial(each) for each in told]}


def _trial(told: Told) -> dict[str, Any]:
    return {
        "kip": told.kip,
        "title": told.title,
        "verdict": told.verdict.word,
        "why": told.verdict.why,
        "statements": [asdict(statement) for statement in told.statements],
        "runs": {name: part.run.run_id for name, part in told.parts.items()},
        "not_run": dict(told.left_out),
        "shortened": list(told.shortened),
        "measured_on": list(told.about),
    }


def _statement(statement: Statement) -> Iterator[str]:
    yield ""
    yield from _row(statement.role, statement.claim)
    if statement.published:
        yield from _row("published", statement.published)
    yield from _row("ours", shown.figure(statement.ours))
    if statement.bound:
        yield from _row("word", f"{statement.word} (asked: {statement.bound})")
    yield from _row("why", statement.why)


def _row(name: str, said: str) -> list[str]:
    return _wrapped(said, f"  {name:<{_INDENT - 2}}")


def _lines(name: str, said: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(said):
        yield from _row("" if number else name, line)


def _wrapped(said: str, first: str) -> list[str]:
    later = " " * (_INDENT if first.strip() else len(first))
    return textwrap.wrap(said, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)

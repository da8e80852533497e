"""One thing wrong with a plan, and where things stand in a plan."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Protocol

Loc = tuple[str | int, ...]
_RESERVED = {"for": "for_", "from": "from_"}


@dataclass(frozen=True)
class Problem:
    """``sentence`` says what is wrong and what to do; ``on_key``: the key at ``loc`` is meant, not its value."""

    loc: Loc
    sentence: str
    on_key: bool = False


def within(problems: Iterable[Problem], loc: Loc) -> Iterator[Problem]:
    """Problems of a part, placed in the whole."""
    return (replace(problem, loc=(*loc, *problem.loc)) for problem in problems)


class Places(Protocol):
    """Says where a part of a plan stands: a YAML document does, and so does a plan built in Python."""

    def position(self, loc: Loc) -> str:
        """Where the value at ``loc`` stands."""

    def key_position(self, loc: Loc) -> str:
        """Where its key stands."""


class PythonPlaces:
    """A plan built in Python: ``plan.faults[2].topic``."""

    def position(self, loc: Loc) -> str:
        """The expression that leads to the value."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{_RESERVED.get(step, step)}" for step in loc)
        return "plan" + "".join(steps)

    key_position = position


def worded(problems: Iterable[Problem], places: Places) -> list[str]:
    """``file:line:column: sentence`` each, in the order of the document, repeats left out."""
    placed = [
        (places.key_position(problem.loc) if problem.on_key else places.position(problem.loc), problem.sentence)
        for problem in problems
    ]
    return [f"{where}: {sentence}" for where, sentence in sorted(dict.fromkeys(placed), key=lambda it: _order(it[0]))]


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """``did you mean `orders`?``, else what is known: ``known here: a, b``."""
    known = sorted(known)
    close = get_close_matches(str(word), known, n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"known here: {', '.join(known)}" if known else "there are none"


def _order(where: str) -> tuple[int, int]:
    parts = where.rsplit(":", 2)
    is_file = len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal()  # noqa: PLR2004 -- file, line, column
    return (int(parts[1]), int(parts[2])) if is_file else (0, 0)

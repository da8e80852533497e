"""The coverage ledger, ``coverage.jsonl``: one JSON line a cell and run (``faults/coverage/line.py``); no server.

Rules: those of ``results/json_lines.py``; all lines of a run are added at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from aftershock.faults.coverage.line import SCHEMA_VERSION, Line, parsed
from aftershock.results import json_lines

NAME = "coverage.jsonl"
_OPTION = "--out"


@dataclass(frozen=True)
class Ledger:
    """What could be read, in the order of the file, and a sentence for each line that could not."""

    lines: tuple[Line, ...] = ()
    broken: tuple[str, ...] = ()

    def drawn(self, seed: int) -> int:
        """How many runs of a seed it has: the number of the next one."""
        return len({line.run_id for line in self.lines if line.seed == seed and line.number is not None})


def read(path: Path) -> Ledger:
    """The ledger; an empty one where there is no file yet. Raises EvidenceError where the file can't be read."""
    lines, broken = json_lines.read(path, parsed, SCHEMA_VERSION, "the coverage ledger", _OPTION)
    return Ledger(tuple(lines), tuple(broken))


def append(path: Path, lines: Iterable[Line]) -> None:
    """Add a run's lines, in one write. Raises EvidenceError where that can't be done."""
    json_lines.append(path, (line.to_json() for line in lines), _OPTION)

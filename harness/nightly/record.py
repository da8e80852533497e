"""What of a night is done, in ``nightly.json``, so that one that was interrupted goes on where it was.

A night is a day and a seed; another day, or another seed, begins anew.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from aftershock.results.files import write_whole

SCHEMA_VERSION = 1
NAME = "nightly.json"


@dataclass(frozen=True)
class Record:
    """``done``: the exit code of each step that is over."""

    night: date
    seed: int
    done: Mapping[str, int] = field(default_factory=dict)

    def having(self, step: str, code: int) -> "Record":
        """With one more step."""
        return replace(self, done={**self.done, step: code})


def read(out: Path, night: date, seed: int) -> Record:
    """Tonight's record; an empty one where there is none, or none that can be read."""
    new = Record(night, seed)
    try:
        said = json.loads((out / NAME).read_bytes())
        known = (said["schema_version"], said["night"], said["seed"]) == (SCHEMA_VERSION, night.isoformat(), seed)
        return replace(new, done={str(step): int(code) for step, code in said["done"].items()}) if known else new
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return new


def write(out: Path, record: Record) -> None:
    """Write it whole."""
    told = {"night": record.night.isoformat(), "seed": record.seed, "done": dict(record.done)}
    write_whole(out / NAME, json.dumps({"schema_version": SCHEMA_VERSION, **told}, indent=1) + "\n")

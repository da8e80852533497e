"""``trial.json``: which judged run each part of a trial has, so that what was run isn't run again.

Rules. It is written whole after each part, and only once that is judged: a trial that was interrupted goes on with the
part it was in. A run counts for a part while its plan, changes, seed and version are the same (``digest``) and its
folder is there; take the folder away to have the part run again. What has more blocks than were asked for counts, too.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.faults.check import load_plan
from aftershock.faults.plan import dump
from aftershock.faults.plans import find
from aftershock.harness.trials.trial import Planned
from aftershock.results.files import read_object, write_whole

NAME = "trial.json"
SEED = 1
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Done:
    """A part that was run. ``run``: the name of its folder, beside ``trial.json``."""

    digest: str
    blocks: int | None
    run: str


@dataclass(frozen=True)
class Record:
    """``left_out``: why parts were not run when the trial was last asked for; ``seed``: with which one that was."""

    kip: int
    parts: Mapping[str, Done] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    seed: int = SEED

    def done(self, part: Planned, blocks: int | None, home: Path) -> Done | None:
        """The run that the part has with at least so many blocks, if it counts."""
        found = self.parts.get(part.name)
        if found is None or self.stale(part) or not (home / found.run / "verdict.json").is_file():
            return None
        return found if (found.blocks or 0) >= (blocks or 0) else None

    def stale(self, part: Planned) -> bool:
        """Whether what it has is of another plan, or of another seed."""
        return part.name in self.parts and self.parts[part.name].digest != digest(part, self.seed)

    def having(self, part: Planned, blocks: int | None, run: str) -> "Record":
        """With this run of the part."""
        return replace(self, parts={**self.parts, part.name: Done(digest(part, self.seed), blocks, run)})


def digest(part: Planned, seed: int) -> str:
    """Of all that decides what the part is, but for its number of blocks."""
    plan = dump(load_plan(find(part.plan), part.changes).plan)
    told = {**plan, "blocks": None, "why": None, "seed": seed, "kafka": part.kafka}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def read(home: Path, kip: int) -> Record:
    """The record in ``home``; an empty one where there is none. EvidenceError where it can't be read."""
    path = home / NAME
    if not path.exists():
        return Record(kip)
    try:
        return _record(read_object(path))
    except (KeyError, TypeError, EvidenceError) as broken:
        raise EvidenceError(f"{path}: not as it was written ({broken}); remove it, and the parts run again") from broken


def write(home: Path, record: Record) -> None:
    """Keep it."""
    told = {"schema_version": SCHEMA_VERSION, **asdict(record)}
    write_whole(home / NAME, json.dumps(told, indent=1, sort_keys=True) + "\n")


def _record(told: Mapping[str, Any]) -> Record:
    parts = {name: Done(**done) for name, done in told["parts"].items()}
    return Record(told["kip"], parts, dict(told["left_out"]), told.get("seed", SEED))

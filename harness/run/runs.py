"""The run directories under a folder: which there are, and which may go.

Only a folder with a ``run.json`` of ours is a run. One whose process lives, or whose cluster stands, never goes.
"""

import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError, EvidenceError
from aftershock.harness.cluster import ownership
from aftershock.harness.cluster.ownership import Standing

_AGE = re.compile(r"(\d{1,5})([dhm])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


@dataclass(frozen=True)
class Run:
    """One run directory. ``status``: the verdict's if there is one, else how the run ended; ``owner``: its process."""

    path: Path
    started_at: datetime
    plan: str
    status: str
    size_bytes: int
    owner: str
    cluster: str

    @property
    def run_id(self) -> str:
        """The folder's name."""
        return self.path.name

    def to_json(self) -> dict[str, Any]:
        """What ``runs --json`` says of it."""
        told = {"run_id": self.run_id, "path": str(self.path), "started_at": self.started_at.isoformat()}
        return {**told, "plan": self.plan, "status": self.status, "size_bytes": self.size_bytes}

    @property
    def lives(self) -> bool:
        """Whether the process that drives it is still there."""
        return ownership.lives(self.owner)

    def stands(self, standing: Collection[Standing]) -> Standing | None:
        """Its cluster, if that stands: one launched for it, or one of a pool that it was the last to use."""
        home = self.path.resolve()
        ours = (
            cluster for cluster in standing if cluster.home == home or cluster.run_id in (self.run_id, self.cluster)
        )
        return next(ours, None)


@dataclass(frozen=True)
class Criteria:
    """Which runs may go: all but the newest ``keep``, those that began before ``before``; both where both are said."""

    keep: int | None
    before: datetime | None

    def chosen(self, runs: Sequence[Run]) -> list[Run]:
        """Of these, newest first."""
        old = list(runs)[self.keep or 0 :]
        return [run for run in old if self.before is None or run.started_at < self.before]


@dataclass(frozen=True)
class Pruning:
    """What may go, and what is spared with the reason."""

    condemned: Sequence[Run]
    spared: Sequence[tuple[Run, str]]

    @property
    def size_bytes(self) -> int:
        """How much there is to free."""
        return sum(run.size_bytes for run in self.condemned)


def find_run(name: str, out: Path) -> Path:
    """A run by its path, or by its id under ``out``. AftershockError if it is neither."""
    for path in (Path(name), out / name):
        if (path / "run.json").is_file():
            return path
    raise AftershockError(f"no run at {name} nor at {out / name} (a run directory holds a run.json); name one of those")


def runs_in(out: Path) -> list[Run]:
    """Every run under ``out``, newest first; a folder that isn't there has none."""
    if not out.is_dir():
        return []
    found = [run for path in out.iterdir() for run in _run(path)]
    return sorted(found, key=lambda run: (run.started_at, run.run_id), reverse=True)


def listed(runs: Sequence[Run], standing: Collection[Standing]) -> str:
    """The runs as a table of text, without a newline at the end; those whose cluster stands say so."""
    rows = [("run", "started (UTC)", "status", "size", "")]
    for run in runs:
        stands = "its cluster stands" if run.stands(standing) else ""
        rows.append((run.run_id, f"{run.started_at:%Y-%m-%d %H:%M}", run.status, size(run.size_bytes), stands))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def pruning(runs: Sequence[Run], criteria: Criteria, standing: Collection[Standing]) -> Pruning:
    """Which of the runs may go, by the criteria and by what still needs them."""
    condemned, spared = [], []
    for run in criteria.chosen(runs):
        cluster = run.stands(standing)
        if run.lives:
            spared.append((run, f"process {run.owner.partition(':')[0]} drives it"))
        elif cluster:
            spared.append((run, f"its cluster stands; aftershock cluster down --run {cluster.run_id}"))
        else:
            condemned.append(run)
    return Pruning(condemned, spared)


def remove(run: Run) -> None:
    """Remove a run directory. EvidenceError if the system refuses."""
    try:
        shutil.rmtree(run.path)
    except OSError as error:
        raise EvidenceError(f"can't remove {run.path}: {error.strerror}; remove it by hand") from error


def age(text: str) -> timedelta:
    """``30d``, ``12h`` or ``90m``. AftershockError for anything else."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise AftershockError(f"{text} is no age: give a number with its unit, like 30d, 12h or 90m")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def size(size_bytes: int) -> str:
    """``1.5 MB``."""
    kilo = 1000
    return f"{size_bytes / kilo**2:.1f} MB" if size_bytes >= kilo**2 else f"{size_bytes / kilo:.0f} kB"


def _run(path: Path) -> Iterator[Run]:
    """The run in a folder; none in one that isn't ours."""
    if path.is_symlink() or not (path / "run.json").is_file():
        return
    try:
        facts = json.loads((path / "run.json").read_text(encoding="utf-8"))
        started_at = datetime.fromisoformat(facts["started_at"]).astimezone(UTC)
        told = facts["run_id"], facts["plan"], facts["status"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    owner, cluster = str(facts.get("owner", "")), str(facts.get("cluster", told[0]))
    yield Run(path, started_at, str(told[1]), _status(path, facts), _size_bytes(path), owner, cluster)


def _status(path: Path, facts: dict[str, Any]) -> str:
    try:
        return str(json.loads((path / "verdict.json").read_text(encoding="utf-8"))["status"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    died = facts["status"] == "running" and not ownership.lives(str(facts.get("owner", "")))
    return "died" if died else str(facts["status"])


def _size_bytes(path: Path) -> int:
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(file.lstat().st_size for file in files)

"""The run directories under a folder: their list, and which of them may be removed.

Only a folder with a ``run.json`` of the harness is a run. A run whose process is alive, or whose cluster stands, is
never removed.
"""

import json
import os
import re
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError, EvidenceError
from aftershock.harness.cluster import ownership
from aftershock.harness.cluster.ownership import LabelledCluster

_AGE = re.compile(r"(\d{1,5})([dhm])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


@dataclass(frozen=True)
class Run:
    """One run directory.

    ``status`` is the verdict's if there is one, else how the run ended; ``owner`` is its process; ``cluster`` is the
    run id of the cluster that it used.
    """

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
        """Return the entry of ``runs --json``."""
        return {
            "run_id": self.run_id,
            "path": str(self.path),
            "started_at": self.started_at.isoformat(),
            "plan": self.plan,
            "status": self.status,
            "size_bytes": self.size_bytes,
        }

    def find_cluster(self, standing: Collection[LabelledCluster]) -> LabelledCluster | None:
        """Return its cluster if that stands: one launched for it, or a pooled one that it was the last to use."""
        home = self.path.resolve()
        candidates = (
            cluster for cluster in standing if cluster.home == home or cluster.run_id in (self.run_id, self.cluster)
        )
        return next(candidates, None)


@dataclass(frozen=True)
class Criteria:
    """Runs that may be removed: all but the newest ``keep``, and begun before ``before``; None sets no condition."""

    keep: int | None
    before: datetime | None


@dataclass(frozen=True)
class Pruning:
    """The runs to remove, and those spared with the reason."""

    condemned: Sequence[Run]
    spared: Sequence[tuple[Run, str]]

    @property
    def size_bytes(self) -> int:
        """The size of the runs to remove."""
        return sum(run.size_bytes for run in self.condemned)


def find_run(name: str, out: Path) -> Path:
    """Return a run by its path, or by its id under ``out``. Raises AftershockError if it is neither."""
    for path in (Path(name), out / name):
        if (path / "run.json").is_file():
            return path
    raise AftershockError(
        f"no run at {name} nor at {out / name} (a run directory holds a run.json); name one of those that "
        "`aftershock runs` lists"
    )


def runs_in(out: Path) -> list[Run]:
    """Return the runs under ``out``, newest first; an empty list if the folder does not exist."""
    if not out.is_dir():
        return []
    runs = [run for run in map(_read_run, out.iterdir()) if run]
    return sorted(runs, key=lambda run: (run.started_at, run.run_id), reverse=True)


def _read_run(path: Path) -> Run | None:
    """Return the run in a folder; None if it is not a run directory of the harness."""
    if path.is_symlink() or not (path / "run.json").is_file():
        return None
    try:
        facts = json.loads((path / "run.json").read_text(encoding="utf-8"))
        started_at = datetime.fromisoformat(facts["started_at"]).astimezone(UTC)
        run_id, plan, status = facts["run_id"], str(facts["plan"]), str(facts["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    owner = str(facts.get("owner", ""))
    if status == "running" and not ownership.is_alive(owner):
        status = "died"
    with suppress(OSError, ValueError, KeyError, TypeError):  # a run that is not judged has no verdict
        status = str(json.loads((path / "verdict.json").read_text(encoding="utf-8"))["status"])
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    size_bytes = sum(file.lstat().st_size for file in files)
    return Run(path, started_at, plan, status, size_bytes, owner, str(facts.get("cluster", run_id)))


def table(runs: Sequence[Run], standing: Collection[LabelledCluster]) -> str:
    """Return the runs as a text table without a final newline, with a remark on those whose cluster stands."""
    rows = [("run", "started (UTC)", "status", "size", "")]
    for run in runs:
        remark = "its cluster stands" if run.find_cluster(standing) else ""
        rows.append((run.run_id, f"{run.started_at:%Y-%m-%d %H:%M}", run.status, size(run.size_bytes), remark))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def pruning(runs: Sequence[Run], criteria: Criteria, standing: Collection[LabelledCluster]) -> Pruning:
    """Select the runs to remove, from ``runs`` with the newest first."""
    condemned, spared = [], []
    for run in list(runs)[criteria.keep or 0 :]:
        if criteria.before is not None and run.started_at >= criteria.before:
            continue
        cluster = run.find_cluster(standing)
        if ownership.is_alive(run.owner):
            spared.append((run, f"process {run.owner.partition(':')[0]} drives it"))
        elif cluster:
            spared.append((run, f"its cluster stands; aftershock cluster down --run {cluster.run_id}"))
        else:
            condemned.append(run)
    return Pruning(condemned, spared)


def remove(run: Run) -> None:
    """Remove a run directory. Raises EvidenceError if the system refuses."""
    try:
        shutil.rmtree(run.path)
    except OSError as error:
        raise EvidenceError(f"can't remove {run.path}: {error.strerror}; remove it by hand") from error


def parse_age(text: str) -> timedelta:
    """Parse ``30d``, ``12h`` or ``90m``. Raises AftershockError for anything else."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise AftershockError(f"{text} is not an age; give a number with its unit, for example 30d, 12h or 90m")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def size(size_bytes: int) -> str:
    """Return a size as text, such as ``1.5 MB``."""
    kilo = 1000
    return f"{size_bytes / kilo**2:.1f} MB" if size_bytes >= kilo**2 else f"{size_bytes / kilo:.0f} kB"

"""Listing and removal of the run directories under a folder."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError, EvidenceError
from aftershock.harness.safety import ownership
from aftershock.harness.safety.ownership import LabelledCluster


@dataclass(frozen=True)
class Run:
    """Run directory; ``owner`` is the process that executes the run, ``cluster`` the run id of the run's cluster.

    ``status`` is the verdict, or for an unjudged run the status in ``run.json``, or ``died`` if the run's process died.
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
        return self.path.name

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "path": str(self.path),
            "started_at": self.started_at.isoformat(),
            "plan": self.plan,
            "status": self.status,
            "size_bytes": self.size_bytes,
        }

    def find_cluster(self, standing: Collection[LabelledCluster]) -> LabelledCluster | None:
        """Return the cluster of the run if it exists and, for a warm cluster of a pool, has had no later run."""
        home, run_ids = self.path.resolve(), (self.run_id, self.cluster)
        return next((cluster for cluster in standing if cluster.home == home or cluster.run_id in run_ids), None)


def find_run(name: str, out: Path) -> Path:
    """Return a run directory by path, or by run id in ``out``; raise AftershockError if missing.

    ``name`` may also be a pack, or its URI on a Hadoop filesystem. It is unpacked into ``out``.
    """
    if name.endswith(".zip"):
        from aftershock.results.evidence.pack import unpack  # noqa: PLC0415 -- imports Arrow

        if "://" not in name:
            return unpack(Path(name), out)
        from aftershock.results.spark.remote import fetch  # noqa: PLC0415 -- imports Spark

        with tempfile.TemporaryDirectory(prefix="aftershock-pack-") as folder:
            return unpack(fetch(name, Path(folder)), out)
    for path in (Path(name), out / name):
        if (path / "run.json").is_file():
            return path
    raise AftershockError(
        f"no run at {name} nor at {out / name} (a run directory has a file run.json); `aftershock runs` lists the runs"
    )


def runs_in(out: Path) -> list[Run]:
    """Return the runs in the folder ``out``, newest first."""
    runs = [run for run in map(_read_run, out.iterdir() if out.is_dir() else ()) if run]
    return sorted(runs, key=lambda run: (run.started_at, run.run_id), reverse=True)


def _read_run(path: Path) -> Run | None:
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
    with suppress(OSError, ValueError, KeyError, TypeError):  # a run without a verdict
        status = str(json.loads((path / "verdict.json").read_text(encoding="utf-8"))["status"])
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    size_bytes = sum(file.lstat().st_size for file in files)
    return Run(path, started_at, plan, status, size_bytes, owner, str(facts.get("cluster", run_id)))


def table(runs: Sequence[Run], standing: Collection[LabelledCluster]) -> str:
    rows = [("run", "started (UTC)", "status", "size", "")]
    for run in runs:
        remark = "the run's cluster still exists" if run.find_cluster(standing) else ""
        rows.append((run.run_id, f"{run.started_at:%Y-%m-%d %H:%M}", run.status, size(run.size_bytes), remark))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def pruning(
    runs: Sequence[Run], standing: Collection[LabelledCluster], keep: int | None, before: datetime | None
) -> tuple[list[Run], list[tuple[Run, str]]]:
    """Return the runs to remove, and the runs in use (the process or cluster of the run exists) with the reasons.

    A run is to be removed if it started before ``before`` and is not one of the newest ``keep`` runs; a parameter with
    the value None sets no condition.
    """
    removable, in_use = [], []
    for run in runs[keep or 0 :]:
        if before is not None and run.started_at >= before:
            continue
        liveness, process = ownership.liveness(run.owner), ownership.describe_owner(run.owner)
        if liveness == "alive":
            in_use.append((run, f"{process} still drives the run"))
        elif liveness == "unknown" and run.status == "running":
            in_use.append((run, f"{process} may still drive the run, on another host or in another container"))
        elif cluster := run.find_cluster(standing):
            advice = f"remove the cluster with: aftershock cluster down --run {cluster.run_id}"
            in_use.append((run, f"the run's cluster still exists; {advice}"))
        else:
            removable.append(run)
    return removable, in_use


def remove(run: Run) -> None:
    try:
        shutil.rmtree(run.path)
    except OSError as error:
        raise EvidenceError(f"can't remove {run.path}: {error.strerror}; remove it by hand") from error


def parse_age(text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,5})([dhm])", text)
    if match is None:
        raise AftershockError(f"{text} is not an age; give a number with its unit, for example 30d, 12h or 90m")
    return timedelta(**{{"d": "days", "h": "hours", "m": "minutes"}[match[2]]: int(match[1])})


def size(size_bytes: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes / 1000:.0f} kB"

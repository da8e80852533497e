"""Statements about full batches, and commits left behind by full batches."""

from pathlib import Path
from typing import Any

import pytest

from aftershock.results.studies.part import Part
from aftershock.results.studies.trials.kip1224 import flushed
from aftershock.tests.unit.results.studies.trials import on_disk

MS = 1_000
CLUSTER = {"racks": {"a": 1}, "config": {"message.max.bytes": "19000"}}
LOAD = {"name": "w", "commit": {"groups": 96}, "arms": {"plain": {"settings": {"commit.metadata.bytes": 4000}}}}


def full(home: Path, batches: list[int], took_ms: int = 40, status: str = "ok") -> Part:
    """Write batches with this number of commits; the last commit has this latency and status."""
    count, log = sum(batches), []
    for size in batches:
        log += [{"partition": 0, "batch": len(log), "offset": len(log) + n} for n in range(size)]
    common: dict[str, Any] = {"op": "commit", "group": "g", "intended_us": 0}
    rows = [common | {"done_us": 30 * MS, "status": "ok"} for _ in range(count - 1)]
    rows.append(common | {"done_us": took_ms * MS, "status": status})
    return on_disk.part(home, cluster=CLUSTER, workloads=[LOAD], outcomes=rows, offsets=log)


def test_all_were_flushed(tmp_path: Path) -> None:
    """Four commits of 4000 B fill 19 000 B; n is the number of slices of time, and the figure is the slowest commit."""
    result = flushed(full(tmp_path, [4, 1, 4, 3]))
    assert (0, 8, 40.0, "") == (result.violations, result.ours.n, result.ours.value, result.doubt)
    assert "2 of 4 batches were full; of 12 commits 0 were not answered" in result.why


@pytest.mark.parametrize(("took_ms", "status", "slowest"), [(5_010, "ok", 5_010.0), (40, "in_doubt", None)])
def test_a_commit_was_left_behind(took_ms: int, status: str, slowest: float | None, tmp_path: Path) -> None:
    """The commit was answered after its write was abandoned and repeated, or never."""
    result = flushed(full(tmp_path, [4, 1], took_ms, status))
    assert (1, slowest) == (result.violations, result.ours.value)


@pytest.mark.parametrize("batches", [[3, 3, 1], []])
def test_without_full_batches_nothing_is_claimed(batches: list[int], tmp_path: Path) -> None:
    home = tmp_path / "run"
    part = full(home, batches or [1])
    if not batches:
        (home / "offsets" / "part-0.parquet").unlink()
    assert "no batch was full" == flushed(part).doubt

"""List and removal of runs: never a run in use, never a folder that is not a run."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import AftershockError
from aftershock.harness.run.runs import find_run, parse_age, pruning, remove, runs_in, size, table
from aftershock.harness.safety import ownership
from aftershock.harness.safety.ownership import LabelledCluster

DEAD = "1:1"
NOW = datetime(2026, 1, 31, tzinfo=UTC)


def run(out: Path, run_id: str, days_ago: int = 0, **facts: Any) -> Path:
    """A run directory with 5 kB of evidence."""
    path = out / run_id
    (path / "logs").mkdir(parents=True)
    (path / "logs" / "k1.log").write_bytes(b"x" * 5_000)
    told = {"run_id": run_id, "plan": "demo", "status": "complete", "owner": DEAD}
    told |= {"started_at": (NOW - timedelta(days=days_ago)).isoformat(), **facts}
    (path / "run.json").write_text(json.dumps(told))
    return path


def stands(run_id: str, home: Path, *, keep: bool = True) -> LabelledCluster:
    return LabelledCluster(run_id, DEAD, home, keep)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Three runs within a month, and folders that are not runs: a session's, a foreign one, a broken one, a link."""
    out = tmp_path / "runs"
    for run_id, days_ago in (("old", 40), ("middle", 20), ("new", 1)):
        run(out, run_id, days_ago)
    (out / "session-1").mkdir()
    (out / "session-1" / "session.json").write_text("{}")
    (out / "foreign").mkdir()
    (out / "foreign" / "run.json").write_text('{"speed": 11}')
    (out / "broken").mkdir()
    (out / "broken" / "run.json").write_text('{"run_id": "broken", "pl')
    run(tmp_path, "elsewhere", 99)
    (out / "link").symlink_to(tmp_path / "elsewhere")
    return out


def names(runs: Any) -> list[str]:
    return [each.run_id for each in runs]


def test_only_runs_are_runs(out: Path) -> None:
    """Newest first; a folder without a valid run.json, or a link, is not listed and so never removed."""
    assert ["new", "middle", "old"] == names(runs_in(out))
    assert [] == runs_in(out / "nowhere")


def test_status_and_size_of_a_run(out: Path) -> None:
    """The status is the verdict, else how the run ended, or `died`; the size is that of the files."""
    (out / "new" / "verdict.json").write_text('{"status": "FAIL"}')
    run(out, "lost", 2, status="running")
    run(out, "now", status="running", owner=ownership.owner())
    assert {"new": "FAIL", "lost": "died", "now": "running", "old": "complete"}.items() <= {
        each.run_id: each.status for each in runs_in(out)
    }.items()
    assert 5_000 <= runs_in(out)[0].size_bytes <= 6_000


def test_the_list(out: Path) -> None:
    """One line for each run under a header, with a remark on standing clusters."""
    lines = table(runs_in(out), [stands("middle", out / "middle")]).splitlines()
    assert ["run", "new", "middle", "old"] == [line.split()[0] for line in lines]
    assert [False, False, True, False] == ["cluster still exists" in line for line in lines]
    assert "2026-01-30 00:00" in lines[1]


@pytest.mark.parametrize(
    ("keep", "days", "expected"),
    [
        (1, None, ["middle", "old"]),
        (0, None, ["new", "middle", "old"]),
        (5, None, []),
        (None, 30, ["old"]),
        (1, 10, ["middle", "old"]),
        (2, 10, ["old"]),
        (0, 30, ["old"]),
    ],
)
def test_criteria(out: Path, keep: int | None, days: int | None, expected: list[str]) -> None:
    """All but the newest N, or older than a date; with both, a run must meet both."""
    before = None if days is None else NOW - timedelta(days=days)
    assert expected == names(pruning(runs_in(out), [], keep, before)[0])


def test_runs_in_use_are_not_removable(out: Path) -> None:
    """A run whose process lives, or whose cluster stands, by home, by id, or as the last lessee of a pool's cluster."""
    run(out, "driven", 50, owner=ownership.owner())
    run(out, "pooled", 51, cluster="pool-3f-0-1a")
    run(out, "far", 52, owner="1:1:0:other:other:7", status="running")
    run(out, "copied", 53, owner="1:1:0:other:other:7", status="complete")
    standing = [
        stands("renamed", (out / "old").resolve()),
        stands("middle", Path("/elsewhere"), keep=False),
        stands("pool-3f-0-1a", out / "session-1" / "pool" / "slot-0"),
    ]
    removable, in_use = pruning(runs_in(out), standing, 0, None)
    assert ["new", "copied"] == names(removable)
    spared = {each.run_id: why for each, why in in_use}
    assert {"middle", "old", "driven", "pooled", "far"} == spared.keys()
    assert "still drives the run" in spared["driven"]
    assert "process 1 of user 0 may still drive the run" in spared["far"]
    assert "aftershock cluster down --run pool-3f-0-1a" in spared["pooled"]


def test_removal(out: Path) -> None:
    """The folder of a removable run is deleted, and its neighbours stay."""
    removable, _ = pruning(runs_in(out), [], None, NOW - timedelta(days=30))
    assert sum(each.size_bytes for each in removable) >= 5_000
    for each in removable:
        remove(each)
    assert ["broken", "foreign", "link", "middle", "new", "session-1"] == sorted(path.name for path in out.iterdir())


@pytest.mark.parametrize(("text", "expected"), [("30d", 30 * 24), ("12h", 12), ("90m", 1.5)])
def test_ages_in_days_hours_and_minutes(text: str, expected: float) -> None:
    assert timedelta(hours=expected) == parse_age(text)


@pytest.mark.parametrize("text", ["30", "d", "-1d", "3w", "1.5d", "9999999d", ""])
def test_an_invalid_age_is_an_error_with_an_example(text: str) -> None:
    with pytest.raises(AftershockError, match="is not an age; give a number with its unit, for example 30d"):
        parse_age(text)


def test_sizes() -> None:
    """kB below a megabyte, MB from there."""
    assert ["0 kB", "5 kB", "1.5 MB", "2.5 GB"] == [size(0), size(5_000), size(1_500_000), size(2_500_000_000)]


def test_find_run(out: Path) -> None:
    """A run is found by path and by id; the error names both places."""
    assert out / "new" == find_run("new", out) == find_run(str(out / "new"), Path("nowhere"))
    with pytest.raises(AftershockError, match=r"no run at nope nor at .*runs/nope"):
        find_run("nope", out)

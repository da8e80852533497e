"""The run directory: readable at every moment, sealed only at the end."""

import json
from pathlib import Path

import pytest

from aftershock.errors import EvidenceError
from aftershock.harness.safety.rundir import RunDir


def test_run_json_is_there_from_the_start(tmp_path: Path) -> None:
    """A run that dies at once still has a run.json with its plan and seed."""
    home = RunDir.create(tmp_path, "My Plan!", 7, "aftershock run x")
    facts = json.loads((home.path / "run.json").read_text())
    assert ("running", "My Plan!", 7) == (facts["status"], facts["plan"], facts["seed"])
    assert "my-plan" in home.run_id


def test_two_runs_of_one_plan_never_share_a_folder(tmp_path: Path) -> None:
    """Names differ even within a second."""
    assert 20 == len({RunDir.create(tmp_path, "demo", 0, "").run_id for _ in range(20)})


def test_facts_are_added_whole(tmp_path: Path) -> None:
    """An update keeps the earlier facts, and leaves no half-written file behind."""
    home = RunDir.create(tmp_path, "demo", 0, "")
    home.update(status="complete", why=None)
    assert "complete" == json.loads((home.path / "run.json").read_text())["status"]
    assert [] == list(home.path.glob(".*"))


def test_the_manifest_lists_tables(tmp_path: Path) -> None:
    """The seal names the evidence files, tables included."""
    home = RunDir.create(tmp_path, "demo", 0, "")
    (home.path / "outcomes" / "part-0.parquet").touch()
    home.seal()
    assert "outcomes/part-0.parquet" in json.loads((home.path / "manifest.json").read_text())["files"]


def test_an_output_folder_that_can_not_be_written(tmp_path: Path) -> None:
    """If `--out` is a file, the error advises to choose another path."""
    (tmp_path / "file").touch()
    with pytest.raises(EvidenceError, match="choose another --out"):
        RunDir.create(tmp_path / "file", "demo", 0, "")

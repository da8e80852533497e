"""Explore on a real cluster: it keeps to its budget, writes down what it exercised, and leaves nothing behind."""

import json
from pathlib import Path

import docker
import pytest

from aftershock.harness import labels
from aftershock.harness.explore import ledger
from aftershock.tests.chaos.conftest import Command

pytestmark = [pytest.mark.engine, pytest.mark.nightly]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def standing(command: Command) -> list[str]:
    """What is left of the clusters of a command that has ended."""
    every = docker.from_env().containers.list(all=True, filters={"label": labels.OWNER}, ignore_removed=True)
    return [one.name for one in every if one.labels[labels.OWNER].startswith(f"{command.process.pid}:")]


def test_it_explores(out: Path) -> None:
    """It runs plans that were drawn; every cell that it claims is of a fault proven and met; no cluster is left."""
    command = Command(["explore", "--budget", "260s", "--seed", "3", "--out", str(out), "--json"], out)
    code, stdout = command.finish()
    told = json.loads(stdout)
    assert told["runs"]
    assert code in (0, 1, 2)
    lines = ledger.read(out / ledger.NAME).lines
    claimed = {(line.run_id, line.cell.fault) for line in lines if line.exercised}
    for run in told["runs"]:
        home = Path(run["run"])
        checks = json.loads((home / "verdict.json").read_text())["checks"]
        steps = {step["id"]: step["kind"] for step in json.loads((home / "timeline.json").read_text())["steps"]}
        proven = {
            steps[check["id"].split("/")[1]]
            for check in checks
            if check["kind"] == "exposure" and check["status"] == "PASS"
        }
        assert {fault for run_id, fault in claimed if run_id == home.name} <= proven
    assert told["cells"] - len(told["never"]) == len({line.cell for line in lines if line.exercised})
    assert [] == standing(command)


def test_ctrl_c_leaves_nothing(out: Path) -> None:
    """Interrupted in its first run it ends with 130; no cluster, no process, no session folder is left."""
    command = Command(["explore", "--budget", "10m", "--out", str(out)], out)
    command.wait_for("run: ")
    command.interrupt()
    code, _ = command.finish()
    (run,) = [path for path in out.iterdir() if (path / "run.json").exists()]
    assert 130 == code
    assert "interrupted" == json.loads((run / "run.json").read_text())["status"]
    assert [] == standing(command)
    assert [] == list(out.glob("explore-2*"))

"""Explore on a real cluster: it keeps to its budget, writes down what it exercised, and leaves nothing behind."""

import json
from datetime import UTC, datetime
from pathlib import Path

import docker
import pytest

from aftershock.harness.cluster import ownership
from aftershock.harness.labs.explore import search
from aftershock.tests.chaos.conftest import Command

pytestmark = [pytest.mark.engine, pytest.mark.nightly]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def standing(command: Command) -> list[str]:
    """What is left of the clusters of a command that has ended."""
    every = docker.from_env().containers.list(all=True, filters={"label": ownership.OWNER}, ignore_removed=True)
    return [one.name for one in every if one.labels[ownership.OWNER].startswith(f"{command.process.pid}:")]


def test_it_explores(out: Path) -> None:
    """It runs plans that were drawn; every cell that it claims is of a fault proven and met; no cluster is left."""
    command = Command(["explore", "--budget", "260s", "--seed", "3", "--out", str(out), "--json"], out)
    code, stdout = command.finish()
    told = json.loads(stdout)
    assert told["runs"]
    assert code in (0, 1, 2)
    lines = search.read(out / search.NAME).lines
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


FRAME = """
name: hunted
cluster: {wire_proxy: true}
topics: [{name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 30/s, record_size: 200, rack: a, deadline: 20s}
    consume: {topic: orders, rack: b}
    arms: {good: {client: reference}, reads_again: {client: reference}}
timing: {warmup: {min: 3s, max: 20s}, steady: 8s, fault: 3s, recovery: 5s}
"""
"""Who goes back whenever a leader moves does so whichever fault moved it: what fails comes back."""
DOOR = "aftershock.tests.chaos.known_bad"
TWICE = "integrity/duplicate"


@pytest.mark.timeout(2400)
def test_it_finds_a_planted_defect_which_is_made_small(out: Path, tmp_path: Path) -> None:
    """From the day as its seed, that nobody chose for it, the bad one of two clients fails, and the corpus has why.

    Minimised, a fault or two are left, and the corpus has that plan too.
    """
    frame = tmp_path / "hunted.yaml"
    frame.write_text(FRAME)
    seed = str(datetime.now(UTC).date().toordinal())
    explore = ["explore", str(frame), "--budget", "8m", "--seed", seed, "--out", str(out)]
    code, _ = Command(explore, out, DOOR).finish(600)
    assert 1 == code
    failing = {path.parent: arms for path in out.glob("*/verdict.json") if (arms := who_failed(path))}
    assert {"reads_again"} == set().union(*failing.values())
    found = set((out / "corpus").glob("*.yaml"))
    assert found

    minimise = ["minimise", min(failing).name, "--budget", "12m", "--check", TWICE, "--out", str(out), "--json"]
    code, stdout = Command(minimise, out, DOOR).finish(900)
    told = json.loads(stdout)
    assert 0 == code
    assert told["faults"]["after"] <= min(2, told["faults"]["before"])
    assert 1 == len(set((out / "corpus").glob("*.yaml")) - found)


def who_failed(verdict: Path) -> set[str]:
    """The arms that took a record twice."""
    checks = json.loads(verdict.read_text())["checks"]
    return {check["arm"] for check in checks if (check["id"], check["status"]) == (TWICE, "FAIL")}

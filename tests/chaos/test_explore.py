"""`explore` on a real cluster: it keeps to its budget, writes coverage, and leaves no cluster behind."""

import json
from datetime import UTC, datetime
from pathlib import Path

import docker
import pytest

from aftershock.harness.safety import ownership
from aftershock.harness.search import explore as search
from aftershock.tests.chaos.conftest import Command

pytestmark = [pytest.mark.engine, pytest.mark.nightly]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def standing(command: Command) -> list[str]:
    """Return the clusters that remain after a command has ended."""
    every = docker.from_env().containers.list(all=True, filters={"label": ownership.OWNER}, ignore_removed=True)
    return [one.name for one in every if one.labels[ownership.OWNER].startswith(f"{command.process.pid}:")]


def test_explore_runs_drawn_plans_and_writes_coverage(out: Path) -> None:
    """Every covered cell is of a fault that was witnessed and met traffic; no cluster remains."""
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


def test_an_interrupt_leaves_nothing(out: Path) -> None:
    """An interrupt in the first run gives exit code 130; no cluster, process or session folder remains."""
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
def test_explore_finds_a_planted_defect_and_minimise_reduces_it(out: Path, tmp_path: Path) -> None:
    """With the date as its seed, the defective client of two fails, and the corpus has the failed check.

    Minimised, one or two faults are left, and the corpus has that plan too.
    """
    frame = tmp_path / "hunted.yaml"
    frame.write_text(FRAME)
    seed = str(datetime.now(UTC).date().toordinal())
    explore = ["explore", str(frame), "--budget", "8m", "--seed", seed, "--out", str(out)]
    code, _ = Command(explore, out, DOOR).finish(600)
    assert 1 == code
    failing = {path.parent: arms for path in out.glob("*/verdict.json") if (arms := arms_with_duplicates(path))}
    assert {"reads_again"} == set().union(*failing.values())
    found = set((out / "corpus").glob("*.yaml"))
    assert found

    minimise = ["minimise", min(failing).name, "--budget", "12m", "--check", TWICE, "--out", str(out), "--json"]
    code, stdout = Command(minimise, out, DOOR).finish(900)
    told = json.loads(stdout)
    assert 0 == code
    assert told["faults"]["after"] <= min(2, told["faults"]["before"])
    assert 1 == len(set((out / "corpus").glob("*.yaml")) - found)


def arms_with_duplicates(verdict: Path) -> set[str]:
    """Return the arms that received a record twice."""
    checks = json.loads(verdict.read_text())["checks"]
    return {check["arm"] for check in checks if (check["id"], check["status"]) == (TWICE, "FAIL")}

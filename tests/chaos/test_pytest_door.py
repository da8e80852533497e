"""The product through pytest: chaos tests of a foreign suite, two at a time, on real clusters."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aftershock.tests.left import left_of
from aftershock.tests.unit.harness.pytest.foreign_suite import Told, run_suite

pytestmark = pytest.mark.engine

PLAN = """
name: {name}
topics: [{{name: orders, partitions: 6, replication: 3, config: {{min.insync.replicas: 2}}}}]
workloads:
  - name: orders
    produce: {{topic: orders, rate: 80/s, record_size: 200, linger: 100ms, deadline: 15s}}
    consume: {{topic: orders, rack: b}}
timing: {{warmup: {{min: 3s, max: 40s}}, steady: 4s, fault: 3s, recovery: 3s}}
slo: ["{slo}"]
"""
SUITE = """
def test_integrity(chaos): chaos.run("integrity.yaml").expect("duplicate == 0")

def test_too_slow(chaos): chaos.run("too-slow.yaml")

def test_fast_enough(chaos): chaos.run("fast-enough.yaml")
"""
SLOS = {
    "integrity": "lost == 0",
    "too-slow": "produce.latency p50 < 20ms in steady",  # Kept clusters exist for longer.
    "fast-enough": "produce.latency p50 < 5s in steady",
}
DEADLINE_S = 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, slo in SLOS.items():
        (tmp_path / f"{name}.yaml").write_text(PLAN.format(name=name, slo=slo))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def runs(told: Told) -> list[dict[str, Any]]:
    """Return the facts of each run of the session."""
    return [json.loads((told.folder / "runs" / run["run"] / "run.json").read_text()) for run in told.session["runs"]]


def left_behind(clusters: set[str]) -> list[str]:
    return [name for cluster in clusters for name in left_of(cluster)]


@pytest.mark.parametrize("workers", [("-n", "2"), pytest.param((), marks=pytest.mark.nightly)], ids=["xdist", "alone"])
def test_exactly_the_failing_test_fails(folder: Path, workers: tuple[str, ...]) -> None:
    """One of three: one node id in the terminal, JUnit, --lf and the exit status; no cluster remains."""
    (folder / "test_suite.py").write_text(SUITE)
    told = run_suite(folder, *workers, deadline_s=DEADLINE_S)
    assert {"test_too_slow"} == told.last_failed
    assert 1 == told.code
    assert "1 failed, 2 passed" in told.lines[-1]
    failed = [name for name, case in told.cases.items() if case.find("failure") is not None]
    assert ["test_too_slow"] == failed
    assert any("slo/produce.latency-p50-steady" in line for line in told.section("FAILURES"))
    clusters = {facts["cluster"] for facts in runs(told)}
    assert len(clusters) <= 2
    assert [] == left_behind(clusters)
    for run in told.session["runs"]:
        logs = {path.name for path in (folder / "runs" / run["run"] / "logs").glob("k*.log")}
        assert {"k1.log", "k2.log", "k3.log"} == logs


@pytest.mark.nightly
def test_six_tests_launch_two_clusters_at_most(folder: Path) -> None:
    """Warm clusters pass from test to test and from worker to worker, whatever the verdicts of these short runs are."""
    short = ["timing.warmup.min=1s", "timing.warmup.max=1s", "timing.steady=2s"]
    tests = [f'def test_{n}(chaos): chaos.run("integrity.yaml", seed={n}, changes={short})\n' for n in range(6)]
    (folder / "test_suite.py").write_text("".join(tests))
    told = run_suite(folder, "-n", "2", deadline_s=DEADLINE_S)
    assert {f"test_{n}" for n in range(6)} == set(told.cases)
    assert [] == [name for name, case in told.cases.items() if case.find("failure") is not None]
    clusters = {facts["cluster"] for facts in runs(told)}
    assert len(clusters) <= 2
    assert [] == left_behind(clusters)


@pytest.mark.nightly
def test_the_cluster_of_a_failed_test_is_kept(folder: Path) -> None:
    """It runs after pytest has ended, and the commands in the summary find and remove it."""
    (folder / "test_suite.py").write_text('def test_too_slow(chaos): chaos.run("too-slow.yaml")\n')
    told = run_suite(folder, "--aftershock-keep=failed", deadline_s=DEADLINE_S)
    (cluster,) = told.session["kept"]
    commands = [line.partition(": ")[2].split() for line in told.section("aftershock") if "aftershock cluster" in line]
    assert [["status", "--run", cluster], ["down", "--run", cluster]] == [command[2:] for command in commands]
    for command in commands:
        assert left_behind({cluster})
        subprocess.run([sys.executable, "-m", "aftershock.harness.cli", *command[1:]], check=True, timeout=60)
    assert [] == left_behind({cluster})


@pytest.mark.nightly
def test_a_killed_worker_does_not_affect_other_tests(folder: Path) -> None:
    """SIGKILL during the load: the suite ends, the next test has a healthy cluster, and nothing remains."""
    tests = 'def test_killed(chaos): chaos.run("integrity.yaml")\ndef test_next(chaos): chaos.run("integrity.yaml")\n'
    (folder / "test_suite.py").write_text(tests)
    with session(folder, "-n", "1") as (_, end):
        os.kill(driver_in_steady(folder), signal.SIGKILL)
        told = end()
    assert "1 failed, 1 passed" in told.lines[-1]
    (line,) = [line for line in told.section("aftershock") if "test_killed" in line]
    assert line.startswith("not judged")
    assert [] == left_behind({facts["cluster"] for facts in runs(told)})


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [("-n", "2"), ()], ids=["xdist", "alone"])
def test_an_interrupt_leaves_nothing_running(folder: Path, workers: tuple[str, ...]) -> None:
    """SIGINT during the load, which a terminal sends to pytest and its workers alike: exit 2, no clusters and
    clients.
    """
    (folder / "test_suite.py").write_text('def test_a(chaos): chaos.run("integrity.yaml")\ndef test_b(): pass\n')
    with session(folder, *workers) as (process, end):
        driver = driver_in_steady(folder)
        os.killpg(process.pid, signal.SIGINT)
        told = end()
    assert 2 == told.code
    (line,) = [line for line in told.section("aftershock") if "test_a" in line]
    assert line.startswith("not judged")
    assert [] == left_behind({facts["cluster"] for facts in runs(told)})
    assert not Path(f"/proc/{driver}").exists()


@contextmanager
def session(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], Callable[[], Told]]]:
    """Start a pytest session in its own process group; the second value waits for its end."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def end() -> Told:
        code = process.wait(DEADLINE_S)
        text = (folder / "output").read_text()
        print(text)
        return Told(folder, code, text)

    try:
        yield process, end
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(DEADLINE_S)


def driver_in_steady(folder: Path) -> int:
    """Return the process that drives the first run, once the load has reached ``steady``."""
    for _ in _moments(DEADLINE_S):
        for events in folder.glob("runs/*/events.jsonl"):
            if '"phase": "steady"' in events.read_text():
                owner = json.loads((events.parent / "run.json").read_text())["owner"]
                return int(owner.split(":")[0])
    raise AssertionError("no run reached steady in time")


def _moments(deadline_s: float) -> Iterator[None]:
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        yield
        time.sleep(0.1)

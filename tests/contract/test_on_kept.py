"""Runs on a kept cluster, which stays as it was: its nodes, its topics, and no fault."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest

from aftershock.harness.cluster.cluster import attach
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety import ownership
from aftershock.harness.safety.journal import read_journal

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(400)]

SPEC = "cluster: {packets: true}\ntopics: [{name: t, partitions: 3, replication: 3}]\n"
PLAN = """
name: on
cluster: {cluster}
topics: [{{name: t, partitions: 3, replication: 3}}, {{name: own, partitions: 3, replication: 3}}]
workloads:
  - {{name: first, produce: {{topic: t, rate: 30/s}}, consume: {{topic: t, group: readers}}}}
  - {{name: second, produce: {{topic: own, rate: 30/s}}, consume: {{topic: own}}}}
timing: {{warmup: {{min: 1s, max: 30s}}, steady: 2s, fault: 2s, recovery: 3s}}
faults: [{faults}]
slo: ["lost == 0"]
"""
LATENCY = "{kind: latency, link: 'client(a) -> broker', delay: 80ms, at: 0s, for: 4s}"
KILL = "{kind: kill, broker: leader of own/0, at: 12s, for: 4s}"
LONG = "{kind: refuse, link: 'client(a) -> broker(1)', at: 0s, for: 90s}"
TIMEOUT_S = 240


def call(*arguments: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "aftershock.harness.cli", *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    print(arguments, done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of a kept cluster."""
    folder = tmp_path_factory.mktemp("on")
    (folder / "spec.yaml").write_text(SPEC)
    up = call("cluster", "up", str(folder / "spec.yaml"), "--out", str(folder))
    (home,) = (path for path in folder.iterdir() if path.is_dir())
    try:
        assert 0 == up.returncode
        yield home
    finally:
        ownership.remove_run(docker.from_env(), home.name)


def words(kept: Path, home: Path, faults: str, cluster: str = "{}") -> list[str]:
    plan = home / "plan.yaml"
    plan.write_text(PLAN.format(cluster=cluster, faults=faults))
    return ["run", str(plan), "--on", kept.name, "--out", str(home / "runs")]


def state(kept: Path) -> dict[str, object]:
    """Return what a run must leave as it was."""
    with closing(attach(docker.from_env(), kept)) as cluster:
        toxics = [toxic for on_proxy in cluster.toxiproxy.toxics().values() for toxic in on_proxy]
        return {
            "nodes": {name: (node.container.id, node.state()) for name, node in cluster.nodes.items()},
            "links": (toxics, cluster.toxiproxy.disabled()),
            "topics": cluster.admin.topics(),
        }


def test_a_plan_runs_twice_on_one_cluster(kept: Path, tmp_path: Path) -> None:
    """With topics of its own, and one of the cluster, whose earlier records are no loss of the second run."""
    before = state(kept)
    assert ("t",) == before["topics"]
    for _ in range(2):
        assert call(*words(kept, tmp_path, f"{LATENCY}, {KILL}")).returncode in (0, 2)  # 2: a busy host
        assert before == state(kept)
    for run in (tmp_path / "runs").iterdir():
        checks = json.loads((run / "verdict.json").read_text())["checks"]
        assert {"PASS"} == {check["status"] for check in checks if check["kind"] != "harness"}
        assert kept.name == json.loads((run / "run.json").read_text())["cluster"]


def test_a_killed_run_is_healed_and_no_other_may_use_the_cluster_meanwhile(kept: Path, tmp_path: Path) -> None:
    before, other = state(kept), tmp_path / "other"
    other.mkdir()
    with (tmp_path / "said").open("wb") as said:
        command = [sys.executable, "-m", "aftershock.harness.cli", *words(kept, tmp_path, LONG)]
        runner = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)

        def lacking() -> str:
            lines = [line for run in (tmp_path / "runs").glob("*") for line in read_journal(run / "journal.jsonl")]
            return "" if any(line["state"] == "injected" for line in lines) else "nothing is injected"

        missing = still_lacking(lacking, 120)
        assert not missing, (tmp_path / "said").read_text()
        for arguments in (
            words(kept, other, LATENCY),
            ["inject", "pause", "broker=1", "--for", "1s", "--run", kept.name],
            ["cluster", "down", "--run", kept.name],
        ):
            done = call(*arguments)
            assert (3, True) == (done.returncode, "is in use by aftershock run on --on" in done.stderr)
        os.kill(runner.pid, signal.SIGKILL)
        runner.wait()
    (run,) = (tmp_path / "runs").iterdir()
    assert 0 == call("heal", "--run", run.name, "--out", str(run.parent)).returncode
    assert before == state(kept)
    assert not (kept / "occupied.json").exists()


@pytest.mark.parametrize(
    ("cluster", "differs"),
    [
        ("{racks: {a: 2, b: 1}}", 'it has racks {"a": 1, "b": 1, "c": 1}, not {"a": 2, "b": 1};'),
        ("{clocks: true}", "it has clocks null, not true;"),
        ("{kafka: 4.1.2, profile: production}", 'it has kafka "4.3.1", not "4.1.2"; profile "fast", not "production";'),
    ],
)
def test_a_cluster_that_does_not_fit_is_refused(kept: Path, tmp_path: Path, cluster: str, differs: str) -> None:
    done = call(*words(kept, tmp_path, LATENCY, cluster))
    assert (3, True) == (done.returncode, differs in done.stderr)
    assert not (tmp_path / "runs").exists()

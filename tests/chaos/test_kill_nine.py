"""SIGKILL of the runner at random moments, with overlapping faults, while members of groups come and go, or among sick
machines: no trace remains, and another cluster is unaffected.

Two moments a run by default, twenty in the nightly (AFTERSHOCK_KILLS); half are cleaned up by ``aftershock heal``,
half by the watchdog alone.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest

from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.lifecycle.launch import images_for, launch
from aftershock.harness.safety import ownership

pytestmark = pytest.mark.engine

KILLS = int(os.environ.get("AFTERSHOCK_KILLS", "2"))
SEED = int(os.environ.get("AFTERSHOCK_KILLS_SEED", "4"))
LIFE_S = 24.0  # launch 7 s, warm-up 1 s, steady 3 s, faults 9 s, and into the judging
PLAN = """
name: doomed
cluster: {racks: {a: 1, b: 1}}
topics: [{name: orders, partitions: 3, replication: 2}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: 200}
    consume: {topic: orders}
timing: {warmup: {min: 1s, max: 1s}, steady: 3s, fault: 3s, recovery: 1s}
faults:
  - {id: slow, at: 0s, for: 8s, kind: latency, link: "client(a) -> broker", delay: 40ms}
  - {id: dead, at: 1s, for: 5s, kind: kill, broker: any broker except leader of orders/0}
  - {id: refused, at: 2s, for: 6s, kind: refuse, link: "client(b) -> broker"}
"""
CHURN_S = 12.0
CHURN = """
name: doomed-groups
cluster: {racks: {a: 1, b: 1}}
topics: [{name: orders, partitions: 6, replication: 2}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: 200}
    consume: {topic: orders, group: readers, members: 3, commit: {every: 200ms}}
    arms: {reference: {client: reference}, confluent: {client: confluent}, java: {client: java}}
timing: {warmup: {min: 1s, max: 1s}, steady: 1s, fault: 3s, recovery: 1s}
faults:
  - at: 0s
    together:
      - {id: churn-reference, for: 14s, kind: churn, client: reference, every: 1s}
      - {id: churn-confluent, for: 14s, kind: churn, client: confluent, every: 1s}
      - {id: churn-java, for: 14s, kind: churn, client: java, every: 1s}
"""
SICK_S = 40.0  # launch 9 s, warm-up 1 s, steady 3 s, faults 9 to 14 s and up to 12 s until all nodes are back
SICK_FRAME = """
name: doomed-machines
cluster: {racks: {a: 1, b: 1}}
topics: [{name: orders, partitions: 3, replication: 2}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: 200}
    consume: {topic: orders}
timing: {warmup: {min: 1s, max: 1s}, steady: 3s, fault: 3s, recovery: 1s}
faults:
"""
# each in half of the runs
SICK = (
    """
  - {id: lossy, at: 0s, for: 8s, kind: packet_loss, link: "client(a) <-> broker", share: 5%}
  - {id: wrong, at: 0s, for: 8s, kind: clock_bump, broker: 1, by: 1h}
  - {id: slow, at: 0s, for: 8s, kind: slow_disk, broker: 1, delay: 50ms}
  - {id: dark, at: 1s, for: 4s, kind: power_loss, broker: 2}
""",
    """
  - {id: late, at: 0s, for: 8s, kind: packet_delay, link: "client(a) <-> broker", delay: 20ms}
  - {id: jumping, at: 0s, for: 8s, kind: clock_strobe, broker: 1, by: 1s}
  - {id: failing, at: 0s, for: 4s, kind: disk_errors, broker: 1, operations: [write]}
  - {id: collected, at: 0s, for: 8s, kind: gc_pause, broker: 2, stop: 500ms}
  - {id: damaged, at: 12s, for: 2s, kind: truncate_segment, broker: 2, topic: orders}
""",
)


@pytest.fixture(scope="module")
def neighbour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Another cluster on the same engine, owned by this process."""
    client, home = docker.from_env(), tmp_path_factory.mktemp("neighbour")
    spec, run_id = ClusterSpec.of(ClusterPlan(racks={"a": 1})), f"test-{home.name}"
    try:
        with closing(launch(spec, run_id, home, images_for(client, spec, print), print)) as cluster:
            yield cluster
    finally:
        ownership.remove_run(client, run_id)


@pytest.mark.parametrize("number", range(KILLS))
def test_nothing_remains_of_a_killed_runner(aftershock: Any, neighbour: Cluster, number: int) -> None:
    """SIGKILL somewhere between the first container and the verdict."""
    killed_without_trace(aftershock(PLAN), "starting 2 Kafka nodes", LIFE_S, neighbour, number)


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(KILLS))
def test_nothing_remains_of_a_runner_killed_during_churn(aftershock: Any, neighbour: Cluster, number: int) -> None:
    """SIGKILL while members of three clients' groups are stopped and started: no process of a member remains."""
    killed_without_trace(aftershock(CHURN), "churn-java: in force", CHURN_S, neighbour, number)


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(KILLS))
def test_nothing_remains_of_a_runner_killed_among_sick_machines(
    aftershock: Any, neighbour: Cluster, number: int
) -> None:
    """SIGKILL while disks, clocks and packets have defects: no loop device, mount or firewall rule remains."""
    before = devices()
    plan = SICK_FRAME + SICK[number % len(SICK)].lstrip("\n")
    killed_without_trace(aftershock(plan), "starting 2 Kafka nodes", SICK_S, neighbour, number)
    assert "" == still_lacking(lambda: "" if devices() == before else f"{devices()} instead of {before}", 20)


def devices() -> dict[str, list[str]]:
    """Return the loop devices of this host, its mounts of them, and its firewall rules."""
    save = ["sh", "-c", "iptables-legacy-save; iptables-save"]
    firewall = subprocess.run(save, capture_output=True, text=True, check=False)
    return {
        "loop devices": [path.read_text().strip() for path in Path("/sys/block").glob("loop*/loop/backing_file")],
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if line.startswith("/dev/loop")],
        "rules": [line for line in firewall.stdout.splitlines() if "aftershock-" in line],
    }


def killed_without_trace(command: Any, after: str, within_s: float, neighbour: Cluster, number: int) -> None:
    """Kill the runner at a random moment after it printed ``after``, and assert that nothing of the run remains."""
    moment_s = random.Random(SEED * 1000 + number).uniform(0.2, within_s)  # noqa: S311  # reproducible, not secret
    before = container_ids(neighbour)
    command.wait_for(after)
    ended = still_lacking(lambda: "" if command.process.poll() is not None else "it lives", moment_s) == ""
    command.process.kill()
    command.finish()
    print(f"killed after {moment_s:.1f} s" if not ended else "it had ended by itself")
    if number % 2 == 0:
        healed = heal()
        assert 0 == healed.returncode
        assert f"{neighbour.run_id} belongs to the running process {os.getpid()}" in healed.stderr
    assert "" == command.left_behind(within_s=20)
    assert before == container_ids(neighbour)
    assert ["running"] == [node.state() for node in neighbour.nodes.values()]
    neighbour.await_in_sync(5)
    assert command.facts()["status"] in {"failed", "complete"}


def test_heal_without_open_faults_exits_0() -> None:
    heal()
    healed = heal()
    assert 0 == healed.returncode
    assert "nothing to heal" in healed.stdout


@pytest.mark.parametrize("healer", ["heal", pytest.param("watchdog", marks=pytest.mark.nightly)])
def test_a_kept_cluster_is_healed_and_stays(aftershock: Any, healer: str) -> None:
    """SIGKILL of `run --keep` during its faults: each fault's undo is performed, and the cluster is whole again."""
    command = aftershock(PLAN, "--keep")
    try:
        command.wait_for("refused: in force")
        command.process.kill()
        command.finish()
        if healer == "heal":
            assert 0 == heal("--run", command.run_dir.name).returncode
        assert "" == still_lacking(lambda: still_open(command.run_dir), 60)
        status = subprocess.run(
            aftershock_command("cluster", "status", "--json", "--run", command.run_dir.name),
            capture_output=True,
            text=True,
            check=True,
        )
        told = json.loads(status.stdout)
        assert [] == told["faults"]
        assert {"running"} == {broker["state"] for broker in told["brokers"]}
    finally:
        ownership.remove_run(docker.from_env(), command.run_dir.name)
    assert "" == command.left_behind(within_s=20)


def test_a_watchdog_waits_for_an_engine_that_died_with_the_runner(tmp_path: Path) -> None:
    """The engine's socket is missing when the owner is dead, and appears later: the run's network is removed."""
    client, run_id, socket = docker.from_env(), f"test-{tmp_path.name}", tmp_path / "docker.sock"
    dead = f"999999999:1:{ownership.owner().split(':', 2)[2]}"
    labels = ownership.labels_of(run_id, tmp_path, keep=False, owned_by=dead)
    network = client.networks.create(f"aftershock-{run_id}", labels=labels)
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "watchdog.log"
    command = [sys.executable, "-m", "aftershock.harness.lifecycle.watchdog", dead, run_id, str(tmp_path)]
    environment = {**os.environ, "DOCKER_HOST": f"unix://{socket}"}
    try:
        with log.open("w") as file, subprocess.Popen(command, stdout=file, env=environment) as watchdog:
            try:
                assert "" == still_lacking(lambda: "" if "no Docker engine answers" in log.read_text() else "log", 20)
                socket.symlink_to("/var/run/docker.sock")
                assert "" == still_lacking(lambda: "" if watchdog.poll() is not None else "it runs", 40)
            finally:
                watchdog.kill()
        assert 0 == watchdog.returncode
        assert [] == client.networks.list(names=[network.name])
    finally:
        ownership.remove_run(client, run_id)


def still_open(run_dir: Path) -> str:
    lines = [json.loads(line) for line in (run_dir / "journal.jsonl").read_text().splitlines()]
    last = {line["fault"]: line["state"] for line in lines}
    return ", ".join(fault for fault, state in last.items() if state != "healed")


def container_ids(cluster: Cluster) -> list[str]:
    mine = {"label": f"{ownership.RUN}={cluster.run_id}"}
    return sorted(container.id for container in docker.from_env().containers.list(all=True, filters=mine))


def aftershock_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "aftershock.harness.cli", *arguments]


def heal(*arguments: str) -> "subprocess.CompletedProcess[str]":
    healed = subprocess.run(
        aftershock_command("heal", *arguments), capture_output=True, text=True, check=False, timeout=120
    )
    print(healed.stdout, healed.stderr)
    return healed

"""Kafka 3.9 beside the default version: launched, attached to, and as an image; images that break the contract."""

import io
import json
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.harness.attach.attached import describe_cluster
from aftershock.harness.cluster import engine
from aftershock.harness.kafka.settings import finalised
from aftershock.tests.contract.conftest import Launch
from aftershock.workloads.kafka.wire.security import PLAINTEXT

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(600)]

OLDER = "3.9.1"
VERSIONS = (OLDER, engine.DEFAULT_KAFKA)
TWO_CLIENTS = "{theirs: {client: confluent}, ours: {client: reference}}"
PLAN = """
name: versions
cluster: {cluster}
topics: [{{name: orders, partitions: 3, replication: 3}}]
workloads:
  - name: orders
    produce: {{topic: orders, rate: 20/s, record_size: 200, deadline: 20s}}
    consume: {{topic: orders, group: readers, protocol: classic}}
    arms: {arms}
timing: {{warmup: {{min: 3s, max: 60s}}, steady: 5s, fault: 3s, recovery: 5s}}
faults: {faults}
slo: ["lost == 0", "produce.success >= 100%"]
"""


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    client = engine.connect()
    yield client
    client.close()


def aftershock(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "aftershock.harness.cli", *words],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    print(done.stdout, done.stderr)
    return done.returncode, done.stdout, done.stderr


def passes(plan: str, out: Path, *options: str) -> dict[str, Any]:
    """Run a plan, which must PASS; return its verdict."""
    code, stdout, _ = aftershock("run", plan, "--json", "--out", str(out), *options)
    verdict: dict[str, Any] = json.loads(stdout)
    assert "PASS" == verdict["status"], [check for check in verdict["checks"] if check["status"] != "PASS"]
    assert 0 == code
    return verdict


def written(folder: Path, **parts: str) -> str:
    path = folder / "plan.yaml"
    path.write_text(PLAN.format(**{"arms": TWO_CLIENTS, "faults": "[]"} | parts))
    return str(path)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cluster_of_each_version_can_be_attached_to(version: str, launch: Launch, tmp_path: Path) -> None:
    """Two clients on a topic that the run creates, with faults that change settings, leaders and replicas."""
    with launch(ClusterPlan(kafka=version), tmp_path) as cluster:
        bootstrap = cluster.bootstrap("a")
        description = describe_cluster(bootstrap, PLAINTEXT)
        assert [(1, "a"), (2, "b"), (3, "c")] == [(broker.id, broker.rack) for broker in description.brokers]
        assert cluster.admin.cluster_id() == description.cluster_id
        assert {1, 2, 3} == {member.id for member in cluster.admin.members() if not member.fenced}
        faults = """
  - {kind: reassign, topic: orders, rotate: 1, at: 0s, for: 4s}
  - {kind: config, topic: orders, set: {max.message.bytes: 2000000}, at: 6s, for: 2s}
  - {kind: config, broker: controller, set: {num.io.threads: 6}, at: 10s, for: 2s}"""
        attach = f'{{attach: {{bootstrap: "{bootstrap}", create: [orders], brokers: [1, 2, 3]}}}}'
        plan = written(tmp_path, cluster=attach, faults=faults)
        permissions = [word for address in bootstrap.split(",") for word in ("--allow-attach", address)]
        passes(plan, tmp_path / "runs", *permissions)
        assert "orders" not in cluster.admin.topics()


def test_a_run_on_an_older_kafka_with_two_clients(tmp_path: Path) -> None:
    """A killed and a restarted leader, and members of classic groups; the run's evidence names the version."""
    faults = """
  - {kind: kill, broker: leader of orders/0, at: 0s, for: 5s}
  - {kind: restart, broker: leader of orders/1, at: 15s}"""
    plan = written(tmp_path, cluster=f"{{kafka: {OLDER}}}", faults=faults)
    passes(plan, tmp_path / "runs")
    (run,) = (tmp_path / "runs").iterdir()
    assert OLDER == json.loads((run / "run.json").read_text())["versions"]["kafka"]
    assert f"Kafka version: {OLDER}" in (run / "logs" / "k1.log").read_text()


def test_a_rolling_upgrade_loses_nothing(tmp_path: Path) -> None:
    """From 3.9.1 to 4.3.1 under load, with the metadata version raised: every witness and every gate passes."""
    verdict = passes("rolling-upgrade", tmp_path / "runs")
    witnesses = [check for check in verdict["checks"] if check["kind"] == "witness"]
    assert witnesses
    assert {"PASS"} == {check["status"] for check in witnesses}


def test_older_features_are_finalised(launch: Launch, tmp_path: Path) -> None:
    """UpdateFeatures v1 takes the metadata version from 21 (3.9-IV0) to 20 (3.8-IV0), which has the same records."""
    plan = ClusterPlan(kafka=OLDER, racks={"a": 1}, features={"metadata.version": 20})
    with launch(plan, tmp_path) as cluster:
        assert 20 == finalised(cluster.admin)["metadata.version"]


@pytest.mark.parametrize("version", ["3.7.2", "3.8.1", *VERSIONS])
def test_images_of_kafka_keep_the_contract(version: str, client: docker.DockerClient) -> None:
    name = engine.kafka_image(client, version, print).name
    code, stdout, _ = aftershock("images", "--check", name)
    assert 0 == code
    assert {"OK"} == {line.split()[0] for line in stdout.splitlines()}


BREAKS = {
    "tools": "USER root\nRUN rm /usr/bin/od\nUSER appuser",
    "data": "USER nobody",
    "command": 'ENTRYPOINT ["/etc/kafka/docker/run"]',
    "boot": 'CMD ["sleep", "infinity"]',
}


@pytest.mark.parametrize("line", BREAKS)
def test_an_image_that_breaks_the_contract_is_refused(line: str, client: docker.DockerClient, tmp_path: Path) -> None:
    """By the check with the line and a remedy, and by a run before anything is launched."""
    base = engine.kafka_image(client, engine.DEFAULT_KAFKA, print).name
    name = f"aftershock-test/broken-{line}:{secrets.token_hex(4)}"
    client.images.build(fileobj=io.BytesIO(f"FROM {base}\n{BREAKS[line]}\n".encode()), tag=name, rm=True, forcerm=True)
    try:
        code, stdout, _ = aftershock("images", "--check", name)
        assert 1 == code
        assert line in re.findall(r"^BROKEN +(\w+):", stdout, re.MULTILINE)
        plan = written(tmp_path, cluster=f"{{image: '{name}'}}")
        code, _, stderr = aftershock("run", plan, "--out", str(tmp_path / "runs"), "--allow-exec")
        assert 3 == code
        assert f"the image {name} can't be a node: BROKEN  {line}" in stderr
        assert not (tmp_path / "runs").exists()
    finally:
        client.images.remove(name, force=True)


def test_a_run_on_an_image_of_the_user(client: docker.DockerClient, tmp_path: Path) -> None:
    """A copy of the default image under another name, without a version in its tag."""
    image, name = engine.kafka_image(client, engine.DEFAULT_KAFKA, print).name, "aftershock-test/mine:patched"
    client.images.get(image).tag(name)
    try:
        faults = "[{kind: restart, broker: leader of orders/1, at: 0s}]"
        plan = written(tmp_path, cluster=f"{{image: '{name}'}}", faults=faults)
        passes(plan, tmp_path / "runs", "--allow-exec")
    finally:
        client.images.remove(name)


def test_a_missing_image_is_told_apart() -> None:
    code, stdout, stderr = aftershock("images", "--check", "aftershock-test/nothing:1")
    assert (2, "") == (code, stdout)
    assert "aftershock-test/nothing:1 is not on the Docker engine" in stderr

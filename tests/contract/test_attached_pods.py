"""A stateful set that Aftershock did not launch, labelled as Strimzi does: its pods are stopped, deleted and healed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from aftershock.harness.attach.broker_pods import AGENT_NEEDS, NEEDS
from aftershock.harness.cluster.images import build
from aftershock.harness.cluster.kubernetes import cordons
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.cluster.kubernetes.node import container_status
from aftershock.harness.cluster.topology import LOG_DIR
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.lifecycle.launch_kubernetes import role
from aftershock.harness.safety.ownership import RUN
from aftershock.tests.local_kubernetes import as_user, objects, running

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(600)]
NAMESPACE, NAME = "shop", "prod-kafka"
LABELS = {"strimzi.io/cluster": "prod", "strimzi.io/name": NAME}
BROKERS = 3
READY_S = 90.0
# the number of a pod is its broker's id, and a service of its own is the address that stays
START = """n=${HOSTNAME##*-}
eval "host=\\$HOST_$n"
export KAFKA_NODE_ID=$n
export KAFKA_ADVERTISED_LISTENERS="CLIENT://$host:9092,INNER://$HOSTNAME.prod-kafka-brokers:9094"
exec /etc/kafka/docker/run
"""
PLAN = """\
name: pods
cluster:
  attach:
    bootstrap: BOOTSTRAP
    create: [orders]
    brokers: [0]
    kubernetes: {namespace: shop, pods: strimzi.io/cluster=prod, agent: true}
topics: [{name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, deadline: 30s}
    consume: {topic: orders}
    arms: {confluent: {settings: {socket.timeout.ms: 6000, reconnect.backoff.max.ms: 1000}}}
timing: {warmup: {min: 3s, max: 20s}, steady: 3s, recovery: 10s}
faults: FAULTS
slo: ["lost == 0"]
"""
ALL = """
  - {id: killed, kind: kill, broker: 1, at: 0s, for: 6s}
  - {id: paused, kind: pause, broker: 2, at: 20s, for: 6s}
  - {id: stopped, kind: stop, broker: 0, at: 40s, for: 6s}
  - {id: deleted, kind: delete_pod, broker: 1, at: 65s, for: 15s}
  - {id: evicted, kind: delete_pod, evict: true, broker: 2, at: 95s, for: 15s}
"""


def service(name: str, selector: Mapping[str, str], **spec: Any) -> dict[str, Any]:
    ports = [{"name": f"p{port}", "port": port} for port in (9092, 9093, 9094)]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"selector": dict(selector), "ports": ports, "publishNotReadyAddresses": True, **spec},
    }


def stateful_set(hosts: Mapping[int, str]) -> dict[str, Any]:
    voters = ",".join(f"{n}@{NAME}-{n}.{NAME}-brokers:9093" for n in range(BROKERS))
    settings = {
        "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": voters,
        "KAFKA_LISTENERS": "CLIENT://:9092,CONTROLLER://:9093,INNER://:9094",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,INNER:PLAINTEXT",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "INNER",
        "KAFKA_LOG_DIRS": LOG_DIR,
        "KAFKA_BROKER_SESSION_TIMEOUT_MS": "3000",
        "KAFKA_BROKER_HEARTBEAT_INTERVAL_MS": "500",
        "KAFKA_HEAP_OPTS": "-Xms192m -Xmx256m",
    }
    settings |= {f"HOST_{n}": host for n, host in hosts.items()}
    container = {
        "name": "kafka",
        "image": build.kafka("4.3.1").name,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", START],
        "env": [{"name": name, "value": value} for name, value in settings.items()],
        "volumeMounts": [{"name": "data", "mountPath": LOG_DIR, "subPath": "kafka"}],
        "readinessProbe": {"tcpSocket": {"port": 9092}, "periodSeconds": 1},
    }
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "serviceName": f"{NAME}-brokers",
            "replicas": BROKERS,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {
                    "enableServiceLinks": False,
                    "securityContext": {"fsGroup": 1000},
                    "containers": [container],
                },
            },
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
        },
    }


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with running(nodes=2), closing(Api()) as api:
        yield api


def not_ready(api: Api) -> str:
    pods = api.objects("Pod", NAMESPACE, "strimzi.io/cluster=prod")
    ready = [pod for pod in pods if container_status(pod).get("ready") and "deletionTimestamp" not in pod["metadata"]]
    return "" if len(ready) == BROKERS else f"{len(ready)} of {BROKERS} pods are ready"


@pytest.fixture(scope="module")
def bootstrap(api: Api) -> Iterator[str]:
    """Run the user's brokers; yield the address at which clients find them."""
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    api.create(service(f"{NAME}-brokers", LABELS, clusterIP="None"))
    front = api.create(service(f"{NAME}-bootstrap", LABELS, publishNotReadyAddresses=False))["spec"]["clusterIP"]
    own = {n: {"statefulset.kubernetes.io/pod-name": f"{NAME}-{n}"} for n in range(BROKERS)}
    hosts = {n: api.create(service(f"{NAME}-{n}", labels))["spec"]["clusterIP"] for n, labels in own.items()}
    api.create(stateful_set(hosts))
    assert "" == still_lacking(lambda: not_ready(api), READY_S)
    yield f"{front}:9092"
    api.delete("Namespace", None, NAMESPACE)
    assert "" == still_lacking(lambda: NAMESPACE if api.find("Namespace", None, NAMESPACE) else "", READY_S)


@pytest.fixture
def unchanged(api: Api, bootstrap: str) -> Iterator[None]:
    """Assert that the pods are as they were, apart from starts, and that no object of ours is left."""
    assert bootstrap
    before = objects(api)
    yield
    assert "" == still_lacking(lambda: not_ready(api), READY_S)
    assert before == objects(api)


def ended(plan: Path, address: str, out: Path, kubeconfig: str = "") -> "subprocess.CompletedProcess[str]":
    environment = os.environ | ({"KUBECONFIG": kubeconfig} if kubeconfig else {})
    return subprocess.run(command(plan, address, out), capture_output=True, text=True, check=False, env=environment)


def command(plan: Path, address: str, out: Path) -> list[str]:
    permissions = ["--allow-attach", address, "--allow-namespace", NAMESPACE]
    words = ["run", str(plan), "--out", str(out), "--json", *permissions]
    return [sys.executable, "-m", "aftershock.harness.cli", *words]


def written(tmp_path: Path, bootstrap: str, faults: str, permits: str = "agent: true") -> Path:
    plan = tmp_path / "plan.yaml"
    text = PLAN.replace("BOOTSTRAP", bootstrap).replace("FAULTS", faults)
    plan.write_text(text.replace("agent: true", permits))
    return plan


@pytest.mark.usefixtures("unchanged")
def test_each_kind_takes_effect_and_heals(api: Api, bootstrap: str, tmp_path: Path) -> None:
    """For a user with the role that `kubernetes rbac` prints, and no other permission."""
    plan, permitted = written(tmp_path, bootstrap, ALL), tmp_path / "permitted"
    permitted.mkdir()
    kubeconfig = as_user(api, NAMESPACE, permitted, role=role(NAMESPACE, (*NEEDS, *AGENT_NEEDS)))
    run = ended(plan, bootstrap, tmp_path / "runs", kubeconfig)
    assert run.returncode in (0, 2), run.stderr[-3000:]
    (home,) = (tmp_path / "runs").glob("2*")
    lines = [json.loads(line) for line in (home / "journal.jsonl").read_text().splitlines()]
    ends = {line["fault"]: line["state"] for line in lines}
    assert dict.fromkeys(("killed", "paused", "stopped", "deleted", "evicted"), "healed") == ends
    proven = ("witness", "exposure", "integrity")
    checks = [check for check in json.loads(run.stdout)["checks"] if check["kind"] in proven]
    assert {*proven} == {check["kind"] for check in checks}
    assert {} == {f"{check['id']} {check['subject']}": check["why"] for check in checks if check["status"] != "PASS"}


def crowded(api: Api) -> tuple[str, list[int]]:
    """Return the Kubernetes node that has most of the brokers' pods, and those brokers."""
    homes: dict[str, list[int]] = {}
    for pod in api.objects("Pod", NAMESPACE, "strimzi.io/cluster=prod"):
        homes.setdefault(pod["spec"]["nodeName"], []).append(int(pod["metadata"]["name"].rpartition("-")[2]))
    return max(homes.items(), key=lambda home: len(home[1]))


def cordoned(api: Api) -> list[str]:
    nodes = api.objects("Node")
    closed = (node for node in nodes if node["spec"].get("unschedulable") or RUN in node["metadata"]["labels"])
    return [node["metadata"]["name"] for node in closed]


@contextmanager
def budget(api: Api, **spec: int) -> Iterator[None]:
    """Keep a disruption budget of the brokers' pods for a block."""
    budgets = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
    manifest = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "all"}}
    full = {"spec": {**spec, "selector": {"matchLabels": LABELS}}}
    api._json("POST", budgets, "create a budget", {}, manifest | full)
    try:
        yield
    finally:
        api._json("DELETE", f"{budgets}/all", "delete the budget")


@pytest.mark.usefixtures("unchanged")
def test_a_drained_node_loses_its_brokers_one_by_one(api: Api, bootstrap: str, tmp_path: Path) -> None:
    """As the budget allows; their stateful set makes them again on the other node, and the node takes pods again."""
    machine, (first, *others) = crowded(api)
    faults = f"[{{id: drained, kind: drain, broker: {first}, at: 0s, for: 60s}}]"
    plan, drainer = written(tmp_path, bootstrap, faults, "nodes: true"), tmp_path / "drainer"
    drainer.mkdir()
    permitted = [*role(NAMESPACE, NEEDS), *role(None, cordons.NEEDS)]
    kubeconfig = as_user(api, NAMESPACE, drainer, role=permitted)
    with budget(api, maxUnavailable=1):
        run = ended(plan, bootstrap, tmp_path / "runs", kubeconfig)
    assert run.returncode in (0, 2), run.stderr[-3000:]
    (home,) = (tmp_path / "runs").glob("2*")
    lines = [json.loads(line) for line in (home / "journal.jsonl").read_text().splitlines()]
    assert (machine, "healed") == (lines[0]["targets"]["roles"]["machine"], lines[-1]["state"])
    assert [first, *sorted(others)] == lines[0]["targets"]["brokers"]
    proven = ("witness", "exposure", "integrity")
    checks = [check for check in json.loads(run.stdout)["checks"] if check["kind"] in proven]
    assert {} == {f"{check['id']} {check['subject']}": check["why"] for check in checks if check["status"] != "PASS"}
    assert machine not in {pod["spec"]["nodeName"] for pod in api.objects("Pod", NAMESPACE, "strimzi.io/cluster=prod")}
    assert [] == cordoned(api)


@pytest.mark.usefixtures("unchanged")
def test_a_node_that_a_vanished_runner_has_cordoned_is_found_by_its_label(
    api: Api, bootstrap: str, tmp_path: Path
) -> None:
    machine, (first, *_) = crowded(api)
    faults = f"[{{id: drained, kind: drain, broker: {first}, at: 0s, for: 120s}}]"
    plan = written(tmp_path, bootstrap, faults, "nodes: true")
    plan.write_text(plan.read_text().replace("orders", "returns"))  # which nobody can delete afterwards
    with vanished(plan, bootstrap, tmp_path) as run_id:
        assert [machine] == cordoned(api)
        heal = [sys.executable, "-m", "aftershock.harness.cli", "heal", "--kubernetes", "--run", run_id]
        subprocess.run(heal, check=True, cwd=tmp_path)
        assert [] == cordoned(api)


@pytest.mark.usefixtures("unchanged")
def test_a_disruption_budget_refuses_an_eviction(api: Api, bootstrap: str, tmp_path: Path) -> None:
    plan = written(tmp_path, bootstrap, "[{id: evicted, kind: delete_pod, evict: true, broker: 2, at: 0s, for: 9s}]")
    with budget(api, minAvailable=BROKERS):
        run = ended(plan, bootstrap, tmp_path / "runs")
    assert 2 == run.returncode, run.stderr[-3000:]
    assert "it would violate the pod's disruption budget" in run.stderr


@pytest.mark.usefixtures("unchanged")
def test_what_the_user_may_not_do_is_named(api: Api, bootstrap: str, tmp_path: Path) -> None:
    plan, reader = written(tmp_path, bootstrap, ALL), tmp_path / "reader"
    reader.mkdir()
    kubeconfig = as_user(api, NAMESPACE, reader, role=role(NAMESPACE, NEEDS))
    run = ended(plan, bootstrap, tmp_path / "runs", kubeconfig)
    assert 3 == run.returncode
    assert f"lacks permissions in the namespace {NAMESPACE}: create pods, create pods/exec, create config" in run.stderr
    assert f"aftershock kubernetes rbac --namespace {NAMESPACE} --attach --agent" in run.stderr
    heal = [sys.executable, "-m", "aftershock.harness.cli", "heal", "--kubernetes"]
    for options, code, says in (((), 3, "with --namespace NAME"), (("--namespace", NAMESPACE), 0, "nothing to heal")):
        environment = os.environ | {"KUBECONFIG": kubeconfig}
        told = subprocess.run(
            [*heal, *options], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
        )
        assert (code, True) == (told.returncode, says in told.stdout + told.stderr), told.stderr


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("machine", ["here", "gone"])
def test_a_killed_runner_leaves_no_broker_paused(machine: str, api: Api, bootstrap: str, tmp_path: Path) -> None:
    """Its watchdog heals; without it and the runner's files, the agents let all go on, and any machine heals the rest.

    The rest is a setting of a broker, and the topics that the run has created.
    """
    slow = "{id: strict, kind: config, broker: 0, set: {message.max.bytes: '2000000'}, at: 0s, for: 120s}"
    plan = written(tmp_path, bootstrap, f"[{slow}, {{id: paused, kind: pause, broker: 1, at: 1s, for: 120s}}]")
    with vanished(plan, bootstrap, tmp_path, machine=machine == "gone") as run_id:
        if machine == "gone":
            began_s = time.monotonic()
            assert "" == still_lacking(lambda: not_serving(api, run_id), 60.0)
            assert time.monotonic() - began_s < 60.0
            heal = [sys.executable, "-m", "aftershock.harness.cli", "heal", "--kubernetes"]
            refused = subprocess.run(heal, check=False, cwd=tmp_path, capture_output=True, text=True)
            assert f"the plan would connect to {bootstrap}" in refused.stderr
            heal += ["--allow-attach", bootstrap, "--allow-namespace", NAMESPACE]
            told = subprocess.run(heal, check=True, cwd=tmp_path, capture_output=True, text=True)
            assert "healed strict, paused" in told.stdout
            assert "deleted the topics that the run created" in told.stdout

        def left() -> str:
            return next((kind for kind in ("Pod", "ConfigMap") if api.objects(kind, NAMESPACE, RUN)), "")

        assert "" == still_lacking(left, READY_S)


@contextmanager
def vanished(plan: Path, bootstrap: str, tmp_path: Path, *, machine: bool = True) -> Iterator[str]:
    """Run a plan until its fault is injected, and kill its runner; yield the run's id.

    With ``machine``, its watchdog and all of its files are gone as well.
    """
    faults = plan.read_text().count("kind:")
    runner = subprocess.Popen(
        command(plan, bootstrap, tmp_path / "runs"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:

        def not_injected() -> str:
            journals = [*(tmp_path / "runs").glob("2*/journal.jsonl")]
            return "" if journals and journals[0].read_text().count('"injected"') == faults else "not yet"

        assert "" == still_lacking(not_injected, READY_S)
        (home,) = (tmp_path / "runs").glob("2*")
        if machine:
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                if path.parent.name != str(runner.pid) and home.name.encode() in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
            shutil.rmtree(home)
    finally:
        runner.kill()
        runner.wait()
    yield home.name


def not_serving(api: Api, run_id: str) -> str:
    """Say that an agent still runs; it ends only after it let all processes go on."""
    agents = api.objects("Pod", NAMESPACE, f"{RUN}={run_id}")
    return "" if all(agent["status"]["phase"] == "Succeeded" for agent in agents) else "the agent runs"

"""Survey of a user's cluster: which container is which broker's, and what follows for faults."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from ruamel.yaml import YAML

from aftershock.errors import ClusterError, EngineError
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import load_plan
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.adhoc import survey as module
from aftershock.harness.adhoc.survey import Survey, survey
from aftershock.harness.attach.attached import Broker, ClusterDescription
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.workloads.kafka.wire.connection import Address

BOOTSTRAP = "localhost:19092,localhost:29092"
PLAN = """
name: theirs
{attach}
topics: [{{name: orders, partitions: 3, replication: 2}}]
workloads: [{{name: orders, produce: {{topic: orders, rate: 60/s}}}}]
faults: [{{kind: {kind}, broker: 1, at: 0s, for: 4s}}]
slo: ["lost == 0"]
"""


def container(name: str, *ports: int, image: str = "apache/kafka:4.3.1") -> Any:
    bindings = {f"{port}/tcp": [{"HostPort": str(port)}] for port in ports}
    networks = {"shop_default": {"IPAddress": "172.20.0.2"}}
    attrs = {
        "NetworkSettings": {"Ports": bindings, "Networks": networks},
        "Config": {"Image": image},
        "HostConfig": {"NetworkMode": "shop_default"},
    }
    return SimpleNamespace(id=name, name=name, attrs=attrs, labels={}, reload=lambda: None)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Containers of the Docker engine, beside a cluster of two local brokers and a distant one."""
    ports = {1: ("localhost", 19092), 2: ("127.0.0.1", 29092), 3: ("192.0.2.3", 39092)}
    brokers = tuple(Broker(BrokerId(id_), Address(*where), f"rack-{id_}") for id_, where in ports.items())
    monkeypatch.setattr(module, "describe_cluster", lambda *_: ClusterDescription("abc", brokers))
    found: list[Any] = []
    client = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: found))
    monkeypatch.setattr(module.engine, "connect", lambda: client)
    monkeypatch.setattr(module, "has_image", lambda *_: True)

    def no_routes(*_: object) -> None:
        raise ClusterError("no proxy can stand before broker 1")

    monkeypatch.setattr(module.inserted_proxy, "routes", no_routes)
    return found


def names_in(found: Survey) -> dict[int, str]:
    return {broker: container.name for broker, container in found.containers.items()}


def test_a_container_is_that_of_the_broker_whose_port_it_publishes(running: list[Any]) -> None:
    """Not that of a distant broker with the same port."""
    running += [container("kafka-2", 29092), container("web", 80), container("kafka-1", 19092), container("far", 39092)]
    assert {1: "kafka-1", 2: "kafka-2"} == names_in(survey(BOOTSTRAP))


def test_a_proxy_is_no_broker(running: list[Any]) -> None:
    running += [container("both", 19092, 29092), container("toxi", 19092, image="ghcr.io/shopify/toxiproxy:2.12.0")]
    assert {} == names_in(survey(BOOTSTRAP))


def test_every_kind_is_possible_or_has_a_reason(running: list[Any]) -> None:
    """The lines for a plan are valid, and make a fault possible that was refused."""
    for containers in ([], [container("kafka-1", 19092)]):
        running[:] = containers
        lines = list(survey(BOOTSTRAP).lines())
        kinds = [name for line in lines if ": " in line for name in line.partition(":")[0].strip().split(", ")]
        assert set(KINDS) <= set(kinds)
    titles = [lines.index(title) for title in ("possible:", "not possible:", "for your plan:")]
    assert titles == sorted(titles)
    assert any("kill" in line and "brokers 1" in line for line in lines[titles[0] : titles[1]])
    section = "\n".join(line.removeprefix("  ") for line in lines[titles[2] + 1 : -1])
    assert {1: "kafka-1"} == YAML(typ="safe").load(section)["cluster"]["attach"]["containers"]
    assert load_plan(PLAN.format(attach=section, kind="kill"))
    assert lines[-1].endswith("--allow-attach localhost:19092 --allow-attach localhost:29092 --allow-container kafka-1")


def test_without_an_engine_the_rest_is_surveyed(monkeypatch: pytest.MonkeyPatch, running: list[Any]) -> None:
    def refuse() -> None:
        raise EngineError("no Docker engine answers")

    monkeypatch.setattr(module.engine, "connect", refuse)
    assert running == []
    text = "\n".join(survey(BOOTSTRAP).lines())
    assert "containers were not looked for: no Docker engine answers" in text
    assert "no broker's container is on this Docker engine" in text


def test_shared_networks_and_hidden_ports_are_told(running: list[Any]) -> None:
    """A container on the network of the host is not cut off; one without the advertised port, not from clients."""
    running += [container("kafka-1", 19092), container("kafka-2", 29092)]
    running[0].attrs["HostConfig"]["NetworkMode"] = "host"
    text = "\n".join(survey(BOOTSTRAP).lines())
    assert "on the packets of the containers of the brokers 2; kafka-1 uses the network of the host" in text
    assert "packet_loss" in text.partition("not possible:")[0]


def test_link_faults_are_possible_where_a_proxy_can_be_inserted(
    monkeypatch: pytest.MonkeyPatch, running: list[Any]
) -> None:
    assert running == []
    assert "no proxy can stand before broker 1" in "\n".join(survey(BOOTSTRAP).lines()).partition("not possible:")[2]
    monkeypatch.setattr(module.inserted_proxy, "routes", lambda *_: {})
    lines = list(survey(BOOTSTRAP).lines())
    assert "latency" in "\n".join(lines).partition("not possible:")[0]
    assert "      proxy: insert" in lines


def test_no_lines_for_a_proxy_before_a_broker_that_is_elsewhere(running: list[Any]) -> None:
    """Each reason names the broker and what it advertises."""
    running += [container("kafka-1", 19092), container("kafka-2", 29092)]
    with pytest.raises(ClusterError, match=r"broker 3: no container .* publishes 192\.0\.2\.3:39092"):
        list(survey(BOOTSTRAP).proxy_lines())


def pod(name: str, namespace: str = "kafka", container: str = "kafka", **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"metadata": metadata, "spec": {"containers": [{"name": "sidecar"}, {"name": container}]}}


class Pods:
    """The API server of a Kubernetes cluster with these pods."""

    context = "kind"

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = pods

    def objects(self, kind: str, namespace: str | None = None) -> list[dict[str, Any]]:
        assert kind == "Pod"
        return [pod for pod in self.pods if namespace in (None, pod["metadata"]["namespace"])]


STRIMZI = {"strimzi.io/cluster": "prod", "app.kubernetes.io/name": "kafka"}
THEIRS = [pod(f"prod-kafka-{number}", **STRIMZI) for number in (1, 2, 3)]


@pytest.mark.usefixtures("running")
def test_pods_are_those_with_the_brokers_ids() -> None:
    """Not an operator's pod, nor those of a cluster of another size."""
    others = [pod("prod-operator-x", container="operator", **STRIMZI), pod("small-1", "test", app="small")]
    found = survey(BOOTSTRAP, api=cast("Api", Pods(*THEIRS, *others)))
    lines = list(found.lines())
    assert "      kubernetes: {namespace: kafka, pods: strimzi.io/cluster=prod, agent: true}" in lines
    assert any(line.startswith("  broker 2 ") and line.endswith("pod kafka/prod-kafka-2") for line in lines)
    assert "run it with: aftershock run PLAN --allow-attach localhost:19092 --allow-attach localhost:29092" in lines[-1]
    assert lines[-1].endswith("--allow-namespace kafka")
    possible = {
        name: line for line in lines[: lines.index("not possible:")] for name in line.strip().split(": ")[0].split(", ")
    }
    assert "with `agent: true`" in possible["kill"]
    assert "with `nodes: true`" in possible["drain"]
    assert possible["delete_pod"].endswith("on the pods of the brokers 1, 2, 3")
    assert "crash_loop" not in possible


@pytest.mark.usefixtures("running")
def test_two_clusters_with_the_same_ids_are_told() -> None:
    twins = [pod(f"test-kafka-{number}", "test", app="kafka") for number in (1, 2, 3)]
    lines = "\n".join(survey(BOOTSTRAP, api=cast("Api", Pods(*THEIRS, *twins))).lines())
    assert "pods that fit as well, because their brokers have the same ids: test-kafka-1, test-kafka-2" in lines
    only = survey(BOOTSTRAP, api=cast("Api", Pods(*THEIRS, *twins)), namespace="test")
    assert ["app=kafka"] == [one.selector for one in only.pods]


@pytest.mark.usefixtures("running")
def test_isolated_controllers_are_no_brokers() -> None:
    """Strimzi labels them alike."""
    controllers = [pod(f"prod-controller-{number}", **STRIMZI) for number in (4, 5)]
    lines = "\n".join(survey(BOOTSTRAP, api=cast("Api", Pods(*THEIRS, *controllers))).lines())
    assert "kubernetes: {namespace: kafka, brokers: {1: prod-kafka-1, 2: prod-kafka-2, 3: prod-kafka-3}, agent" in lines


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("pods", [[], THEIRS[:2], [*THEIRS, pod("old-3", **STRIMZI)]])
def test_pods_that_do_not_fit_are_refused(pods: list[dict[str, Any]]) -> None:
    with pytest.raises(ClusterError, match="no pods of the Kubernetes cluster kind are the brokers 1, 2, 3, each once"):
        survey(BOOTSTRAP, api=cast("Api", Pods(*pods)))

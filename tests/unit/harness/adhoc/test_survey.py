"""Survey of a user's cluster: which container is which broker's, and what follows for faults."""

from types import SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML

from aftershock.errors import EngineError
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import load_plan
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.adhoc import survey as module
from aftershock.harness.adhoc.survey import survey
from aftershock.harness.cluster.attached import Broker, ClusterDescription
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
    attrs = {"NetworkSettings": {"Ports": bindings}, "Config": {"Image": image}}
    return SimpleNamespace(name=name, attrs=attrs, reload=lambda: None)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Containers of the Docker engine, beside a cluster of two local brokers and a distant one."""
    ports = {1: ("localhost", 19092), 2: ("127.0.0.1", 29092), 3: ("192.0.2.3", 39092)}
    brokers = tuple(Broker(BrokerId(id_), Address(*where), f"rack-{id_}") for id_, where in ports.items())
    monkeypatch.setattr(module, "describe_cluster", lambda *_: ClusterDescription("abc", brokers))
    found: list[Any] = []
    client = SimpleNamespace(containers=SimpleNamespace(list=lambda: found))
    monkeypatch.setattr(module.engine, "connect", lambda: client)
    return found


def test_a_container_is_that_of_the_broker_whose_port_it_publishes(running: list[Any]) -> None:
    """Not that of a distant broker with the same port."""
    running += [container("kafka-2", 29092), container("web", 80), container("kafka-1", 19092), container("far", 39092)]
    assert {1: "kafka-1", 2: "kafka-2"} == survey(BOOTSTRAP).containers


def test_a_proxy_is_no_broker(running: list[Any]) -> None:
    running += [container("both", 19092, 29092), container("toxi", 19092, image="ghcr.io/shopify/toxiproxy:2.12.0")]
    assert {} == survey(BOOTSTRAP).containers


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

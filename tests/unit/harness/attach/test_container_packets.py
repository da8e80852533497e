"""Packets of a user's containers: where rules may be, and the helper that joins a network for them."""

from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import NotFound

from aftershock.errors import FaultError
from aftershock.faults.targets.values import BrokerId, PacketChange
from aftershock.harness.attach import container_packets as module
from aftershock.harness.attach.container_packets import HELPER, ContainerPackets, refusal
from aftershock.harness.cluster.packets import Leg
from aftershock.workloads.kafka.wire.connection import Address

DROP = PacketChange("drop", 1.0)


def container(name: str, mode: str = "shop_default", address: str = "172.20.0.2", ipv6: str = "") -> Any:
    networks = {"shop_default": {"IPAddress": address, "GlobalIPv6Address": ipv6}}
    attrs = {
        "HostConfig": {"NetworkMode": mode},
        "NetworkSettings": {"Networks": networks, "Ports": {"9092/tcp": [{"HostPort": "19092"}]}},
        "State": {"StartedAt": "first"},
    }
    return SimpleNamespace(id=f"id-of-{name}", name=name, attrs=attrs, labels={}, status="running", reload=lambda: None)


@pytest.mark.parametrize(
    ("described", "others", "why"),
    [
        (container("k"), [container("k"), container("web")], None),
        (container("k", mode="host"), [], "the network of the host"),
        (container("k", mode="container:abc"), [], "shares its network with another container"),
        (container("k"), [container("sidecar", mode="container:id-of-k")], "shares its network with sidecar"),
        (container("k", ipv6="fd00::2"), [], "has an IPv6 address"),
        (container("k", address=""), [], "has no network"),
    ],
)
def test_no_rule_may_hit_other_programs(described: Any, others: list[Any], why: str | None) -> None:
    reason = refusal(described, others)
    assert (why is None) == (reason is None)
    assert (why or "") in (reason or "")


def test_our_own_helper_shares_the_network_and_is_no_stranger() -> None:
    helper = container("helper", mode="container:id-of-k")
    helper.labels[HELPER] = "run"
    assert refusal(container("k"), [helper]) is None


@pytest.mark.parametrize(
    ("leg", "rule"),
    [
        (Leg(None, 9092, inward=True), "INPUT -p tcp --dport 9092"),
        (Leg(None, 9092, inward=False), "OUTPUT -p tcp --sport 9092"),
        (Leg(None, None, inward=True, peer="172.20.0.3"), "INPUT -s 172.20.0.3"),
        (Leg(None, None, inward=False, peer="172.20.0.3"), "OUTPUT -d 172.20.0.3"),
        (Leg("10.0.0.1", 9, inward=True), "INPUT -d 10.0.0.1 -p tcp --dport 9"),
        (Leg(None, None, inward=True), "INPUT ! -i lo"),
        (Leg(None, None, inward=False), "OUTPUT ! -o lo"),
    ],
)
def test_a_leg_is_what_its_rule_matches(leg: Leg, rule: str) -> None:
    """Without port and peer everything, except what stays within the container."""
    assert leg.match() == rule


class Engine:
    """An engine with the containers of two brokers, and helpers that remember the scripts they ran."""

    def __init__(self) -> None:
        self.helpers: dict[str, Any] = {}
        self.removed = 0
        self.containers = self
        self.brokers = {BrokerId(1): container("one"), BrokerId(2): container("two", address="172.20.0.3")}
        self.states: dict[BrokerId, str] = dict.fromkeys(self.brokers, "running")

    def nodes(self) -> Any:
        for each in self.brokers.values():
            each.client = self
        return {
            broker: SimpleNamespace(container=each, state=lambda broker=broker: self.states[broker])
            for broker, each in self.brokers.items()
        }

    def get(self, name: str) -> Any:
        if name not in self.helpers:
            raise NotFound(name)
        return self.helpers[name]

    def list(self, **_: object) -> list[Any]:
        return [*self.brokers.values(), *self.helpers.values()]

    def start(self, _: object, prefix: str, joined: Any, labels: dict[str, str], *__: object, **how: object) -> None:
        assert how == {"offload": True}  # nothing but the rules may change there
        helper = container(f"{prefix}-packets", mode=f"container:{joined.id}")
        helper.labels.update(labels)
        helper.rules = set[str]()

        def run(words: list[str]) -> tuple[int, bytes]:
            for line in words[-1].splitlines():
                if " -N " in line:
                    helper.rules.add(line.split()[-1])
            if words[-1].rstrip().endswith("echo removed"):
                helper.rules.clear()
            return 0, " ".join(helper.rules).encode()

        def remove(**_: object) -> None:
            self.removed += 1
            del self.helpers[helper.name]

        helper.exec_run, helper.remove = run, remove
        self.helpers[helper.name] = helper


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    fake = Engine()
    monkeypatch.setattr(module, "start_helper", fake.start)
    monkeypatch.setattr(module.engine, "tools_image", lambda *_: SimpleNamespace(name="tools"))
    return fake


def test_rules_are_in_the_containers_of_their_legs_only(engine: Engine) -> None:
    packets = ContainerPackets("run", engine.nodes())
    packets.change("cut-1", {BrokerId(2): [Leg(None, 9092, inward=True)]}, DROP)
    assert [*engine.helpers] == ["aftershock-run-k2-packets"]
    assert packets.present("cut-1")
    packets.remove("cut-1")
    assert not packets.present("cut-1")


def test_another_process_finds_and_removes_the_rules(engine: Engine) -> None:
    """A healer does not know the legs, and looks into every container that runs."""
    ContainerPackets("run", engine.nodes()).change("cut-1", {BrokerId(1): [Leg(None, None, inward=True)]}, DROP)
    healer = ContainerPackets("run", engine.nodes())
    assert healer.present("cut-1")
    healer.remove("cut-1")
    assert not healer.present("cut-1")


def test_a_restarted_container_has_lost_its_rules(engine: Engine) -> None:
    """Its helper is in the network of the past, and is replaced; the witness sees no rule."""
    packets = ContainerPackets("run", engine.nodes())
    packets.change("cut-1", {BrokerId(1): [Leg(None, None, inward=True)]}, DROP)
    engine.brokers[BrokerId(1)].attrs["State"]["StartedAt"] = "second"
    assert not packets.present("cut-1")
    assert engine.removed == 1


def test_a_container_that_does_not_run_has_no_rules_to_remove(engine: Engine) -> None:
    packets = ContainerPackets("run", engine.nodes())
    packets.change("cut-1", {BrokerId(1): [Leg(None, None, inward=True)]}, DROP)
    engine.states[BrokerId(1)] = "exited"
    assert not packets.present("cut-1")
    packets.remove("cut-1")


def test_a_container_on_the_network_of_the_host_gets_no_helper(engine: Engine) -> None:
    engine.brokers[BrokerId(1)].attrs["HostConfig"]["NetworkMode"] = "host"
    packets = ContainerPackets("run", engine.nodes())
    with pytest.raises(FaultError, match="one uses the network of the host"):
        packets.change("cut-1", {BrokerId(1): [Leg(None, None, inward=True)]}, DROP)
    assert {} == engine.helpers


def test_the_port_of_clients_is_that_which_the_broker_advertises(engine: Engine) -> None:
    packets, broker = ContainerPackets("run", engine.nodes()), BrokerId(1)
    assert packets.client_port(broker, Address("localhost", 19092), None) == 9092
    assert packets.client_port(broker, Address("localhost", 29092), "kafka-1:9095") == 9095
    with pytest.raises(FaultError, match="one does not publish the port of localhost:29092"):
        packets.client_port(broker, Address("localhost", 29092), None)

"""Access of faults to an attached cluster: operations that the plan allows, and refusal of all others."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from aftershock.errors import FaultError
from aftershock.faults.sections.cluster import Attach
from aftershock.faults.targets.values import BrokerId, PacketChange, Toxic
from aftershock.faults.targets.world import World
from aftershock.harness.attach.attached import AttachmentDescriptor, NamedNodes, NamedProxies
from aftershock.harness.cluster.node import KafkaNode
from aftershock.harness.cluster.packets import Leg
from aftershock.harness.cluster.topology import Node
from aftershock.harness.world.client_processes import ClientProcesses
from aftershock.harness.world.world import AttachedWorld
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.kafka.wire.security import PLAINTEXT

ATTACH = Attach(bootstrap="k:1", toxiproxy="p:2", proxies={"one": 1}, brokers=(2,), create=("ours",))
ONE, TWO = BrokerId(1), BrokerId(2)
Act = Callable[[Any], Awaitable[Any]]


class Server(NamedProxies):
    """A Toxiproxy with two proxies, of which the plan names one; ``asked`` lists the requests that change a proxy."""

    def __init__(self, user_names: dict[str, str]) -> None:
        super().__init__("http://p:2", user_names)
        self.asked: list[tuple[str, str]] = []

    def _request(self, verb: str, path: str, **_: Any) -> Any:
        if verb != "get":
            self.asked.append((verb, path))
        theirs = {"name": "theirs", "type": "latency", "stream": "upstream", "attributes": {}}
        proxies = {
            "one": {"upstream": "k:1", "enabled": True, "toxics": []},
            "other": {"upstream": "k:9", "enabled": False, "toxics": [theirs]},
        }
        return SimpleNamespace(json=lambda: proxies)


class Kafka:
    """An administration client that accepts every operation; ``asked`` lists the operations."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, verb: str) -> Callable[..., None]:
        return lambda *_, **__: self.asked.append(verb)


class Container:
    """A paused container of the user's; ``asked`` lists what was done to it."""

    name, status = "theirs-2", "paused"
    attrs: ClassVar = {"HostConfig": {"NetworkMode": "bridge"}, "State": {"ExitCode": 0}}
    client = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: []))

    def __init__(self) -> None:
        self.asked: list[str] = []

    def reload(self) -> None: ...

    def __getattr__(self, verb: str) -> Callable[..., None]:
        return lambda **_: self.asked.append(verb)


@pytest.fixture
def cluster() -> Any:
    descriptor = AttachmentDescriptor(
        "run", ATTACH, ("orders", "ours"), ("orders-baseline-produce",), created={"ours": "id"}
    )
    return SimpleNamespace(
        wire_proxy=None,
        descriptor=descriptor,
        admin=Kafka(),
        racks={ONE: "a", TWO: "b"},
        client_addresses={ONE: Address("k", 1), TWO: Address("k", 2)},
        toxiproxy=Server({"client_a-k1": "one"}),
        proxies={"one": 1},
        secured=PLAINTEXT,
        nodes=NamedNodes({TWO: KafkaNode(Node(2, "b", broker=True, controller=False), cast("Any", Container()))}),
        answers=lambda _: False,
    )


@pytest.fixture
def world(cluster: Any) -> AttachedWorld:
    return AttachedWorld(cluster, ClientProcesses("run"))


def test_links_are_those_that_the_plan_names(world: AttachedWorld) -> None:
    """Links have the names of a launched cluster's links, so that evidence has one format."""
    assert [("client_a-k1", "client", "a", ONE)] == [
        (link.proxy, link.channel, link.source_rack, link.broker) for link in world.links()
    ]
    assert {ONE: "a", TWO: "b"} == world.racks()


async def test_only_named_proxies_are_touched_or_seen(world: AttachedWorld, cluster: Any) -> None:
    """Toxiproxy gets its own proxy names; toxics and disabled proxies that the plan doesn't name are invisible."""
    await world.add_toxic("client_a-k1", Toxic("slow", "latency", "upstream"))
    await world.disable("client_a-k1")
    assert [("post", "/proxies/one/toxics"), ("post", "/proxies/one")] == cluster.toxiproxy.asked
    assert {"client_a-k1": ()} == await world.toxics()
    assert frozenset() == await world.disabled()
    assert {"client_a-k1": "k:1"} == await world.upstreams()
    with pytest.raises(FaultError, match="is not among the proxies that the plan names"):
        await world.add_toxic("other", Toxic("slow", "latency", "upstream"))


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda w: w.reassign({("foreign", 0): (ONE,)}), "foreign is not in the plan"),
        (lambda w: w.cancel_reassign([("foreign", 0)]), "foreign is not in the plan"),
        (lambda w: w.elect_preferred([("orders", 0), ("foreign", 0)]), "foreign is not in the plan"),
        (lambda w: w.elect_unclean([("orders", 0)]), "did not create the topic orders, .* must not elect an unclean"),
        (lambda w: w.delete_records({("orders", 0): 5}), "must not delete its records"),
        (lambda w: w.delete_topic("orders"), "must not delete it;"),
        (lambda w: w.create_topic("new", {}, {}), "did not create the topic new, .* must not create it"),
        (lambda w: w.add_partitions("foreign", 5), "foreign is not in the plan"),
        (lambda w: w.alter_config("topic", "foreign", {}), "foreign is not in the plan"),
        (lambda w: w.alter_config("broker", "1", {}), "broker 1 is not named"),
        (lambda w: w.alter_config("broker", "", {}), "the default of all brokers is not named"),
        (lambda w: w.alter_config("client", "their-app", {}), "does not belong to the run"),
        (lambda w: w.close_fetch_session(ONE, 7), "broker 1 is not named"),
    ],
)
async def test_targets_that_the_plan_does_not_name_are_refused(
    world: AttachedWorld, cluster: Any, act: Act, why: str
) -> None:
    """Also if a role resolves to the target only at injection; no request is sent."""
    with pytest.raises(FaultError, match=why):
        await act(world)
    assert [] == cluster.admin.asked


@pytest.mark.parametrize(
    "act",
    [
        lambda w: w.reassign({("orders", 0): (ONE,)}),
        lambda w: w.elect_preferred(iter([("orders", 0)])),
        lambda w: w.elect_unclean(iter([("ours", 0)])),
        lambda w: w.delete_topic("ours"),
    ],
)
async def test_targets_that_the_plan_names_are_allowed(world: AttachedWorld, cluster: Any, act: Act) -> None:
    await act(world)
    assert 1 == len(cluster.admin.asked)


@pytest.mark.parametrize(
    ("verb", "done"),
    [("kill", "kill"), ("stop", "stop"), ("start", "start"), ("pause", "pause"), ("resume", "unpause")],
)
async def test_only_named_containers_are_touched(world: AttachedWorld, cluster: Any, verb: str, done: str) -> None:
    """Also if a role resolves to the broker only at injection."""
    with pytest.raises(FaultError, match="the plan names no container or pod of broker 1 under `attach`"):
        await getattr(world, verb)(ONE)
    await getattr(world, verb)(TWO)
    assert [done] == cluster.nodes[TWO].container.asked


async def test_a_broker_that_does_not_answer_is_not_in_service(world: AttachedWorld, cluster: Any) -> None:
    """The controller still lists a broker that was stopped for less than its session; of others, its list counts."""
    members = [SimpleNamespace(id=broker, fenced=False) for broker in (ONE, TWO)]
    cluster.admin = SimpleNamespace(members=lambda _: members)
    assert {ONE} == await world.registered()
    assert ("running", "paused") == (await world.state(ONE), await world.state(TWO))
    cluster.answers = lambda _: True
    assert {ONE, TWO} == await world.registered()


class Rules:
    """Packet rules that are only remembered; the containers have addresses 10.0.0.<broker>."""

    def __init__(self) -> None:
        self.changed: dict[str, tuple[dict[BrokerId, list[Leg]], PacketChange]] = {}

    def addresses(self, broker: BrokerId) -> list[str]:
        return [f"10.0.0.{broker}"]

    def client_port(self, broker: BrokerId, _: Address, upstream: str | None) -> int:
        return 9000 + broker if upstream is None else int(upstream.rpartition(":")[2])

    def change(self, fault: str, legs: dict[BrokerId, list[Leg]], change: PacketChange) -> None:
        self.changed[fault] = dict(legs), change


@pytest.fixture
def contained(cluster: Any) -> Any:
    """A cluster of which the plan names both containers, and a proxy before broker 1."""
    attach = ATTACH.model_copy(update={"containers": {1: "theirs-1", 2: "theirs-2"}})
    cluster.descriptor = replace(cluster.descriptor, attach=attach)
    cluster.packets = Rules()
    return cluster


def test_containers_have_links_from_clients_and_from_each_other(contained: Any) -> None:
    """Only those with a proxy take toxics."""
    world = AttachedWorld(contained, ClientProcesses("run"))
    links = {link.proxy: link for link in world.links()}
    assert {"client_a-k1", "client_a-k2", "replication_k1-k2", "replication_k2-k1"} == {*links}
    assert ["client_a-k1"] == [name for name, link in links.items() if world.takes_toxics(link)]
    assert ("a", TWO, ONE) == (
        links["replication_k1-k2"].source_rack,
        links["replication_k1-k2"].broker,
        links["replication_k1-k2"].source,
    )


async def test_packets_are_changed_at_the_container_that_a_link_leads_to(contained: Any) -> None:
    """Those of clients by the port that the container or its proxy's upstream has, those of a broker by its address."""
    world, loss = AttachedWorld(contained, ClientProcesses("run")), PacketChange("drop", 0.1)
    streams = [("client_a-k1", "upstream"), ("client_a-k2", "downstream"), ("replication_k1-k2", "upstream")]
    await world.change_packets("loss", cast("Any", streams), loss)
    legs = {
        ONE: [Leg(None, 1, inward=True)],
        TWO: [Leg(None, 9002, inward=False), Leg(None, None, inward=True, peer="10.0.0.1")],
    }
    assert {"loss": (legs, loss)} == contained.packets.changed
    await world.isolate("alone", TWO)
    everything = [Leg(None, None, inward=True), Leg(None, None, inward=False)]
    assert ({TWO: everything}, PacketChange("drop", 1.0)) == contained.packets.changed["alone"]


async def test_a_toxiproxy_that_is_gone_has_no_toxics_to_remove(contained: Any) -> None:
    """As after the end of one that a run has inserted."""
    contained.toxiproxy, contained.proxies = None, {}
    world = AttachedWorld(contained, ClientProcesses("run"))
    await world.remove_toxic("client_a-k1", "slow")
    await world.enable("client_a-k1")
    assert ({}, frozenset(), {}) == (await world.toxics(), await world.disabled(), await world.upstreams())


@pytest.mark.parametrize("verb", ["crash", "vanish", "fill", "seal", "add_rule", "set_clock"])
async def test_operations_that_need_a_launched_cluster_are_refused(world: AttachedWorld, verb: str) -> None:
    """The refusal is a FaultError, so that it is recorded and the run continues."""
    with pytest.raises(
        FaultError, match=f"`{verb}` is impossible on an attached cluster, which Aftershock did not launch"
    ):
        await getattr(world, verb)(ONE)


def test_every_operation_of_a_world_is_done_or_refused(world: AttachedWorld) -> None:
    """An unknown operation is an AttributeError."""
    verbs = [name for name in dir(World) if not name.startswith("_")]
    assert all(callable(getattr(world, verb)) for verb in verbs)
    with pytest.raises(AttributeError):
        _ = world.no_such_verb

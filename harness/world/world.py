"""Operations of faults on a cluster, which implement the protocols in `faults/targets/world.py`.

On an attached cluster, faults change only topics that the plan names, and brokers and proxies that ``attach`` names;
faults never destroy records and topics that existed before the run. `plan check` rejects forbidden faults; they are
rejected again at injection, because a role such as the controller is resolved to a node only then.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from typing import Any, cast

from aftershock.errors import FaultError
from aftershock.faults.targets.values import (
    BrokerId,
    BrokerState,
    Limits,
    Link,
    LogDir,
    PacketChange,
    Resource,
    Stream,
    TopicPartition,
    Toxic,
)
from aftershock.faults.targets.world import World
from aftershock.harness.attach.attached import AttachedCluster, link_name
from aftershock.harness.attach.broker_pods import BrokerPod
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.cluster.kubernetes.cluster import KubernetesCluster
from aftershock.harness.cluster.kubernetes.node import PodNode, quantity
from aftershock.harness.cluster.packets import Leg
from aftershock.harness.cluster.target import Target
from aftershock.harness.cluster.topology import Proxy
from aftershock.harness.kafka.admin import Quorum
from aftershock.harness.world.client_processes import ClientProcesses
from aftershock.harness.world.floods import FloodsWorld
from aftershock.harness.world.kafka import ClientsWorld, KafkaWorld
from aftershock.harness.world.links import LinksWorld, RulesWorld
from aftershock.harness.world.nodes import (
    ClocksWorld,
    GcWorld,
    MachineWorld,
    NodesWorld,
    UpgradesWorld,
    log_dir_in,
    log_dir_script,
)
from aftershock.harness.world.pods import PodsWorld
from aftershock.harness.world.threads import in_thread
from aftershock.workloads.kafka.wire.connection import Address


class AttachedWorld(PodsWorld, LinksWorld, KafkaWorld, ClientsWorld):
    """All operations of faults on an attached cluster, on its topics, settings, links and containers, and on clients.

    Brokers whose containers or pods the plan names under ``attach`` have the operations of launched nodes that need no
    more than that.
    """

    kill, stop, start = NodesWorld.kill, NodesWorld.stop, NodesWorld.start
    pause, resume = NodesWorld.pause, NodesWorld.resume
    limits, limit = MachineWorld.limits, MachineWorld.limit
    throttled, memory_used, _stats = MachineWorld.throttled, MachineWorld.memory_used, MachineWorld._stats  # noqa: SLF001

    def __init__(self, cluster: AttachedCluster, clients: ClientProcesses) -> None:
        self._attached = cluster
        self._cluster = cast("Any", cluster)  # it has what the base classes use of a cluster
        self._clients = clients
        self._security = cluster.secured
        self._attach = attach = cluster.descriptor.attach
        self._proxies = {
            (name := link_name(attach, broker)): Proxy(name, "client", attach.rack, broker, None, 0, "")
            for broker in sorted({*cluster.proxies.values(), *attach.containers, *attach.pods})
        }
        probes_max = 2 * len(self._proxies) + len(attach.containers) ** 2
        self._probing = ThreadPoolExecutor(max_workers=probes_max or 1, thread_name_prefix="probe")

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, None]]:
        return _refused(verb, "on an attached cluster, which Aftershock did not launch")

    def racks(self) -> Mapping[BrokerId, str]:
        return self._attached.racks

    def has_hosts(self) -> bool:
        return False

    def has_pods(self) -> bool:
        return self._attach.kubernetes is not None

    def pods_return(self) -> bool:
        return True

    @in_thread
    def delete_pod(self, broker: BrokerId, grace_ms: int | None, *, evict: bool = False) -> int:
        node = self._attached.nodes[broker]
        if not isinstance(node, BrokerPod):
            raise FaultError(f"broker {broker} is in a container of the Docker engine, and in no pod")
        return 1000 * node.delete_pod(None if grace_ms is None else math.ceil(grace_ms / 1000), evict=evict)

    def _api(self) -> Api:
        return self._attached.kubernetes

    def _pods(self) -> Mapping[BrokerId, BrokerPod]:
        return {broker: node for broker, node in self._attached.nodes.items() if isinstance(node, BrokerPod)}

    async def state(self, broker: BrokerId) -> BrokerState:
        """Return the state of a broker's container or pod; of a broker without, whether the cluster has it."""
        if node := self._attached.nodes.get(broker):
            return await asyncio.to_thread(node.state)
        return "running" if broker in await self.registered() else "exited"

    async def registered(self, excluding: frozenset[BrokerId] = frozenset()) -> frozenset[BrokerId]:
        """Return the brokers that the controller knows, without those that a fault may have stopped and don't answer.

        The controller misses a broker only after its session, so a broker that was stopped for less was never fenced.
        """
        known = await super().registered(excluding)
        named = [broker for broker in known if broker in self._attached.nodes]
        answers = await asyncio.gather(*(asyncio.to_thread(self._attached.answers, broker) for broker in named))
        return known - {broker for broker, answered in zip(named, answers, strict=True) if not answered}

    def links(self) -> Sequence[Link]:
        """Return the links of clients, and those from one container of the plan to another."""
        racks = self.racks()
        between = [
            Link(f"replication_k{source}-k{target}", "replication", racks[source], target, source)
            for source, target in permutations(map(BrokerId, sorted(self._attach.containers)), 2)
        ]
        return (*super().links(), *between)

    def takes_toxics(self, link: Link) -> bool:
        return link.channel == "client" and link.broker in self._attached.proxies.values()

    async def remove_toxic(self, proxy: str, name: str) -> None:
        if self._attached.toxiproxy:  # else the inserted Toxiproxy is gone, and with it its toxics
            await super().remove_toxic(proxy, name)

    async def enable(self, proxy: str) -> None:
        if self._attached.toxiproxy:
            await super().enable(proxy)

    async def redirect(self, proxy: str, upstream: str) -> None:
        if self._attached.toxiproxy:
            await super().redirect(proxy, upstream)

    async def toxics(self) -> dict[str, tuple[Toxic, ...]]:
        return await super().toxics() if self._attached.toxiproxy else {}

    async def upstreams(self) -> dict[str, str]:
        return await super().upstreams() if self._attached.toxiproxy else {}

    async def disabled(self) -> frozenset[str]:
        return await super().disabled() if self._attached.toxiproxy else frozenset()

    async def probe_ms(self, link: Link) -> float:
        """Probe a link; between containers, packets of the source's must be answered by the target's kernel."""
        if link.source is None:
            return await super().probe_ms(link)
        began_s, reach = time.perf_counter(), self._attached.packets.reaches
        if not await asyncio.get_running_loop().run_in_executor(self._probing, reach, link.source, link.broker):
            raise FaultError(f"the container of broker {link.broker} does not answer packets of broker {link.source}")
        return (time.perf_counter() - began_s) * 1000

    def has_packet_control(self) -> bool:
        return bool(self._attach.containers)

    @in_thread
    def change_packets(self, fault: str, streams: Sequence[tuple[str, Stream]], change: PacketChange) -> None:
        links, legs = {link.proxy: link for link in self.links()}, defaultdict[BrokerId, list[Leg]](list)
        for name, stream in streams:
            link, inward = links[name], stream == "upstream"
            legs[link.broker] += self._legs(link, inward=inward)
        self._attached.packets.change(fault, legs, change)

    def _legs(self, link: Link, *, inward: bool) -> list[Leg]:
        packets = self._attached.packets
        if link.source is not None:
            return [Leg(None, None, inward, peer) for peer in packets.addresses(link.source)]
        if link.broker not in self._attach.containers:
            raise FaultError(f"the plan names no container of broker {link.broker} under `attach.containers`")
        toxiproxy = self._attached.toxiproxy
        upstream = toxiproxy.upstreams().get(link.proxy) if toxiproxy and self.takes_toxics(link) else None
        port = packets.client_port(link.broker, self._attached.client_addresses[link.broker], upstream)
        return [Leg(None, port, inward)]

    @in_thread
    def isolate(self, fault: str, broker: BrokerId) -> None:
        everything = [Leg(None, None, inward=True), Leg(None, None, inward=False)]
        self._attached.packets.change(fault, {broker: everything}, PacketChange("drop", 1.0))

    def _address_of(self, proxy: Proxy) -> Address:
        return self._attached.client_addresses[BrokerId(proxy.node)]

    def _describe_quorum(self) -> Quorum:
        return self._attached.admin.quorum()

    async def reassign(self, assignment: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        self._require_named(assignment)
        await super().reassign(assignment)

    async def cancel_reassign(self, partitions: Iterable[TopicPartition]) -> None:
        self._require_named(partitions := list(partitions))
        await super().cancel_reassign(partitions)

    async def elect_preferred(self, partitions: Iterable[TopicPartition]) -> None:
        self._require_named(partitions := list(partitions))
        await super().elect_preferred(partitions)

    async def elect_unclean(self, partitions: Iterable[TopicPartition]) -> None:
        self._require_created(partitions := list(partitions), "elect an unclean leader, which loses its records")
        await super().elect_unclean(partitions)

    async def alter_config(self, of: Resource, name: str, changes: Mapping[str, str | None]) -> None:
        if of == "topic":
            self._require_named([(name, 0)])
        if of == "broker":
            self._require_attached_broker(name)
        if of == "client" and name not in self._attached.descriptor.clients:
            raise FaultError(f"the client {name} does not belong to the run, so faults must not change its quotas")
        await super().alter_config(of, name, changes)

    async def create_topic(self, topic: str, replicas: Mapping[int, Sequence[int]], config: Mapping[str, str]) -> str:
        """Create again, under the same name, a topic that the run created and that was deleted."""
        self._require_created([(topic, 0)], "create it")
        topic_id = await super().create_topic(topic, replicas, config)
        self._attached.created(topic, topic_id)
        return topic_id

    async def delete_topic(self, topic: str) -> None:
        self._require_created([(topic, 0)], "delete it")
        await super().delete_topic(topic)

    async def add_partitions(self, topic: str, partitions: int) -> None:
        self._require_named([(topic, 0)])
        await super().add_partitions(topic, partitions)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        self._require_created(before, "delete its records")
        await super().delete_records(before)

    async def close_fetch_session(self, broker: BrokerId, session: int) -> int:
        self._require_attached_broker(str(broker))
        return await super().close_fetch_session(broker, session)

    def _require_named(self, partitions: Iterable[TopicPartition]) -> None:
        for topic, _ in partitions:
            if topic not in self._attached.descriptor.topics:
                raise FaultError(f"the topic {topic} is not in the plan, so faults must not change the topic")

    def _require_created(self, partitions: Iterable[TopicPartition], action: str) -> None:
        for topic, _ in partitions:
            if topic not in self._attached.descriptor.created:
                raise FaultError(
                    f"this run did not create the topic {topic}, so its faults must not {action}; name the topic under "
                    "`attach.create`"
                )

    def _require_attached_broker(self, broker: str) -> None:
        if not broker.isdecimal() or int(broker) not in self._attached.descriptor.attach.brokers:
            owner = f"broker {broker}" if broker else "the default of all brokers"
            raise FaultError(
                f"{owner} is not named under `attach.brokers` in the plan, so faults must not change its settings"
            )


class ClusterWorld(
    NodesWorld,
    UpgradesWorld,
    MachineWorld,
    ClocksWorld,
    GcWorld,
    LinksWorld,
    KafkaWorld,
    ClientsWorld,
    RulesWorld,
    FloodsWorld,
):
    """All operations of faults on a launched cluster; ``clients`` are by default those of the run that launched it."""

    def __init__(self, cluster: Cluster, clients: ClientProcesses | None = None) -> None:
        self._cluster = cluster
        self._clients = clients or ClientProcesses(cluster.run_id)
        LinksWorld.__init__(self)
        FloodsWorld.__init__(self)


class KubernetesWorld(
    PodsWorld,
    NodesWorld,
    LinksWorld,
    KafkaWorld,
    ClientsWorld,
    RulesWorld,
    FloodsWorld,
):
    """Operations of faults on a cluster that was launched on Kubernetes; `plan check` refuses faults with others."""

    def __init__(self, cluster: KubernetesCluster, clients: ClientProcesses | None = None) -> None:
        self._cluster: KubernetesCluster = cluster
        self._clients = clients or ClientProcesses(cluster.run_id)
        LinksWorld.__init__(self)
        FloodsWorld.__init__(self)

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, None]]:
        return _refused(verb, "on a cluster on Kubernetes")

    def has_hosts(self) -> bool:
        return True  # a pod outlives the process of its node

    def has_pods(self) -> bool:
        return True

    def pods_return(self) -> bool:
        return False

    @in_thread
    def delete_pod(self, broker: BrokerId, grace_ms: int | None, *, evict: bool = False) -> int:
        grace_s = None if grace_ms is None else math.ceil(grace_ms / 1000)
        return 1000 * self._cluster.pods[broker].delete_pod(grace_s, evict=evict)

    def _api(self) -> Api:
        return self._cluster.api

    def _pods(self) -> Mapping[BrokerId, PodNode]:
        return self._cluster.pods

    @in_thread
    def limits(self, broker: BrokerId) -> Limits:
        """Return the limits in the specification of a node's pod."""
        pod = self._cluster.pods[broker].pod()
        limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {}) if pod else {}
        return Limits(
            quantity(limits["cpu"]) if "cpu" in limits else None, int(quantity(limits.get("memory", "0"))) or None
        )

    @in_thread
    def log_dirs(self, broker: BrokerId) -> Sequence[LogDir]:
        node = self._cluster.pods[broker]
        return [log_dir_in(node.run(log_dir_script(path)), path) for path in self._cluster.spec.log_dirs(node.node)]

    def has_clocks(self) -> bool:
        return False

    def has_gc_pauses(self) -> bool:
        return False


def _refused(verb: str, where: str) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return an operation of `World` that raises FaultError; raise AttributeError for another name."""
    if verb.startswith("_") or not hasattr(World, verb):
        raise AttributeError(verb)

    async def refused(*_: object, **__: object) -> None:
        raise FaultError(f"the fault's operation `{verb}` is impossible {where}")

    return refused


def world_of(cluster: Target, clients: ClientProcesses | None = None) -> World:
    """Return the operations of faults on a cluster; ``clients`` are by default those of the run ``cluster.run_id``."""
    if isinstance(cluster, AttachedCluster):
        return cast("World", AttachedWorld(cluster, clients or ClientProcesses(cluster.run_id)))
    if isinstance(cluster, KubernetesCluster):
        return cast("World", KubernetesWorld(cluster, clients))
    return ClusterWorld(cast("Cluster", cluster), clients)

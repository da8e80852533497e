"""The topology as names and ports: racks, nodes, listeners, proxies. Pure; nothing here touches Docker.

::

    client in rack a ──▶ client_a-k2 ─────────┐
    rack a's network ──▶ replication_a-k2 ────┼──▶ b2 (broker 2, attached to rack b's network only)
                         controller_a-k2 ─────┘
    harness ───────────▶ admin-k2 and, to a voter, quorum-k2, which no fault touches

Rules kept here (`design.md` 4):

* A node answers to ``b<id>`` on its own rack's network, which only Toxiproxy dials, and to ``k<id>`` everywhere: that
  is Toxiproxy in every other rack, and the node itself at home. Brokers that share a rack therefore have no link.
* A proxy is one (source rack, node, listener). Replication and controller proxies listen on Toxiproxy's address in the
  source rack, so that the source is known; client and admin proxies listen everywhere and are published on loopback.
* A broker has one client listener per client rack: Kafka answers Metadata for the listener that a request came in on.

What a cluster is: its Kafka version, its nodes, the timings they run with, and every node's configuration.

A recovery time means nothing without the timings it was measured under, so they come as a named profile that is stored
with every result. The figures of ``fast`` come from Kafka's defaults divided until a fault plays out in seconds.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast

from aftershock.faults.plan.cluster import Cluster as ClusterPlan
from aftershock.faults.plan.cluster import Disks
from aftershock.harness.cluster.engine import DEFAULT_KAFKA

Channel = Literal["client", "replication", "controller", "admin"]

TOXIPROXY_API_PORT = 8474
ADMIN_PORT = 9400
_CLIENT_PORT = 9100  # + the client rack's number, counted from 1
_REPLICATION_PORT = 9200  # + the node's id
_CONTROLLER_PORT = 9300  # + the node's id
_CLIENT_PROXY_PORT = 20000  # + 100 x the client rack's number + the node's id
_ADMIN_PROXY_PORT = 29000  # + the node's id
_QUORUM_PROXY_PORT = 29100  # + the node's id


@dataclass(frozen=True)
class Node:
    """One Kafka node: where it stands and what it does. Controllers of an isolated quorum have ids from 11."""

    id: int
    rack: str
    broker: bool
    controller: bool

    @property
    def name(self) -> str:
        """The host name by which other nodes reach it."""
        return f"k{self.id}"

    @property
    def home_name(self) -> str:
        """The name on its own rack's network that only Toxiproxy dials."""
        return f"b{self.id}"


@dataclass(frozen=True)
class Proxy:
    """One Toxiproxy proxy: ``listen_rack`` is None where it listens on every address."""

    name: str
    channel: Channel
    source_rack: str | None
    node: int
    listen_rack: str | None
    listen_port: int
    upstream: str


@dataclass(frozen=True)
class Topology:
    """Racks in order, and the nodes in them."""

    racks: tuple[str, ...]
    nodes: tuple[Node, ...]

    @property
    def brokers(self) -> tuple[Node, ...]:
        """The nodes that store topics."""
        return tuple(node for node in self.nodes if node.broker)

    @property
    def controllers(self) -> tuple[Node, ...]:
        """The voters of the metadata quorum."""
        return tuple(node for node in self.nodes if node.controller)

    def client_port(self, rack: str) -> int:
        """The port inside every broker on which clients of ``rack`` are served."""
        return _CLIENT_PORT + self._number(rack)

    def client_proxy_port(self, rack: str, node: int) -> int:
        """Toxiproxy's port, inside its container, for clients of ``rack`` to ``node``."""
        return _CLIENT_PROXY_PORT + 100 * self._number(rack) + node

    def proxies(self) -> tuple[Proxy, ...]:
        """Every proxy of the cluster."""
        return tuple(proxy for node in self.nodes for proxy in self._proxies_to(node))

    def foreign_names(self, rack: str) -> list[str]:
        """The names to which Toxiproxy answers on ``rack``'s network: all nodes of the other racks."""
        return [node.name for node in self.nodes if node.rack != rack]

    def published_ports(self) -> list[int]:
        """Toxiproxy's ports that the host must reach, all on loopback."""
        return [TOXIPROXY_API_PORT, *(p.listen_port for p in self.proxies() if p.listen_rack is None)]

    def _number(self, rack: str) -> int:
        return self.racks.index(rack) + 1

    def _proxies_to(self, node: Node) -> Iterator[Proxy]:
        if node.broker:
            for rack in self.racks:
                port = self.client_proxy_port(rack, node.id)
                yield Proxy(
                    client_proxy(rack, node.id),
                    "client",
                    rack,
                    node.id,
                    None,
                    port,
                    f"{node.home_name}:{self.client_port(rack)}",
                )
            upstream = f"{node.home_name}:{ADMIN_PORT}"
            yield Proxy(f"admin-{node.name}", "admin", None, node.id, None, admin_proxy_port(node.id), upstream)
        if node.controller:
            upstream = f"{node.home_name}:{controller_port(node.id)}"
            yield Proxy(f"quorum-{node.name}", "admin", None, node.id, None, quorum_proxy_port(node.id), upstream)
        for rack in self.racks:
            if rack != node.rack:
                yield from self._proxies_between(rack, node)

    def _proxies_between(self, rack: str, node: Node) -> Iterator[Proxy]:
        ports: Mapping[Channel, int] = {}
        if node.broker:
            ports = {**ports, "replication": replication_port(node.id)}
        if node.controller:
            ports = {**ports, "controller": controller_port(node.id)}
        for channel, port in ports.items():
            upstream = f"{node.home_name}:{port}"
            yield Proxy(f"{channel}_{rack}-{node.name}", channel, rack, node.id, rack, port, upstream)


def replication_port(node: int) -> int:
    """The port of a broker's replication listener: its own, since Toxiproxy answers for all brokers of other racks."""
    return _REPLICATION_PORT + node


def controller_port(node: int) -> int:
    """The port of a voter's controller listener."""
    return _CONTROLLER_PORT + node


def client_proxy(rack: str, node: int) -> str:
    """The name of the proxy for clients of ``rack`` to ``node``."""
    return f"client_{rack}-k{node}"


def admin_proxy_port(node: int) -> int:
    """Toxiproxy's port, inside its container, for the harness's own requests to ``node``."""
    return _ADMIN_PROXY_PORT + node


def quorum_proxy_port(node: int) -> int:
    """Toxiproxy's port, inside its container, for what the harness asks of a voter itself."""
    return _QUORUM_PROXY_PORT + node


def node_of(proxy: str) -> int:
    """The node that a proxy leads to, by the proxy's name."""
    return int(proxy.rpartition("-k")[2])


def topology(racks: Mapping[str, int], controllers: int) -> Topology:
    """Lay out brokers 1…n rack by rack; ``controllers`` of them isolated (ids 11…), or 0 for combined nodes.

    With combined nodes up to five vote, spread over the racks first: an even or larger quorum is slower and no safer.
    """
    homes = [rack for rack, count in racks.items() for _ in range(count)]
    if controllers:
        names = list(racks)
        voters = tuple(Node(11 + i, names[i % len(names)], broker=False, controller=True) for i in range(controllers))
        brokers = tuple(Node(i, rack, broker=True, controller=False) for i, rack in enumerate(homes, 1))
        return Topology(tuple(racks), brokers + voters)
    voting = _combined_voters(homes)
    nodes = tuple(Node(i, rack, broker=True, controller=i in voting) for i, rack in enumerate(homes, 1))
    return Topology(tuple(racks), nodes)


def _combined_voters(homes: list[str]) -> frozenset[int]:
    """The odd number, at most five, of combined nodes that vote: first one of each rack, then a second of each."""
    seen: dict[str, int] = {}
    order: list[tuple[int, int]] = []
    for node, rack in enumerate(homes, 1):
        order.append((seen.get(rack, 0), node))
        seen[rack] = seen.get(rack, 0) + 1
    count = min(5, len(homes) if len(homes) % 2 else max(1, len(homes) - 1))
    return frozenset(node for _, node in sorted(order)[:count])


LOG_DIR = "/var/lib/kafka/data"
DISK = "/var/lib/kafka/disk"  # + its number, counted from 1
_OWN_CLASS = "aftershock."  # how the names of our classes begin
_OWN_CLASSES = "/opt/aftershock"  # where the Java client's image has them


@dataclass(frozen=True)
class Profile:
    """Broker timings and JVM flags that belong together."""

    name: str
    broker: Mapping[str, str]
    jvm_flags: str
    heap_flags: str


FAST = Profile(
    "fast",
    {
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "replica.lag.time.max.ms": "5000",
        "replica.fetch.wait.max.ms": "100",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "5",
        "transaction.state.log.num.partitions": "5",
        "share.coordinator.state.topic.num.partitions": "5",
        # Kafka's 128 MiB for the log cleaner would fill half of this heap
        "log.cleaner.dedupe.buffer.size": "16777216",
    },
    # on a small machine C2 is the loudest fault of all: p50 57 ms against 16 ms after half a minute, measured
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "-Xms192m -Xmx256m",
)
PRODUCTION = Profile("production", {}, "-XX:+UseG1GC", "-Xms512m -Xmx512m")
PROFILES = {profile.name: profile for profile in (FAST, PRODUCTION)}


@dataclass(frozen=True)
class ClusterSpec:
    """Everything needed to launch a cluster, and nothing that changes from one launch to the next.

    ``racks``: brokers by rack, in the order that numbers them; ``controllers``: how many are isolated.
    ``brokers``: what single brokers are set to, over ``config``; an empty value of either leaves Kafka's own.
    """

    kafka: str
    racks: Mapping[str, int]
    controllers: int
    profile: Profile
    config: Mapping[str, str]
    disks: Disks | None = None
    wire_proxy: bool = False
    brokers: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @cached_property
    def topology(self) -> Topology:
        """Its racks and nodes."""
        return topology(self.racks, self.controllers)

    @classmethod
    def of(cls, plan: ClusterPlan, kafka: str | None = None) -> "ClusterSpec":
        """The plan's cluster, with ``kafka`` (a version) in place of the plan's own if given."""
        version = kafka or (DEFAULT_KAFKA if plan.kafka == "default" else plan.kafka)
        profile, config = PROFILES[plan.profile], dict(plan.config)
        brokers, racks = dict(plan.brokers or {}), dict(plan.racks)
        return cls(version, racks, plan.controllers, profile, config, plan.disks, plan.wire_proxy, brokers)

    def as_plan(self) -> ClusterPlan:
        """The cluster as a plan says it: the reverse of ``of``."""
        return ClusterPlan(
            kafka=self.kafka,
            racks=dict(self.racks),
            profile=cast("Any", self.profile.name),
            controllers=cast("Any", self.controllers),
            config=dict(self.config),
            disks=self.disks,
            wire_proxy=self.wire_proxy,
            brokers={broker: dict(config) for broker, config in self.brokers.items()} or None,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; equal for specifications that one cluster can serve. The order of racks is part of it."""
        racks = [[rack, count] for rack, count in self.racks.items()]
        named = {"kafka": self.kafka, "racks": racks, "controllers": self.controllers, "profile": self.profile.name}
        disks = {"disks": self.disks.model_dump()} if self.disks else {}
        wire_proxy = {"wire_proxy": True} if self.wire_proxy else {}
        of_brokers = {str(broker): dict(sorted(config.items())) for broker, config in sorted(self.brokers.items())}
        brokers = {"brokers": of_brokers} if of_brokers else {}
        return {**named, **disks, **wire_proxy, **brokers, "config": dict(sorted(self.config.items()))}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "ClusterSpec":
        """The reverse of ``to_json``. KeyError, TypeError or ValueError for what isn't one."""
        racks, profile = dict(document["racks"]), PROFILES[document["profile"]]
        disks = Disks.model_validate(document["disks"]) if "disks" in document else None
        config, wire_proxy = dict(document["config"]), bool(document.get("wire_proxy"))
        brokers = {int(broker): dict(settings) for broker, settings in document.get("brokers", {}).items()}
        return cls(document["kafka"], racks, document["controllers"], profile, config, disks, wire_proxy, brokers)

    @property
    def own_classes(self) -> bool:
        """Whether nodes are set to a class of ours, so that they need the image that has them."""
        settings = (self.config, *self.brokers.values())
        return any(value.startswith(_OWN_CLASS) for each in settings for value in each.values())

    def log_dirs(self, node: Node) -> tuple[str, ...]:
        """Where a node keeps its topics; the metadata log is in ``LOG_DIR`` whatever these are."""
        own = range(1, self.disks.count + 1) if self.disks and node.broker else ()
        return tuple(f"{DISK}{number}" for number in own) or (LOG_DIR,)

    def environment(self, node: Node, cluster_id: str, advertised: Mapping[str, str]) -> dict[str, str]:
        """The container's environment, by the official image's contract (`KAFKA_*` become properties).

        Args:
            node: the node that will run with it.
            cluster_id: the same for all nodes of the cluster.
            advertised: ``host:port`` by listener name, for the listeners that are dialled through the host.
        """
        environment = {_variable(key): value for key, value in self._properties(node, advertised).items()}
        environment["CLUSTER_ID"] = cluster_id
        environment["KAFKA_HEAP_OPTS"] = self.profile.heap_flags
        environment["KAFKA_JVM_PERFORMANCE_OPTS"] = self.profile.jvm_flags
        if self.own_classes:
            environment["CLASSPATH"] = _OWN_CLASSES
        return environment

    def _properties(self, node: Node, advertised: Mapping[str, str]) -> dict[str, str]:
        voters = ",".join(f"{v.id}@{v.name}:{controller_port(v.id)}" for v in self.topology.controllers)
        listeners = self._listeners(node)
        roles = [role for role, plays in (("broker", node.broker), ("controller", node.controller)) if plays]
        properties = {
            "node.id": str(node.id),
            "process.roles": ",".join(roles),
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(f"{name}://:{port}" for name, port in listeners.items()),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in {**listeners, "CONTROLLER": 0}),
            "log.dirs": ",".join(self.log_dirs(node)),
            "metadata.log.dir": LOG_DIR,
            # an election nobody asked for would be a fault nobody planned; it is the controller who would hold it
            "auto.leader.rebalance.enable": "false",
            **self.profile.broker,
        }
        if node.broker:
            properties |= self._broker_properties(node, advertised)
        properties |= {**self.config, **self.brokers.get(node.id, {})}
        return {key: value for key, value in properties.items() if value}

    def _listeners(self, node: Node) -> dict[str, int]:
        listeners = {}
        if node.broker:
            listeners = {client_listener(rack): self.topology.client_port(rack) for rack in self.topology.racks}
            listeners |= {"BROKER": replication_port(node.id), "ADMIN": ADMIN_PORT}
        if node.controller:
            listeners["CONTROLLER"] = controller_port(node.id)
        return listeners

    def _broker_properties(self, node: Node, advertised: Mapping[str, str]) -> dict[str, str]:
        addresses = {**advertised, "BROKER": f"{node.name}:{replication_port(node.id)}"}
        replicas = str(min(3, len(self.topology.brokers)))
        in_sync = str(min(2, len(self.topology.brokers)))
        return {
            "broker.rack": node.rack,
            "advertised.listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
            "inter.broker.listener.name": "BROKER",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "auto.create.topics.enable": "false",
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
        }


def client_listener(rack: str) -> str:
    """The listener that serves clients of ``rack``."""
    return f"CLIENT_{rack.upper()}"


def cluster_id_of(run_id: str) -> str:
    """A Kafka cluster id (22 characters of URL-safe base64, 16 bytes) that belongs to this run."""
    digest = hashlib.sha256(run_id.encode()).digest()[:16]
    # an id that starts with "-" would be taken for an option by Kafka's storage tool
    return base64.urlsafe_b64encode(b"\x40" + digest[1:]).decode().rstrip("=")


def _variable(key: str) -> str:
    """The variable that becomes property ``key`` (KafkaDockerWrapper: ``__`` is ``_``, ``___`` is ``-``)."""
    return "KAFKA_" + key.replace("_", "__").replace("-", "___").replace(".", "_").upper()

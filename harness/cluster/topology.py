"""Topology (racks, nodes, listeners, proxies) and specification of a Kafka cluster.

Broker 2 in rack b has the host name ``b2`` on rack b's network, and is reached from elsewhere through Toxiproxy.

* Clients in rack a reach broker 2 through the proxy ``client_a-k2``.
* Nodes in rack a reach broker 2 through the proxies ``replication_a-k2`` and ``controller_a-k2``.
* The harness reaches broker 2 through the proxies ``admin-k2`` and, for a voter, ``quorum-k2``, which no fault touches.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast

from aftershock.errors import ClusterError
from aftershock.faults.sections.broker_settings import setting_refusal
from aftershock.faults.sections.cluster import BlockDevice, Disks, Kubernetes
from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.faults.targets.values import BrokerId

Channel = Literal["client", "replication", "controller", "admin"]

TOXIPROXY_API_PORT = 8474
# ports of a node's listeners; replication ports differ by broker, as Toxiproxy has the names of all remote brokers
_CLIENT_PORT = 9100  # + the client rack's number, counted from 1
_REPLICATION_PORT = 9200  # + the node's id
_CONTROLLER_PORT = 9300  # + the node's id
ADMIN_PORT = 9400
JMX_PORT = 9999  # within the node's container
# ports of Toxiproxy inside its container
_CLIENT_PROXY_PORT = 20000  # + 100 x the client rack's number + the node's id
ADMIN_PROXY_PORT = 29000  # + the node's id; for the harness's requests to brokers
QUORUM_PROXY_PORT = 29100  # + the node's id; for the harness's requests to voters


@dataclass(frozen=True)
class Node:
    """A Kafka node, its rack and its roles; a controller that is not a broker has an id from 11 on."""

    id: int
    rack: str
    broker: bool
    controller: bool

    @property
    def name(self) -> str:
        """Host name of the node, which resolves to Toxiproxy in other racks, and to the node in its own rack.

        Brokers of the same rack reach each other without Toxiproxy, so faults can't break a link between them.
        """
        return f"k{self.id}"

    @property
    def home_name(self) -> str:
        """Host name by which Toxiproxy reaches the node, on the network of the node's rack."""
        return f"b{self.id}"

    @property
    def inner_port(self) -> int:
        """Port at which the node serves the cluster's other nodes."""
        return _REPLICATION_PORT + self.id if self.broker else self.controller_port

    @property
    def controller_port(self) -> int:
        return _CONTROLLER_PORT + self.id


@dataclass(frozen=True)
class Proxy:
    """A Toxiproxy proxy for one source rack, node and listener.

    A proxy for replication or controller traffic listens only on the network of ``listen_rack``. A proxy for clients or
    the harness has no ``listen_rack``, and is reached through the host's loopback.
    """

    name: str
    channel: Channel
    source_rack: str | None
    node: int
    listen_rack: str | None
    listen_port: int
    upstream: str


@dataclass(frozen=True)
class Topology:
    racks: tuple[str, ...]
    nodes: tuple[Node, ...]

    @property
    def brokers(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.broker)

    @property
    def broker_ids(self) -> list[BrokerId]:
        return [BrokerId(node.id) for node in self.brokers]

    @property
    def controllers(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.controller)

    def client_port(self, rack: str) -> int:
        """Return the port of the brokers' listener for clients of ``rack``."""
        return _CLIENT_PORT + self._rack_number(rack)

    def client_proxy_port(self, rack: str, node: int) -> int:
        """Return the port inside Toxiproxy's container by which clients of ``rack`` reach ``node``."""
        return _CLIENT_PROXY_PORT + 100 * self._rack_number(rack) + node

    def proxies(self) -> tuple[Proxy, ...]:
        return tuple(proxy for node in self.nodes for proxy in self._proxies_to(node))

    def _proxies_to(self, node: Node) -> Iterator[Proxy]:
        target = node.home_name
        ports: dict[Channel, int] = {}
        if node.broker:
            for rack in self.racks:
                port, upstream = self.client_proxy_port(rack, node.id), f"{target}:{self.client_port(rack)}"
                yield Proxy(client_proxy(rack, node.id), "client", rack, node.id, None, port, upstream)
            port, upstream = ADMIN_PROXY_PORT + node.id, f"{target}:{ADMIN_PORT}"
            yield Proxy(f"admin-{node.name}", "admin", None, node.id, None, port, upstream)
            ports["replication"] = _REPLICATION_PORT + node.id
        if node.controller:
            port, upstream = QUORUM_PROXY_PORT + node.id, f"{target}:{_CONTROLLER_PORT + node.id}"
            yield Proxy(f"quorum-{node.name}", "admin", None, node.id, None, port, upstream)
            ports["controller"] = _CONTROLLER_PORT + node.id
        for rack in self.racks:
            for channel, port in ports.items() if rack != node.rack else ():
                name, upstream = f"{channel}_{rack}-{node.name}", f"{target}:{port}"
                yield Proxy(name, channel, rack, node.id, rack, port, upstream)

    def foreign_names(self, rack: str) -> list[str]:
        """Return the host names of nodes in other racks, which resolve to Toxiproxy on the network of ``rack``."""
        return [node.name for node in self.nodes if node.rack != rack]

    def published_ports(self) -> list[int]:
        """Return the ports of Toxiproxy that its container publishes on the host's loopback interface."""
        return [TOXIPROXY_API_PORT, *(p.listen_port for p in self.proxies() if p.listen_rack is None)]

    def _rack_number(self, rack: str) -> int:
        return self.racks.index(rack) + 1


def client_proxy(rack: str, node: int) -> str:
    return f"client_{rack}-k{node}"


def node_of(proxy: str) -> int:
    """Return the id of the node behind a proxy, parsed from the proxy's name."""
    return int(proxy.rpartition("-k")[2])


def topology(racks: Mapping[str, int], controllers: int) -> Topology:
    """Return a topology with the given number of brokers in each rack and of controllers that are not brokers.

    Without such controllers, an odd number of up to five brokers, spread over the racks, are also controllers, as an
    even or larger quorum is slower and no safer.
    """
    broker_racks = [rack for rack, count in racks.items() for _ in range(count)]
    if controllers:
        names = list(racks)
        voters = tuple(Node(11 + i, names[i % len(names)], broker=False, controller=True) for i in range(controllers))
        brokers = tuple(Node(i, rack, broker=True, controller=False) for i, rack in enumerate(broker_racks, 1))
        return Topology(tuple(racks), brokers + voters)
    # one combined node of each rack votes first, then a second of each
    ranked = sorted((broker_racks[:i].count(rack), i + 1) for i, rack in enumerate(broker_racks))
    count = len(broker_racks)
    voter_count = min(5, count if count % 2 else max(1, count - 1))
    combined_voters = {node for _, node in ranked[:voter_count]}
    nodes = tuple(Node(i, rack, broker=True, controller=i in combined_voters) for i, rack in enumerate(broker_racks, 1))
    return Topology(tuple(racks), nodes)


LOG_DIR = "/var/lib/kafka/data"
_BESIDE_HEAP = 1 << 30
"""Bytes of a node's container beside its heap; the kernel killed a broker that needed 780 MiB for 1000 partitions."""
DISK = "/var/lib/kafka/disk"  # + its number, counted from 1


@dataclass(frozen=True)
class Profile:
    """Timing settings and JVM flags of brokers, stored with each result because recovery times depend on them."""

    name: str
    broker: Mapping[str, str]
    jvm_flags: str
    heap_min: int
    heap_max: int

    @property
    def heap_flags(self) -> str:
        return f"-Xms{self.heap_min >> 20}m -Xmx{self.heap_max >> 20}m"


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
    # on a small machine the C2 compiler distorts latency most: p50 of 57 ms instead of 16 ms after 30 s, measured
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    192 << 20,
    256 << 20,
)
PRODUCTION = Profile("production", {}, "-XX:+UseG1GC", 512 << 20, 512 << 20)
PROFILES = {profile.name: profile for profile in (FAST, PRODUCTION)}


SWITCHES = ("wire_proxy", "clocks", "packets", "hosts", "gc_pauses", "jmx")
"""Parts of a cluster that a specification has or not, by the same names as in a plan."""


@dataclass(frozen=True)
class ClusterSpec:
    """Specification of a Kafka cluster, from which equal clusters can be launched.

    ``racks`` has the number of brokers in each rack, in the order of the brokers' ids. ``controllers`` is the number of
    controllers that are not brokers. ``config`` has properties of all brokers; an empty value means Kafka's default.
    ``brokers`` has properties of single brokers by broker id, which override the properties in ``config``.
    ``heap_bytes`` is the heap of each node's JVM, None for that of the profile. ``features`` has the levels of Kafka's
    features that differ from those of a new cluster. With ``clocks``, the wall clock of each node can be moved;
    with ``packets``, packets of the links can be changed; with ``hosts``, the address of a node outlives its process;
    with ``gc_pauses``, the JVM of each node can be stopped by garbage collections; with ``jmx``, the metrics of each
    node can be read. ``image`` is an image of the user's, whose name is then ``kafka`` unless its tag has a version.
    With ``kubernetes``, the nodes are pods of that Kubernetes cluster.
    """

    kafka: str
    racks: Mapping[str, int]
    controllers: int
    profile: Profile
    config: Mapping[str, str]
    disks: Disks | None = None
    wire_proxy: bool = False
    brokers: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    heap_bytes: int | None = None
    block_device: BlockDevice | None = None
    features: Mapping[str, int] = field(default_factory=dict)
    clocks: bool = False
    packets: bool = False
    hosts: bool = False
    gc_pauses: bool = False
    jmx: bool = False
    image: str | None = None
    kubernetes: Kubernetes | None = None

    @property
    def memory(self) -> int:
        """Limit of the memory of each node's container in bytes."""
        return (self.heap_bytes or self.profile.heap_max) + _BESIDE_HEAP

    @cached_property
    def topology(self) -> Topology:
        return topology(self.racks, self.controllers)

    @classmethod
    def of(cls, plan: ClusterPlan, kafka: str | None = None) -> "ClusterSpec":
        """Return the specification of the cluster in a plan; ``kafka`` overrides the plan's Kafka version.

        Raises ClusterError if the plan has an image of its own, which no version can override.
        """
        from aftershock.harness.cluster.engine import DEFAULT_KAFKA, version_in  # noqa: PLC0415 -- imports docker

        if kafka and plan.image:
            raise ClusterError(f"the plan's `cluster.image` is {plan.image}: omit --kafka {kafka}")
        planned = version_in(plan.image) if plan.image else DEFAULT_KAFKA if plan.kafka == "default" else plan.kafka
        return cls(
            kafka=kafka or planned,
            image=plan.image,
            racks=dict(plan.racks),
            controllers=plan.controllers,
            profile=PROFILES[plan.profile],
            config=dict(plan.config),
            disks=plan.disks,
            brokers=dict(plan.brokers or {}),
            heap_bytes=plan.heap,
            block_device=plan.block_device,
            features=dict(plan.features or {}),
            kubernetes=plan.kubernetes,
            **{name: bool(getattr(plan, name)) for name in SWITCHES},
        )

    def as_plan(self) -> ClusterPlan:
        return ClusterPlan(
            kafka="default" if self.image else self.kafka,
            image=self.image,
            racks=dict(self.racks),
            profile=cast("Any", self.profile.name),
            controllers=cast("Any", self.controllers),
            config=dict(self.config),
            disks=self.disks,
            block_device=self.block_device,
            features=dict(self.features) or None,
            brokers={broker: dict(config) for broker, config in self.brokers.items()} or None,
            heap=self.heap_bytes,
            kubernetes=self.kubernetes,
            **{name: True for name in SWITCHES if getattr(self, name)},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the specification as JSON data, which are equal for specifications of interchangeable clusters."""
        optional = {
            "image": self.image,
            "disks": self.disks and self.disks.model_dump(),
            "block_device": self.block_device and self.block_device.model_dump(),
            "kubernetes": self.kubernetes
            and self.kubernetes.model_dump(exclude_defaults=True) | {"context": self.kubernetes.context},
            "features": dict(sorted(self.features.items())),
            "brokers": {str(broker): dict(sorted(own.items())) for broker, own in sorted(self.brokers.items())},
            "heap_bytes": self.heap_bytes,
            **{name: getattr(self, name) for name in SWITCHES},
        }
        return {
            "kafka": self.kafka,
            "racks": [[rack, count] for rack, count in self.racks.items()],
            "controllers": self.controllers,
            "profile": self.profile.name,
            "config": dict(sorted(self.config.items())),
            **{name: value for name, value in optional.items() if value},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "ClusterSpec":
        """Parse the output of ``to_json``; raise KeyError, TypeError or ValueError if the document is invalid."""
        block_device, kubernetes = document.get("block_device"), document.get("kubernetes")
        return cls(
            kafka=document["kafka"],
            racks=dict(document["racks"]),
            controllers=document["controllers"],
            profile=PROFILES[document["profile"]],
            config=dict(document["config"]),
            disks=Disks.model_validate(document["disks"]) if "disks" in document else None,
            brokers={int(broker): dict(settings) for broker, settings in document.get("brokers", {}).items()},
            heap_bytes=document.get("heap_bytes"),
            block_device=BlockDevice.model_validate(block_device) if block_device else None,
            features=dict(document.get("features", {})),
            image=document.get("image"),
            kubernetes=Kubernetes.model_validate(kubernetes) if kubernetes else None,
            **{name: bool(document.get(name)) for name in SWITCHES},
        )

    @property
    def own_classes(self) -> bool:
        """True if a broker property names a Java class of Aftershock, which only the Java client's image contains."""
        settings = (self.config, *self.brokers.values())
        return any(value.startswith("aftershock.") for config in settings for value in config.values())

    def log_dirs(self, node: Node) -> tuple[str, ...]:
        """Return a node's log directories for topics; a node's metadata log is always in ``LOG_DIR``."""
        disk_numbers = range(1, self.disks.count + 1) if self.disks and node.broker else ()
        return tuple(f"{DISK}{number}" for number in disk_numbers) or (LOG_DIR,)

    def environment(self, node: Node, cluster_id: str, advertised: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a node's container, whose ``KAFKA_*`` Kafka's official image turns into properties.

        ``advertised`` has the address ``host:port``, by listener name, of the listeners that clients reach through the
        host.
        """
        racks, brokers = self.topology.racks, self.topology.brokers
        voters = ",".join(f"{v.id}@{v.name}:{_CONTROLLER_PORT + v.id}" for v in self.topology.controllers)
        listeners = {}
        if node.broker:
            listeners = {client_listener(rack): self.topology.client_port(rack) for rack in racks}
            listeners |= {"BROKER": _REPLICATION_PORT + node.id, "ADMIN": ADMIN_PORT}
        if node.controller:
            listeners["CONTROLLER"] = _CONTROLLER_PORT + node.id
        properties = {
            "node.id": str(node.id),
            "process.roles": ",".join(role for role in ("broker", "controller") if getattr(node, role)),
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(f"{name}://:{port}" for name, port in listeners.items()),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in {**listeners, "CONTROLLER": 0}),
            "log.dirs": ",".join(self.log_dirs(node)),
            "metadata.log.dir": LOG_DIR,
            # the controller's automatic leader elections would be unplanned faults
            "auto.leader.rebalance.enable": "false",
            **self.profile.broker,
        }
        if node.broker:
            addresses = {**advertised, "BROKER": f"{node.name}:{_REPLICATION_PORT + node.id}"}
            replicas, in_sync = str(min(3, len(brokers))), str(min(2, len(brokers)))
            properties |= {
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
        planned = {**self.config, **self.brokers.get(node.id, {})}
        for key, value in planned.items():
            # the plan's check refuses this too; here it keeps any other name away from the scripts that start the JVM
            if refusal := setting_refusal("node", key, value):
                raise ClusterError(f"a node of the cluster can't be configured: {refusal}")
        properties |= planned
        # KafkaDockerWrapper reads `_` as a dot, `__` as `_`, and `___` as `-`
        environment = {
            "KAFKA_" + key.replace("_", "__").replace("-", "___").replace(".", "_").upper(): value
            for key, value in properties.items()
            if value
        }
        environment["CLUSTER_ID"] = cluster_id
        if self.jmx:
            environment["KAFKA_JMX_PORT"] = str(JMX_PORT)
        heap_flags = f"-Xms{self.heap_bytes} -Xmx{self.heap_bytes}" if self.heap_bytes else self.profile.heap_flags
        environment["KAFKA_HEAP_OPTS"] = heap_flags
        environment["KAFKA_JVM_PERFORMANCE_OPTS"] = self.profile.jvm_flags
        if self.own_classes:
            environment["CLASSPATH"] = "/opt/aftershock"  # the folder of Aftershock's classes in the image
        return environment


def client_listener(rack: str) -> str:
    return f"CLIENT_{rack.upper()}"


def cluster_id_of(run_id: str) -> str:
    """Derive a Kafka cluster id (22 characters of URL-safe base64, 16 bytes) from the run id."""
    digest = hashlib.sha256(run_id.encode()).digest()[:16]
    # Kafka's storage tool would treat an id that starts with "-" as an option
    return base64.urlsafe_b64encode(b"\x40" + digest[1:]).decode().rstrip("=")

"""A cluster that runs, whoever launched it: its nodes, its proxies, its administration.

`attach` needs only the cluster's home and the engine, so any process can heal what another one broke.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException
from docker.models.containers import Container

from aftershock.errors import AdminError, ClusterError
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.faults.wire_proxy.proxy import Way
from aftershock.harness.cluster.node import KafkaNode, Used, addresses, host_ports, in_place, last_log_lines, output
from aftershock.harness.cluster.ownership import NODE, RUN
from aftershock.harness.cluster.proxies import Toxiproxy, WireProxy
from aftershock.harness.cluster.topology import (
    TOXIPROXY_API_PORT,
    ClusterSpec,
    admin_proxy_port,
    client_proxy,
    node_of,
    quorum_proxy_port,
)
from aftershock.harness.kafka.admin import Admin, still_lacking
from aftershock.results.evidence.files import write_whole
from aftershock.workloads.adapters.security import OPEN
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.load.logread import EndOffsets, Topic

LOOPBACK = "127.0.0.1"
_TOPICS_IN_SYNC_S = 30.0
CARD = "cluster.json"
"""Written into the cluster's home when its launch is through; without it there is only what is left of a launch."""


class Cluster:
    """A launched cluster.

    Attributes:
        nodes: the Kafka nodes by id.
        admin: administration through the listeners that no fault touches.
        toxiproxy: the server every link goes through.
        wire_proxy: the proxy between clients and that, where there is one.
        security: none, all its listeners are plain text.
    """

    security = OPEN

    def __init__(
        self, spec: ClusterSpec, run_id: str, proxies: "Crossing", nodes: Mapping[BrokerId, KafkaNode]
    ) -> None:
        self.spec = spec
        self.run_id = run_id
        self.nodes = nodes
        self._crossing = proxies
        self.toxiproxy = proxies.toxiproxy
        self.wire_proxy = proxies.wire_proxy
        self.admin = Admin({BrokerId(n.id): proxies.admin_address(n.id) for n in spec.topology.brokers})

    def close(self) -> None:
        """Close our connections; the cluster stays as it is."""
        self.admin.close()

    def bootstrap(self, rack: str | None) -> str:
        """``bootstrap.servers`` for clients that stand in ``rack``; None: for the harness itself."""
        crossing, brokers = self._crossing, [node.id for node in self.spec.topology.brokers]
        return ",".join(str(crossing.advertised(rack, b) if rack else crossing.admin_address(b)) for b in brokers)

    @property
    def broker_racks(self) -> Mapping[int, str]:
        """The rack of each broker."""
        return {node.id: node.rack for node in self.spec.topology.brokers}

    @property
    def voters(self) -> Sequence[int]:
        """The voters of the metadata quorum."""
        return [node.id for node in self.spec.topology.controllers]

    def kafka_rack(self, rack: str | None) -> str | None:
        """What Kafka calls a rack: the same, since we named it."""
        return rack

    def provide(self, topics: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Topic], EndOffsets]:
        """Create the timeline's topics and wait until they are in sync; by name. Their logs begin with the run."""
        made = {}
        for topic in topics:
            name, partitions = topic["name"], topic["partitions"]
            topic_id = self.admin.create_topic(name, partitions, topic["replication"], topic["config"])
            made[name] = Topic(name, topic_id, partitions)
        self.await_in_sync(_TOPICS_IN_SYNC_S, list(made))
        return made, {}

    def proxy_bytes(self) -> Mapping[tuple[str, BrokerId, str], int]:
        """Bytes that Toxiproxy has received, by proxy, node and stream: of connections that are closed by now."""
        counted = self.toxiproxy.received_bytes().items()
        return {(proxy, BrokerId(node_of(proxy)), stream): count for (proxy, stream), count in counted}

    def used(self) -> Mapping[BrokerId, Used]:
        """See `target.Target`."""
        told = {BrokerId(node.node.id): node.used() for node in self.nodes.values() if node.node.broker}
        return {broker: used for broker, used in told.items() if used is not None}

    def link_address(self, rack: str, inside_port: int) -> Address:
        """Where a replication or controller proxy of ``rack`` listens, reached over the rack's own network."""
        return Address(self._crossing.address_in[rack], inside_port)

    def host_address(self, inside_port: int) -> Address:
        """Where a published port of Toxiproxy is dialled on the host."""
        return self._crossing.host_address(inside_port)

    def voter_addresses(self) -> Mapping[BrokerId, Address]:
        """Where the harness asks each voter of the metadata quorum itself, over a listener that no fault touches."""
        voters = [BrokerId(node.id) for node in self.spec.topology.controllers]
        return {voter: self._crossing.host_address(quorum_proxy_port(voter)) for voter in voters}

    def whereabouts(self) -> dict[str, Any]:
        """Where the cluster is dialled and how its nodes are: what ``cluster status --json`` says of it."""
        racks = self.spec.topology.racks
        return {
            "bootstrap": {"admin": self.bootstrap(None), **{rack: self.bootstrap(rack) for rack in racks}},
            "toxiproxy": self.toxiproxy.url,
            "brokers": [
                {
                    "id": node.node.id,
                    "rack": node.node.rack,
                    "container": node.container.name,
                    "kafka": node.version(),
                    "state": node.state(),
                }
                for node in self.nodes.values()
            ],
        }

    def await_ready(self, deadline_s: float) -> None:
        """Wait until every broker is unfenced, the topic that consumers need is there, and every ISR is full.

        Raises:
            ClusterError: a node died, or it did not happen in time; says what is missing.
        """
        self._await("ready", self._unfenced_lacking, deadline_s)
        self.admin.coordinator("aftershock")
        self.await_in_sync(deadline_s)

    def await_in_sync(self, deadline_s: float, topics: Sequence[str] | None = None) -> None:
        """Wait until every broker is unfenced and every partition's ISR is full: of ``topics``, or of all there are.

        Raises:
            ClusterError: it did not happen in time; says what is missing.
        """
        self._await("in sync", lambda: self._lacking(topics), deadline_s)

    def _unfenced_lacking(self) -> str:
        """Which brokers aren't registered and unfenced yet, as a sentence; empty when all are."""
        try:
            ready = {member.id for member in self.admin.members() if not member.fenced}
        except AdminError as error:
            return str(error)
        missing = sorted(set(self._brokers()) - ready)
        return f"not registered or fenced: {', '.join(f'k{broker}' for broker in missing)}" if missing else ""

    def _lacking(self, topics: Sequence[str] | None) -> str:
        """Every broker is asked itself: what the others say of one that was away may be from before."""
        try:
            views = [self.admin.partitions(topics, seen_by=broker) for broker in self._brokers()]
            return self._unfenced_lacking() or next(filter(None, map(out_of_sync, views)), "")
        except AdminError as error:
            return str(error)

    def _brokers(self) -> list[BrokerId]:
        return [BrokerId(node.id) for node in self.spec.topology.brokers]

    def _raise_if_dead(self) -> None:
        for node in self.nodes.values():
            if node.state() == "exited":
                name, lines = node.node.name, last_log_lines(node.container)
                raise ClusterError(f"{name} (rack {node.node.rack}) died; its last lines:\n{lines}")

    def _await(self, state: str, lacking: Callable[[], str], deadline_s: float) -> None:
        """Wait until nothing is lacking; a dead node ends it at once. The error has the guilty node's last lines."""

        def alive_but_lacking() -> str:
            missing = lacking()
            if missing:
                self._raise_if_dead()
            return missing

        if missing := still_lacking(alive_but_lacking, deadline_s):
            guilty = next((node for node in self.nodes.values() if node.node.name in missing), None)
            lines = f"\nlast lines of {guilty.node.name}:\n{last_log_lines(guilty.container)}" if guilty else ""
            raise ClusterError(f"the cluster is not {state} after {deadline_s:.0f} s: {missing}{lines}")


class Crossing:
    """The Toxiproxy container as it is dialled: its ports on the host, its addresses on the racks' networks."""

    def __init__(self, spec: ClusterSpec, prefix: str, container: Container) -> None:
        self._topology = spec.topology
        self._ports = host_ports(container)
        if TOXIPROXY_API_PORT not in self._ports:
            raise ClusterError(f"{container.name} does not run, and a cluster can't do without; take the cluster down")
        self.wire_proxy: WireProxy | None = None
        own = addresses(container)
        self.address_in = {rack: own[f"{prefix}-{rack}"] for rack in spec.topology.racks}
        self.toxiproxy = Toxiproxy(LOOPBACK, self._ports[TOXIPROXY_API_PORT])

    def host_address(self, inside_port: int) -> Address:
        """Where a published port is dialled on the host."""
        return Address(LOOPBACK, self._ports[inside_port])

    def advertised(self, rack: str, broker: int) -> Address:
        """Where clients of ``rack`` are sent for ``broker``: to the wire proxy, where there is one."""
        if self.wire_proxy is not None:
            return self.wire_proxy.addresses[client_proxy(rack, broker)]
        return self.host_address(self._topology.client_proxy_port(rack, broker))

    def lead_through_wire_proxy(self, home: Path) -> None:
        """Start a wire proxy before every way that clients have into the cluster."""
        ways = [
            Way(proxy.name, proxy.source_rack, proxy.node, self.host_address(proxy.listen_port))
            for proxy in self._topology.proxies()
            if proxy.channel == "client" and proxy.source_rack is not None
        ]
        self.wire_proxy = WireProxy.start(ways, self.host_address(TOXIPROXY_API_PORT), home)

    def admin_address(self, node: int) -> Address:
        """Where the harness itself dials a node."""
        return self.host_address(admin_proxy_port(node))


def prefix_of(run_id: str) -> str:
    """What the names of everything that belongs to a cluster begin with."""
    return f"aftershock-{run_id}"


def attach(client: docker.DockerClient, home: Path) -> Cluster:
    """The cluster whose home this is, by its card and what the engine says.

    Raises:
        ClusterError: there is no such cluster, or not all of it is left.
    """
    run_id, spec = _card(home)
    found = {each.name: each for each in _containers(client, f"{RUN}={run_id}")}
    prefix = prefix_of(run_id)
    missing = [name for name in (f"{prefix}-{part}" for part in _parts(spec)) if in_place(found, name) is None]
    if missing:
        what = "is gone" if not found else f"lacks {', '.join(missing)}"
        raise ClusterError(f"the cluster {run_id} {what}")
    standing = {n: in_place(found, f"{prefix}-{n.name}") for n in spec.topology.nodes}
    nodes = {BrokerId(n.id): KafkaNode(n, container) for n, container in standing.items() if container}
    crossing = Crossing(spec, prefix, found[f"{prefix}-toxiproxy"])
    crossing.wire_proxy = WireProxy.found(home) if spec.wire_proxy else None
    return Cluster(spec, run_id, crossing, nodes)


def write_card(home: Path, run_id: str, spec: ClusterSpec) -> None:
    """Write down that the launch is through, and of what."""
    write_whole(home / CARD, json.dumps({"run_id": run_id, "spec": spec.to_json()}, indent=1) + "\n")


def collect_logs(client: docker.DockerClient, run_id: str, folder: Path, since: datetime | None = None) -> None:
    """Write every node's output (since then) to ``folder``/k<id>.log; a node that is gone is left out.

    The output of a container that another one has replaced comes before that one's.
    """
    folder.mkdir(exist_ok=True)
    texts: dict[str, list[str]] = {}
    for container in sorted(_containers(client, f"{RUN}={run_id}", NODE), key=lambda each: each.attrs["Created"]):
        with suppress(DockerException):
            texts.setdefault(container.labels[NODE], []).append(output(container, since))
    for node, parts in texts.items():
        (folder / f"k{node}.log").write_text("".join(parts), encoding="utf-8")


def _card(home: Path) -> tuple[str, ClusterSpec]:
    try:
        document = json.loads((home / CARD).read_text(encoding="utf-8"))
        return document["run_id"], ClusterSpec.from_json(document["spec"])
    except FileNotFoundError:
        raise ClusterError(f"no cluster was launched from {home} ({CARD} is missing)") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"{home / CARD} can't be read ({error!r}); remove its cluster with: aftershock heal"
        ) from error


def _parts(spec: ClusterSpec) -> list[str]:
    return ["toxiproxy", *(node.name for node in spec.topology.nodes)]


def out_of_sync(partitions: Sequence[PartitionState]) -> str:
    """Which replicas are missing from their ISR, as a sentence; empty when none is."""
    behind = [p for p in partitions if p.leader is None or set(p.isr) != set(p.replicas)]
    shown = ", ".join(f"{p.topic}/{p.partition} (in sync: {sorted(p.isr)} of {sorted(p.replicas)})" for p in behind[:3])
    missing = sorted({broker for p in behind for broker in set(p.replicas) - set(p.isr)})
    return f"{len(behind)} partitions lack replicas {', '.join(f'k{b}' for b in missing)}: {shown}" if behind else ""


def _containers(client: docker.DockerClient, *labels: str) -> list[Container]:
    """Those with all of these labels; one that goes while they are listed is left out."""
    found: list[Container] = client.containers.list(all=True, filters={"label": [*labels]}, ignore_removed=True)
    return found

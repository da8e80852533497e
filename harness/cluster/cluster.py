"""A running Kafka cluster that Aftershock launched, with nodes, proxies and administration."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException
from docker.models.containers import Container

from aftershock.errors import AdminError, ClusterError
from aftershock.faults.targets.values import BrokerId, PartitionState, TopicPartition
from aftershock.faults.wire_proxy.proxy import LOOPBACK
from aftershock.harness.cluster.disks import read_checkpoints, read_metadata_log, run_in_node
from aftershock.harness.cluster.node import (
    ContainerUsage,
    KafkaNode,
    current_container,
    host_ports,
    output,
)
from aftershock.harness.cluster.packets import Leg, Packets
from aftershock.harness.cluster.proxies import LaunchedToxiproxy, WireProxy, client_routes
from aftershock.harness.cluster.topology import (
    ADMIN_PROXY_PORT,
    LOG_DIR,
    QUORUM_PROXY_PORT,
    TOXIPROXY_API_PORT,
    ClusterSpec,
    Proxy,
    client_proxy,
    node_of,
)
from aftershock.harness.kafka.admin import TOPIC, Admin, still_lacking
from aftershock.harness.kafka.leader_history import Checkpoints
from aftershock.harness.kafka.settings import topic_ids
from aftershock.harness.safety.ownership import NODE, RUN
from aftershock.results.evidence.files import write_whole
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.load.logread import EndOffsets, Topic, end_offsets
from aftershock.workloads.load.security import PLAINTEXT_SETTINGS

_TOPICS_IN_SYNC_S = 30.0
_ENDS_S = 30.0
DESCRIPTOR_FILE = "cluster.json"
"""File in a cluster's folder that the launch writes last: without this file, the launch is incomplete."""


class Cluster:
    """A cluster that Aftershock launched; ``admin`` uses listeners that faults never touch."""

    security = PLAINTEXT_SETTINGS

    def __init__(
        self, spec: ClusterSpec, run_id: str, proxy_layer: "ProxyLayer", nodes: Mapping[BrokerId, KafkaNode]
    ) -> None:
        self.spec = spec
        self.run_id = run_id
        self.nodes = nodes
        self._proxy_layer = proxy_layer
        self.toxiproxy = proxy_layer.toxiproxy
        self.wire_proxy = proxy_layer.wire_proxy
        self.packets = proxy_layer.packets
        self.admin = Admin({broker: proxy_layer.admin_address(broker) for broker in spec.topology.broker_ids})

    def close(self) -> None:
        self.admin.close()

    def bootstrap(self, rack: str | None, *, own_addresses: bool = False) -> str:
        proxy_layer, brokers = self._proxy_layer, self.spec.topology.broker_ids
        if own_addresses and rack and proxy_layer.wire_proxy:
            return ",".join(str(proxy_layer.wire_proxy.bootstrap_address(rack, broker)) for broker in brokers)
        return ",".join(str(proxy_layer.advertised(rack, b) if rack else proxy_layer.admin_address(b)) for b in brokers)

    @property
    def broker_racks(self) -> Mapping[int, str]:
        return {node.id: node.rack for node in self.spec.topology.brokers}

    @property
    def voters(self) -> Sequence[int]:
        return [node.id for node in self.spec.topology.controllers]

    def kafka_rack(self, rack: str | None) -> str | None:
        return rack  # launched brokers have the plan's names of racks

    def provide(self, topics: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Topic], EndOffsets]:
        existing = topic_ids(self.admin)  # on a kept cluster, which another run or its user may have filled
        provided, old = {}, []
        for topic in topics:
            name, partitions = topic["name"], topic["partitions"]
            if name in existing:
                refuse_unlike(self.admin, topic)
                old.append(Topic(name, existing[name], partitions))
                provided[name] = old[-1]
                continue
            topic_id = self.admin.create_topic(name, partitions, topic["replication"], topic["config"])
            provided[name] = Topic(name, topic_id, partitions)
        self.await_in_sync(_TOPICS_IN_SYNC_S, list(provided))
        return provided, end_offsets(self.bootstrap(None), old, _ENDS_S) if old else {}

    def proxy_bytes(self) -> Mapping[tuple[str, BrokerId, str], int]:
        """Return the bytes that Toxiproxy received, by proxy, node and stream, without connections that are open."""
        counters = self.toxiproxy.received_bytes().items()
        return {(proxy, BrokerId(node_of(proxy)), stream): count for (proxy, stream), count in counters}

    def usage(self) -> Mapping[BrokerId, ContainerUsage]:
        readings = {BrokerId(node.node.id): node.usage() for node in self.nodes.values() if node.node.broker}
        return {broker: usage for broker, usage in readings.items() if usage is not None}

    def metrics(self) -> Mapping[BrokerId, Mapping[str, float]]:
        """Return the metrics of each broker that is running (``node.METRICS``); the cluster must have ``jmx``."""
        return {BrokerId(node.node.id): node.metrics() for node in self.nodes.values() if node.node.broker}

    def request_cpu_us(self) -> Mapping[BrokerId, int]:
        readings = {BrokerId(node.node.id): node.request_cpu_us() for node in self.nodes.values() if node.node.broker}
        return {broker: used_us for broker, used_us in readings.items() if used_us is not None}

    def metadata_log(self) -> bytes:
        # the active controller has no record that another one would have to give up
        leader = self.admin.quorum().leader
        return read_metadata_log(f"k{leader}", partial(self.run_script, leader))

    def epoch_checkpoints(self) -> Checkpoints:
        def read(node: KafkaNode) -> Mapping[TopicPartition, Mapping[int, int]]:
            with suppress(ClusterError):  # the files of a node that can't be read are missing in the evidence
                run = partial(self.run_script, BrokerId(node.node.id))
                return read_checkpoints(node.node.name, run, self.spec.log_dirs(node.node))
            return {}

        brokers = {broker: node for broker, node in self.nodes.items() if node.node.broker}
        with ThreadPoolExecutor(len(brokers), "checkpoints") as threads:
            return dict(zip(brokers, threads.map(read, brokers.values()), strict=True))

    def run_script(self, node: BrokerId, script: str) -> str:
        """Run a shell script that reads a node's log directories; raise ClusterError if it failed."""
        return run_in_node(self.nodes[node], script, LOG_DIR)

    def link_address(self, rack: str, inside_port: int) -> Address:
        return self._proxy_layer.link_address(rack, inside_port)

    def leg(self, proxy: Proxy, *, inward: bool) -> Leg:
        """Return one direction of a link, where it ends in Toxiproxy's network namespace."""
        address = self._proxy_layer.address_in[proxy.listen_rack] if proxy.listen_rack else None
        return Leg(address, proxy.listen_port, inward)

    def host_address(self, inside_port: int) -> Address:
        return self._proxy_layer.host_address(inside_port)

    def voter_addresses(self) -> Mapping[BrokerId, Address]:
        """Return each quorum voter's address for requests of the harness, which is a proxy that faults never touch."""
        return {BrokerId(voter): self.host_address(QUORUM_PROXY_PORT + voter) for voter in self.voters}

    def keep_line(self, line: Mapping[str, Any]) -> None:
        """Do nothing: a heal removes a launched cluster with all faults in force."""

    def exits(self) -> list[str]:
        """Return a sentence for each node that does not run, with its exit code."""
        return [node.exit_of() for node in self.nodes.values() if node.exited()]

    def describe(self) -> dict[str, Any]:
        racks = self.spec.topology.racks
        return {
            "bootstrap": {"admin": self.bootstrap(None), **{rack: self.bootstrap(rack) for rack in racks}},
            "toxiproxy": self.toxiproxy.url,
            "brokers": [
                {
                    "id": node.node.id,
                    "rack": node.node.rack,
                    "container": node.name,
                    "kafka": node.version(),
                    "state": node.state(),
                }
                for node in self.nodes.values()
            ],
        }

    def await_ready(self, deadline_s: float) -> None:
        """Wait until all brokers are unfenced, ``__consumer_offsets`` exists, and every ISR is full.

        Raises ClusterError if a node died or ``deadline_s`` passed.
        """
        self._await("ready", lambda: not_ready(self), deadline_s)
        self.admin.coordinator("aftershock")
        self.await_in_sync(deadline_s)

    def await_in_sync(self, deadline_s: float, topics: Sequence[str] | None = None) -> None:
        """Wait until all brokers are unfenced and the ISRs of ``topics``, by default of all topics, are full."""

        def not_in_sync() -> str:
            # the metadata of a broker that was down can be outdated
            views = [self.admin.partitions(topics, seen_by=broker) for broker in self.spec.topology.broker_ids]
            return not_ready(self) or next(filter(None, map(out_of_sync, views)), "")

        self._await("in sync", not_in_sync, deadline_s)

    def _await(self, state: str, missing_state: Callable[[], str], deadline_s: float) -> None:
        def checked_state() -> str:
            try:
                missing = missing_state()
            except AdminError as error:
                missing = str(error)
            for node in self.nodes.values() if missing else ():
                if node.exited():
                    raise ClusterError(f"{node.exit_of()}; the last lines of its log:\n{node.last_log_lines()}")
            return missing

        if missing := still_lacking(checked_state, deadline_s):
            failed_node = next((node for node in self.nodes.values() if node.node.name in missing), None)
            lines = ""
            if failed_node:
                lines = f"\nlast log lines of {failed_node.node.name}:\n{failed_node.last_log_lines()}"
            raise ClusterError(f"the cluster is not {state} after {deadline_s:.0f} s: {missing}{lines}")


class ProxyLayer:
    """Addresses of a cluster's Toxiproxy, on the host and on the racks' networks, and of its wire proxy."""

    def __init__(self, spec: ClusterSpec, prefix: str, container: Container) -> None:
        self._topology = spec.topology
        self._ports = host_ports(container)
        if TOXIPROXY_API_PORT not in self._ports:
            raise ClusterError(
                f"the cluster's Toxiproxy container {container.name} does not run; take the cluster down, because no "
                "client can reach the cluster without Toxiproxy"
            )
        self.wire_proxy: WireProxy | None = None
        self.packets = Packets(container.client, prefix)
        networks = container.attrs["NetworkSettings"]["Networks"]
        self.address_in = {rack: str(networks[f"{prefix}-{rack}"]["IPAddress"]) for rack in spec.topology.racks}
        self.toxiproxy = LaunchedToxiproxy(LOOPBACK, self._ports[TOXIPROXY_API_PORT])

    def host_address(self, inside_port: int) -> Address:
        return Address(LOOPBACK, self._ports[inside_port])

    def link_address(self, rack: str, inside_port: int) -> Address:
        return Address(self.address_in[rack], inside_port)

    def advertised(self, rack: str, broker: int) -> Address:
        """Return the address, of the wire proxy or Toxiproxy, that a broker advertises to clients in ``rack``."""
        if self.wire_proxy is not None:
            return self.wire_proxy.addresses[client_proxy(rack, broker)]
        return self.host_address(self._topology.client_proxy_port(rack, broker))

    def add_wire_proxy(self, home: Path) -> None:
        routes = client_routes(self._topology.proxies(), lambda proxy: self.host_address(proxy.listen_port))
        self.wire_proxy = WireProxy.start(routes, self.host_address(TOXIPROXY_API_PORT), home)

    def admin_address(self, node: int) -> Address:
        return self.host_address(ADMIN_PROXY_PORT + node)


def prefix_of(run_id: str) -> str:
    return f"aftershock-{run_id}"


def attach(client: docker.DockerClient, home: Path) -> Cluster:
    """Return the launched cluster whose folder is ``home``; raise ClusterError if containers are missing."""
    try:
        document = json.loads((home / DESCRIPTOR_FILE).read_text(encoding="utf-8"))
        run_id, spec = document["run_id"], ClusterSpec.from_json(document["spec"])
    except FileNotFoundError:
        raise ClusterError(f"no cluster was launched from {home} ({DESCRIPTOR_FILE} is missing)") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"{home / DESCRIPTOR_FILE} can't be read ({error!r}); remove the cluster with: aftershock heal"
        ) from error
    containers = {container.name: container for container in _labelled_containers(client, f"{RUN}={run_id}")}
    prefix = prefix_of(run_id)
    current = {n: current_container(containers, f"{prefix}-{n.name}") for n in spec.topology.nodes}
    nodes = {BrokerId(n.id): KafkaNode(n, container) for n, container in current.items() if container}
    missing = [f"{prefix}-toxiproxy"] if f"{prefix}-toxiproxy" not in containers else []
    missing += [f"{prefix}-{node.name}" for node, container in current.items() if container is None]
    if missing:
        problem = f"lacks the containers {', '.join(missing)}" if containers else "has no containers"
        raise ClusterError(f"the cluster {run_id} {problem}")
    proxy_layer = ProxyLayer(spec, prefix, containers[f"{prefix}-toxiproxy"])
    proxy_layer.wire_proxy = WireProxy.open(home) if spec.wire_proxy else None
    return Cluster(spec, run_id, proxy_layer, nodes)


def write_descriptor(home: Path, run_id: str, spec: ClusterSpec) -> None:
    write_whole(home / DESCRIPTOR_FILE, json.dumps({"run_id": run_id, "spec": spec.to_json()}, indent=1) + "\n")


def collect_logs(client: docker.DockerClient, run_id: str, folder: Path, since: datetime | None = None) -> None:
    """Write the output of each node's containers, from ``since`` on and in order, to ``folder``/k<id>.log."""
    folder.mkdir(exist_ok=True)
    texts: dict[str, list[str]] = {}
    containers = _labelled_containers(client, f"{RUN}={run_id}", NODE)
    for container in sorted(containers, key=lambda item: item.attrs["Created"]):
        with suppress(DockerException):
            texts.setdefault(container.labels[NODE], []).append(output(container, since))
    for node, parts in texts.items():
        write_whole(folder / f"k{node}.log", "".join(parts))


def refuse_unlike(admin: Admin, planned: Mapping[str, Any]) -> None:
    """Raise ClusterError if an existing topic differs from a topic of the plan."""
    name, config = planned["name"], planned["config"]
    states = admin.partitions([name])
    actual = admin.configs(TOPIC, name) if config else {}
    compared: list[tuple[str, object, object]] = [("partitions", planned["partitions"], len(states))]
    compared += [("replication", planned["replication"], len(state.replicas)) for state in states]
    compared += [(key, value, actual.get(key)) for key, value in config.items()]
    for setting, expected, value in compared:
        if expected != value:
            raise ClusterError(
                f"the topic {name} has {setting} {value}, the plan has {expected}: change the topic or the plan"
            )


def not_ready(cluster: Cluster) -> str:
    """Return a sentence that lists brokers that are not registered or are fenced; "" if all brokers are ready."""
    ready = {member.id for member in cluster.admin.members() if not member.fenced}
    missing = [f"k{broker}" for broker in cluster.spec.topology.broker_ids if broker not in ready]
    return f"brokers {', '.join(missing)} are not registered or are fenced" if missing else ""


def out_of_sync(partitions: Sequence[PartitionState]) -> str:
    """Return a sentence that lists partitions without a leader or without a full ISR; "" if all are in sync."""
    incomplete = [p for p in partitions if p.leader is None or set(p.isr) != set(p.replicas)]
    if not incomplete:
        return ""
    missing = sorted({broker for p in incomplete for broker in set(p.replicas) - set(p.isr)})
    lacking = [f"in-sync replicas on {', '.join(f'k{broker}' for broker in missing)}"] if missing else []
    lacking += ["a leader"] if any(p.leader is None for p in incomplete) else []
    states = [
        f"{p.topic}/{p.partition} (in sync: {sorted(p.isr)} of {sorted(p.replicas)}"
        f"{', no leader' if p.leader is None else ''})"
        for p in incomplete[:3]
    ]
    subject = "1 partition lacks" if len(incomplete) == 1 else f"{len(incomplete)} partitions lack"
    return f"{subject} {' or '.join(lacking)}: {', '.join(states)}"


def _labelled_containers(client: docker.DockerClient, *labels: str) -> list[Container]:
    containers: list[Container] = client.containers.list(all=True, filters={"label": [*labels]}, ignore_removed=True)
    return containers

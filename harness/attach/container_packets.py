"""Packets of a user's brokers: rules in the network namespaces of their containers, and nowhere else.

A helper container of ours joins the namespace of a broker's container and changes the firewall there, as in a launched
cluster the helper of Toxiproxy does (``packets.py``). A rule names the client listener's port, or the address of
another broker's container. The namespace of a container ends with its process, and a rule with it; the helper of an
ended namespace is replaced.

The helper is the only object that this module creates. It has the label ``HELPER``, with the id of the run, and not the
label of a run's containers: those are removed at once when the run has died, and then nothing could remove the rules.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock

import docker
from docker.errors import NotFound
from docker.models.containers import Container

from aftershock.errors import ClusterError, FaultError, Log
from aftershock.faults.targets.values import BrokerId, PacketChange, PacketCounts
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import prefix_of
from aftershock.harness.cluster.engine import docker_errors
from aftershock.harness.cluster.node import KafkaNode, host_ports
from aftershock.harness.cluster.packets import TCP_COUNTERS, Leg, Packets, start_helper
from aftershock.workloads.kafka.wire.connection import Address

HELPER = "aftershock.packets"
_NAMESPACE = "aftershock.namespace"
_REFUSED_PORT = 9  # discard (RFC 863), on which no broker listens: a kernel that gets the packet refuses the connection
_DIAL_S = 1


def refusal(container: Container, others: Iterable[Container]) -> str | None:
    """Return why the packets of a container can't be changed without a change to other programs; None if they can."""
    mode = str(container.attrs["HostConfig"]["NetworkMode"])
    if mode == "host":
        return f"{container.name} uses the network of the host, so a rule would hit other programs"
    sharers = [
        str(other.name)
        for other in others
        if other.attrs["HostConfig"]["NetworkMode"] == f"container:{container.id}" and HELPER not in other.labels
    ]
    if mode.startswith("container:") or sharers:
        return f"{container.name} shares its network with {', '.join(sharers) or 'another container'}"
    if not addresses(container):
        return f"{container.name} has no network with an IPv4 address"
    networks = container.attrs["NetworkSettings"]["Networks"].values()
    if any(network.get("GlobalIPv6Address") for network in networks):
        return f"{container.name} has an IPv6 address, and the rules are for IPv4"
    return None


def addresses(container: Container) -> list[str]:
    """Return the IPv4 addresses of a container in Docker's networks."""
    networks = container.attrs["NetworkSettings"]["Networks"].values()
    return sorted(str(network["IPAddress"]) for network in networks if network.get("IPAddress"))


def remove_helpers(client: docker.DockerClient, run_id: str) -> None:
    """Remove the helpers of a run; raise ClusterError if the engine refuses."""
    with docker_errors(ClusterError, f"remove the helper containers of the run {run_id}"):
        for helper in client.containers.list(all=True, filters={"label": f"{HELPER}={run_id}"}, ignore_removed=True):
            with suppress(NotFound):
                helper.remove(force=True, v=True)


class ContainerPackets:
    """Packet rules in the containers ``nodes`` of a user's brokers, on behalf of the run ``run_id``."""

    def __init__(self, run_id: str, nodes: Mapping[BrokerId, KafkaNode]) -> None:
        self._run_id, self._nodes = run_id, nodes
        self._locks = {broker: Lock() for broker in nodes}  # two faults may need the helper of one container at once
        self._changed: dict[str, frozenset[BrokerId]] = {}  # the brokers of each fault that this process injected

    def check(self, log: Log) -> None:
        """Start all helpers; raise ClusterError if a container's packets can't be changed, ImageError without image."""
        client = self._client
        with docker_errors(ClusterError, "look at the networks of the brokers' containers"):
            others = client.containers.list(ignore_removed=True)
        for broker, node in self._nodes.items():
            if reason := refusal(node.container, others):
                raise ClusterError(
                    f"the packets of broker {broker} can't be changed: {reason}; remove the network faults from the "
                    "plan, or give the container an own network"
                )
        engine.tools_image(client, log)
        for broker in self._nodes:
            self._helper(broker)  # not only within the first probe of a link, which has a second

    def client_port(self, broker: BrokerId, address: Address, upstream: str | None) -> int:
        """Return the port of a broker's container on which clients arrive that dial ``address``.

        ``upstream`` is where the user's Toxiproxy leads them, if there is one. Raises FaultError for an unknown port.
        """
        node = self._nodes[broker]
        if upstream is not None:
            return int(upstream.rpartition(":")[2])
        inside = next((port for port, outside in host_ports(node.container).items() if outside == address.port), None)
        if inside is None:
            raise FaultError(
                f"the container {node.container.name} does not publish the port of {address}, which broker {broker} "
                f"advertises, so the packets of its clients are unknown: use `cut` with `broker: {broker}`"
            )
        return inside

    def addresses(self, broker: BrokerId) -> list[str]:
        container = self._nodes[broker].container
        container.reload()
        return addresses(container)

    def change(self, fault: str, legs: Mapping[BrokerId, list[Leg]], change: PacketChange) -> None:
        """Change a random share of the packets on these legs, each at the container of a broker."""
        self._changed[fault] = frozenset(legs)
        for broker, of_broker in legs.items():
            self._rules(broker).change(fault, of_broker, change)

    def remove(self, fault: str) -> None:
        """Remove the rules of a fault from every container of the plan, also those of an interrupted injection."""
        for broker in self._running():
            self._rules(broker).remove(fault)
        self._changed.pop(fault, None)

    def present(self, fault: str) -> bool:
        """Return True if the rules are in all containers that this process gave them; from outside, in any."""
        brokers = self._changed.get(fault)
        running = self._running()
        if brokers is not None:
            return brokers <= {*running} and all(self._rules(broker).present(fault) for broker in brokers)
        return any(self._rules(broker).present(fault) for broker in running)

    def counts(self, fault: str) -> PacketCounts:
        """Return what was counted for a fault's rules; TCP's counters are zeros, as the world reads them by process."""
        total = Counter[str]()
        for broker in self._changed.get(fault, ()):
            counts = self._rules(broker).counts(fault)
            total.update(seen=counts.seen, changed=counts.changed)
        return PacketCounts(total["seen"], total["changed"], dict.fromkeys(TCP_COUNTERS, 0))

    def reaches(self, source: BrokerId, target: BrokerId) -> bool:
        """Return True if the host of a broker answers a packet of another broker's, by refusing a connection."""
        helper = self._helper(source)
        for address in self.addresses(target):
            dial = f": < /dev/tcp/{address}/{_REFUSED_PORT}"
            code, output = helper.exec_run(["timeout", str(_DIAL_S), "bash", "-c", dial])
            if code == 0 or b"refused" in output:
                return True
        return False

    @property
    def _client(self) -> docker.DockerClient:
        return next(iter(self._nodes.values())).container.client

    def _running(self) -> list[BrokerId]:
        """Return the brokers whose containers have a network now; with its process, a container loses its rules."""
        with ThreadPoolExecutor(max_workers=8) as pool:
            states = pool.map(lambda node: node.state(), self._nodes.values())
            return [broker for broker, state in zip(self._nodes, states, strict=True) if state != "exited"]

    def _rules(self, broker: BrokerId) -> Packets:
        self._helper(broker)
        return Packets(self._client, self._prefix(broker))

    def _prefix(self, broker: BrokerId) -> str:
        return f"{prefix_of(self._run_id)}-k{broker}"

    def _helper(self, broker: BrokerId) -> Container:
        """Return the helper in the present network namespace of a broker's container, and start it if needed."""
        container, client = self._nodes[broker].container, self._client
        container.reload()
        namespace = f"{container.id[:12]} {container.attrs['State']['StartedAt']}"
        name = f"{self._prefix(broker)}-packets"
        with self._locks[broker], docker_errors(FaultError, f"start a helper in the network of {container.name}"):
            with suppress(NotFound):
                helper = client.containers.get(name)
                if helper.labels.get(_NAMESPACE) == namespace and helper.status == "running":
                    return helper
                helper.remove(force=True, v=True)
            if reason := refusal(container, client.containers.list(ignore_removed=True)):
                raise FaultError(f"the packets of broker {broker} can't be changed: {reason}")
            labels = {HELPER: self._run_id, _NAMESPACE: namespace}
            image = engine.tools_image(client, lambda _: None).name
            start_helper(client, self._prefix(broker), container, labels, image, offload=True)
            return client.containers.get(name)

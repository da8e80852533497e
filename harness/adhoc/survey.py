"""Survey of a running cluster: what faults can do to it, why the rest is not possible, and the lines for a plan.

A broker's container is found by its published port: the port of the address that the broker advertises, on this host.
A container that publishes the ports of several brokers, or runs Toxiproxy, is a proxy.
"""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aftershock.errors import EngineError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import IN_CONTAINERS, REFUSED_KINDS
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.attached import ClusterDescription, describe_cluster
from aftershock.harness.cluster.node import host_ports
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.load.security import SecuritySettings


@dataclass(frozen=True)
class Survey:
    """A cluster at ``bootstrap``, and the containers of its brokers; ``unseen`` is why containers are unknown."""

    bootstrap: str
    cluster: ClusterDescription
    containers: Mapping[int, str]
    unseen: str = ""

    def lines(self) -> Iterator[str]:
        """Yield the survey as text."""
        yield f"cluster {self.cluster.cluster_id}: {len(self.cluster.brokers)} brokers, asked at {self.bootstrap}"
        for broker in self.cluster.brokers:
            where = f"container {self.containers[broker.id]}" if broker.id in self.containers else "no container found"
            yield f"  broker {broker.id}  {broker.address}  rack {broker.rack or 'unknown'}  {where}"
        if self.unseen:
            yield f"containers were not looked for: {self.unseen}"
        verdicts: dict[tuple[bool, str], list[str]] = {}
        for name, kind in KINDS.items():
            verdicts.setdefault(self._verdict(name, kind), []).append(name)
        for possible, title in ((True, "possible"), (False, "not possible")):
            yield f"{title}:"
            for (is_possible, why), names in verdicts.items():
                if is_possible == possible:
                    yield f"  {', '.join(names)}: {why}"
        yield "for your plan:"
        yield "  cluster:"
        yield "    attach:"
        yield f"      bootstrap: {self.bootstrap}"
        if self.containers:
            yield f"      containers: {{{', '.join(f'{broker}: {name}' for broker, name in self.containers.items())}}}"
        options = [f"--allow-attach {address}" for address in self.bootstrap.split(",")]
        options += [f"--allow-container {name}" for name in self.containers.values()]
        yield f"run it with: aftershock run PLAN {' '.join(options)}"

    def _verdict(self, name: str, kind: type[Fault]) -> tuple[bool, str]:
        if name in IN_CONTAINERS:
            brokers = ", ".join(map(str, self.containers))
            missing = "no broker's container is on this Docker engine; name them under `containers` if they are"
            return (True, f"on the containers of the brokers {brokers}") if brokers else (False, missing)
        if name in REFUSED_KINDS:
            return False, REFUSED_KINDS[name]
        if kind.family == "Kafka" and not kind.needs:
            return True, "on the topics of the plan; on settings of brokers that `brokers` names"
        if kind.family == "client":
            return True, "Aftershock starts the clients"
        if kind.family == "link" and not kind.needs:
            advice = "put Toxiproxy in the way of the advertised listeners, and name it under `toxiproxy` and `proxies`"
            return False, f"{advice} (docs/ATTACH.md)"
        return False, "Aftershock did not start the cluster's processes, disks and networks"


def survey(bootstrap: str) -> Survey:
    """Describe a cluster over plain text, and find its containers. Raises ClusterError if no broker answers."""
    cluster = describe_cluster(bootstrap, SecuritySettings().resolved())
    try:
        running = engine.connect().containers.list()
    except EngineError as error:
        return Survey(bootstrap, cluster, {}, str(error))
    local = {broker.address.port: int(broker.id) for broker in cluster.brokers if _is_here(broker.address)}
    found = {}
    for container in running:
        behind = [local[port] for port in host_ports(container).values() if port in local]
        if len(behind) == 1 and "toxiproxy" not in str(container.attrs["Config"]["Image"]):
            found[behind[0]] = str(container.name)
    return Survey(bootstrap, cluster, dict(sorted(found.items())))


def _is_here(address: Address) -> bool:
    """Return True if an address leads to this host: a socket can be bound to it."""
    try:
        infos = socket.getaddrinfo(address.host, 0, type=socket.SOCK_STREAM)
        with socket.socket(infos[0][0], socket.SOCK_STREAM) as bound:
            bound.bind(infos[0][4])
    except OSError:
        return False
    return True

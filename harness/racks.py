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
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

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

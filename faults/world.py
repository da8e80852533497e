"""What can be done to a cluster: five small protocols, and the plain values they speak of.

Faults know a cluster only by these. A broker in Docker offers all of them; a cluster that was merely attached may offer
fewer, which is why they are apart. Rules: everything that touches the outside is async and bounded in time by whoever
implements it; a failure is a FaultError (or another AftershockError) with a sentence; nothing here keeps state.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NewType, Protocol

BrokerId = NewType("BrokerId", int)
Channel = Literal["client", "replication", "controller"]
Stream = Literal["upstream", "downstream"]
BrokerState = Literal["running", "paused", "exited"]
TopicPartition = tuple[str, int]


@dataclass(frozen=True)
class Link:
    """One way into one broker: from ``source_rack``, on one of its listeners, through one Toxiproxy proxy."""

    proxy: str
    channel: Channel
    source_rack: str
    broker: BrokerId


@dataclass(frozen=True)
class Toxic:
    """One toxic as Toxiproxy knows it.

    ``stream`` is Toxiproxy's: ``upstream`` carries what the source sends to the broker, ``downstream`` what comes back.
    ``attributes`` are Toxiproxy's too (``latency`` in ms for a latency toxic).
    """

    name: str
    type: str
    stream: Stream
    attributes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PartitionState:
    """A partition as the controller sees it now. ``leader`` is None while the partition is offline."""

    topic: str
    partition: int
    leader: BrokerId | None
    leader_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]


class Killable(Protocol):
    """Nodes whose process can be killed or stopped, and started again."""

    async def kill(self, broker: BrokerId) -> None:
        """SIGKILL the node's container; returns when the engine has been told, not when it is dead."""

    async def stop(self, broker: BrokerId) -> None:
        """SIGTERM; returns when the process has ended. FaultError or ClusterError if it had to be killed after all."""

    async def start(self, broker: BrokerId) -> None:
        """Start the same container again; no error if it runs already. Doesn't wait for the broker to register."""


class Pausable(Protocol):
    """Nodes that can be frozen with their sockets open, and thawed."""

    async def pause(self, broker: BrokerId) -> None:
        """Freeze every process of the node's container."""

    async def resume(self, broker: BrokerId) -> None:
        """Thaw it; no error if it isn't frozen."""


class Linked(Protocol):
    """Links that can be made worse."""

    def links(self) -> Sequence[Link]:
        """Every link there is that a fault may touch (the harness's own admin links are not among them)."""

    async def add_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Put a toxic on a proxy; an error if one of that name is on it already."""

    async def update_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Change the attributes of a toxic that is there; FaultError if it is gone."""

    async def remove_toxic(self, proxy: str, name: str) -> None:
        """Take a toxic off; no error if it is gone already."""

    async def toxics(self) -> Mapping[str, tuple[Toxic, ...]]:
        """The toxics of every proxy by proxy name, read back from Toxiproxy; a proxy with none may be absent."""

    async def disable(self, proxy: str) -> None:
        """Close every connection through a proxy and refuse new ones; no error if it is disabled already."""

    async def enable(self, proxy: str) -> None:
        """Let connections through again; no error if it is enabled already."""

    async def disabled(self) -> frozenset[str]:
        """The proxies that are disabled, read back from Toxiproxy."""

    async def probe_ms(self, link: Link) -> float:
        """One small Kafka request through that link on a connection of its own; the round trip in ms.

        Raises FaultError if no answer came in time, or if there is no way into the link from the host.
        """


class Administered(Protocol):
    """What Kafka's own administrative protocol offers, over a listener that no fault touches."""

    async def partitions(self, topics: Sequence[str] | None = None) -> Sequence[PartitionState]:
        """The state of every partition of these topics (None: all, internal ones too)."""

    async def reassign(self, assignment: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> None:
        """Ask for these replica lists; returns when the controller has accepted, not when the move is done."""

    async def reassigning(self) -> frozenset[TopicPartition]:
        """The partitions whose reassignment is still under way."""

    async def cancel_reassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Cancel reassignments under way; a partition without one is no error."""

    async def elect_preferred(self, partitions: Iterable[TopicPartition]) -> None:
        """Make ``replicas[0]`` the leader of each; a partition where it leads already is no error."""

    async def controller(self) -> BrokerId:
        """The active controller's node id."""

    async def coordinator(self, group: str) -> BrokerId:
        """The broker that coordinates the group; ``group`` is the group's full name."""

    async def registered(self) -> frozenset[BrokerId]:
        """The brokers that are registered and unfenced."""


class Observed(Protocol):
    """What is known about the nodes without asking Kafka."""

    def racks(self) -> Mapping[BrokerId, str]:
        """The rack of every node, isolated controllers included (a broker is a node that has client links)."""

    async def state(self, broker: BrokerId) -> BrokerState:
        """The state of the node's container, read back from the engine."""


class World(Killable, Pausable, Linked, Administered, Observed, Protocol):
    """A cluster that offers all of it."""

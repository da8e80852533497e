"""What can be done to a cluster: small protocols, one for each thing that can be broken.

Faults know a cluster only by these. A broker in Docker offers all of them; a cluster that was merely attached may offer
fewer, which is why they are apart. Rules: everything that touches the outside is async and bounded in time by whoever
implements it; a failure is a FaultError (or another AftershockError) with a sentence; nothing here keeps state.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from aftershock.faults.targets.values import (
    Answer,
    BrokerId,
    BrokerState,
    ClientProcess,
    Exchange,
    Limits,
    Link,
    LogDir,
    PartitionState,
    Quorum,
    Resource,
    Setting,
    SignOfLife,
    Throttling,
    TopicPartition,
    Toxic,
)


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


class Probe(Protocol):
    """A connection of our own over one link, open until one side ends it; it asks one thing at a time."""

    async def ask(self, ballast_bytes: int, limit_ms: int) -> Exchange:
        """Ask something harmless; with ballast, question and answer are each at least that long."""

    async def close_ms(self, limit_ms: int) -> float:
        """Close our half, and how long it took until the broker was seen to close its own; ``limit_ms`` at most."""

    async def hang_up(self) -> None:
        """Close it; no error if it is closed already."""


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

    async def dial(self, link: Link) -> Probe:
        """Open a connection through that link. FaultError if it is refused, or if there is no way in from the host."""


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

    async def elect_unclean(self, partitions: Iterable[TopicPartition]) -> None:
        """Make any live replica the leader of each, in sync or not; a partition that has a leader is no error."""

    async def controller(self) -> BrokerId:
        """The active controller's node id."""

    async def quorum(self) -> Quorum:
        """The active controller and its epoch."""

    async def quorum_lag(self) -> Mapping[BrokerId, int]:
        """How many records of the metadata log each voter is behind the active controller."""

    async def config(self, of: Resource, name: str) -> Mapping[str, Setting]:
        """The settings in force; a broker is asked itself. A client that has no quotas has no settings."""

    async def alter_config(self, of: Resource, name: str, changes: Mapping[str, str | None]) -> None:
        """Change dynamic settings; None takes the dynamic setting away. AdminError with Kafka's reason."""

    async def create_topic(
        self, topic: str, replicas: Mapping[int, tuple[BrokerId, ...]], config: Mapping[str, str]
    ) -> str:
        """Create it with these replicas for each of its partitions; its id as Kafka writes it."""

    async def delete_topic(self, topic: str) -> None:
        """Delete it; no error if it is gone."""

    async def topic_ids(self) -> Mapping[str, str]:
        """The ids of all topics by name, as Kafka writes them."""

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Make it that many in all (CreatePartitions)."""

    async def log_ends(self, topic: str) -> Mapping[TopicPartition, tuple[int, int]]:
        """The log start and the high watermark of each partition, as its leader has them."""

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Raise the log start of each partition to this offset (DeleteRecords)."""

    async def close_fetch_session(self, broker: BrokerId, session: int) -> int:
        """Close a fetch session on a broker by its id, whoever's it is (KIP-227); Kafka's error code, 0 for none."""

    async def fetch_session_is_open(self, broker: BrokerId, session: int) -> bool:
        """Whether the broker knows a fetch session of this id; asking changes nothing."""

    async def coordinator(self, group: str) -> BrokerId:
        """The broker that coordinates the group; ``group`` is the group's full name."""

    async def registered(self, unasked: frozenset[BrokerId] = frozenset()) -> frozenset[BrokerId]:
        """The brokers that are registered and unfenced, by the metadata of a broker that is not ``unasked``."""


class Redirected(Protocol):
    """Links that can be made to lead elsewhere."""

    async def upstreams(self) -> Mapping[str, str]:
        """Where each proxy leads, ``host:port`` as Toxiproxy dials it, read back from Toxiproxy."""

    async def redirect(self, proxy: str, upstream: str) -> None:
        """Close every connection through a proxy and lead new ones to another upstream; nothing if it leads there."""

    async def node_behind(self, link: Link) -> BrokerId:
        """The broker that answers at the end of a link, as it names itself. FaultError if none does."""


class Limited(Protocol):
    """Nodes that can be given less of the machine, or started as another version."""

    async def limits(self, broker: BrokerId) -> Limits:
        """The limits in force, read back from the engine."""

    async def limit(self, broker: BrokerId, limits: Limits) -> None:
        """Put limits on a running node; no error if they are in force already."""

    async def throttled(self, broker: BrokerId) -> Throttling:
        """What the kernel has counted for the node's CPU quota since it started."""

    async def memory_used(self, broker: BrokerId) -> int:
        """Bytes that the node has in use, page cache included, by the kernel's count; 0 for one that doesn't run."""


class Upgradable(Protocol):
    """Nodes that can be replaced by another Kafka version on the same disk."""

    async def version(self, broker: BrokerId) -> str:
        """The Kafka version of the node's image."""

    async def told_version(self, broker: BrokerId) -> str:
        """The Kafka version that the node's process said it is when it last started; "" if it said nothing yet."""

    async def fetch(self, version: str) -> None:
        """Have an image of that version here; ImageError if there is none to be had."""

    async def replace(self, broker: BrokerId, version: str) -> None:
        """Stop the node, put one of another version in its place on the same disk, start it; ClusterError if not.

        Whenever it is broken off, one of the two is there, and asking again brings it to an end.
        """

    async def supported_features(self, broker: BrokerId) -> Mapping[str, int]:
        """The highest level of each feature that a broker says it knows (ApiVersions, KIP-584)."""

    async def features(self) -> Mapping[str, int]:
        """The finalised feature levels (``metadata.version`` and the others)."""

    async def raise_feature(self, name: str, level: int) -> None:
        """Finalise a higher level of a feature (UpdateFeatures, KIP-584)."""


class Stored(Protocol):
    """Nodes whose log directories can be filled or shut."""

    async def log_dirs(self, broker: BrokerId) -> Sequence[LogDir]:
        """The node's log directories in the order of ``log.dirs``, as the file system has them."""

    async def given_up(self, broker: BrokerId) -> frozenset[str]:
        """The log directories that the broker itself says are offline (DescribeLogDirs, KAFKA_STORAGE_ERROR)."""

    async def fill(self, broker: BrokerId, log_dir: str) -> None:
        """Fill a bounded log directory to its last byte, with one file of ours. FaultError if it isn't bounded."""

    async def empty(self, broker: BrokerId, log_dir: str) -> None:
        """Remove what ``fill`` wrote; no error if it is gone, or the node is down."""

    async def seal(self, broker: BrokerId, log_dir: str) -> None:
        """Make a log directory really unwritable for whoever the broker runs as, root or not."""

    async def unseal(self, broker: BrokerId, log_dir: str) -> None:
        """Make it writable again; no error if it is."""


class Crewed(Protocol):
    """Client processes that can be hit like brokers."""

    async def clients(self) -> Sequence[ClientProcess]:
        """The workers of the run that drives this cluster; none where no run does."""

    async def kill_client(self, worker: str) -> None:
        """SIGKILL a worker and all that it started; returns when it is dead."""

    async def start_client(self, worker: str) -> None:
        """Start a killed worker again, where its schedule is by now; no error if it runs."""

    async def pause_client(self, worker: str) -> None:
        """Freeze a worker and all that it started."""

    async def resume_client(self, worker: str) -> None:
        """Thaw it; no error if it isn't frozen."""

    async def sign_of_life(self, worker: str) -> SignOfLife | None:
        """What it last said of itself, read without asking it; None if it never said anything."""

    async def in_group(self, worker: str) -> bool | None:
        """Whether its group's coordinator counts it as a member; None if it has no group."""

    async def connections(self, worker: str) -> frozenset[str]:
        """Its established TCP connections, read back from the kernel. FaultError where that doesn't let us look."""

    async def disconnect_client(self, worker: str) -> None:
        """End every TCP connection of that worker, and nobody else's. FaultError where the kernel doesn't let us."""

    async def fetch_sessions(self, worker: str) -> Mapping[BrokerId, int]:
        """The fetch session it has with each broker, as it tells itself; none of a client that tells nothing."""


class Tampered(Protocol):
    """Clients' traffic that passes a proxy which understands Kafka's protocol (``faults/wire_proxy``)."""

    async def add_rule(self, rule: Mapping[str, Any]) -> None:
        """Put a rule in force (``wire_proxy/rule.py`` says what one is); FaultError where no such proxy stands."""

    async def remove_rule(self, name: str) -> None:
        """Take a rule away; no error if it is gone, or the proxy is."""

    async def rules(self) -> Mapping[str, Mapping[str, int]]:
        """What each rule in force has done so far: its counters, by the rule's name, read back from the proxy."""

    async def probe_rule(self, name: str, api: str, limit_ms: int) -> Answer:
        """Send one harmless request of that API through the proxy, which meets that rule alone if it is in force.

        FaultError if nobody answers behind the proxy, whatever the rules.
        """


class Observed(Protocol):
    """What is known about the nodes without asking Kafka."""

    def racks(self) -> Mapping[BrokerId, str]:
        """The rack of every node, isolated controllers included (a broker is a node that has client links)."""

    async def state(self, broker: BrokerId) -> BrokerState:
        """The state of the node's container, read back from the engine."""


class World(
    Killable,
    Pausable,
    Limited,
    Upgradable,
    Stored,
    Linked,
    Redirected,
    Administered,
    Crewed,
    Tampered,
    Observed,
    Protocol,
):
    """A cluster that offers all of it."""

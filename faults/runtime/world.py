"""Operations on a cluster that faults use, as small protocols, one for each part of a cluster that faults affect.

Faults know a cluster only through these protocols. A cluster in Docker offers every protocol, an attached cluster only
some. Operations that do I/O are async, and the implementation limits their time. A failure is a FaultError (or another
AftershockError) with a message. Setting a state that is in force already changes nothing and is no error: starting a
running node, removing a missing toxic, enabling an enabled proxy.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from aftershock.faults.targets.values import (
    Answer,
    BrokerId,
    BrokerState,
    ClientProcess,
    Exchange,
    Heartbeat,
    Limits,
    Link,
    LogDir,
    PartitionState,
    Quorum,
    Resource,
    Setting,
    Throttling,
    TopicPartition,
    Toxic,
)


class Killable(Protocol):
    """Kill, stop and start of nodes."""

    async def kill(self, broker: BrokerId) -> None:
        """SIGKILL the node's container; return when the engine has accepted it, before the process is dead."""

    async def stop(self, broker: BrokerId) -> None:
        """Send SIGTERM; return when the process has ended. Raises FaultError or ClusterError if it had to be killed."""

    async def start(self, broker: BrokerId) -> None:
        """Start the same container; return before the broker registers."""


class Pausable(Protocol):
    """Pause and resume of nodes; their sockets stay open."""

    async def pause(self, broker: BrokerId) -> None: ...
    async def resume(self, broker: BrokerId) -> None: ...


class Probe(Protocol):
    """Test connection over one link, open until one side closes it; one request at a time."""

    async def ask(self, ballast_bytes: int, limit_ms: int) -> Exchange:
        """Send a harmless request; request and response each have at least ``ballast_bytes``."""

    async def close_ms(self, limit_ms: int) -> float:
        """Close our half; return the time until the broker closed its half, ``limit_ms`` at most."""

    async def hang_up(self) -> None: ...


class Linked(Protocol):
    """Toxics and outages of links."""

    def links(self) -> Sequence[Link]:
        """Return all links that faults may use; the admin links of the harness are excluded."""

    async def add_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Add a toxic to a proxy; raise FaultError if the proxy has a toxic of that name."""

    async def update_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Change the attributes of a toxic; raise FaultError if it is missing."""

    async def remove_toxic(self, proxy: str, name: str) -> None: ...

    async def toxics(self) -> Mapping[str, tuple[Toxic, ...]]:
        """Read the toxics of each proxy from Toxiproxy; a proxy without toxics may be absent."""

    async def disable(self, proxy: str) -> None:
        """Close all connections through a proxy and refuse new connections."""

    async def enable(self, proxy: str) -> None:
        """Accept connections again."""

    async def disabled(self) -> frozenset[str]: ...

    async def probe_ms(self, link: Link) -> float:
        """Send a small Kafka request on a new connection through a link; return the round trip in ms.

        Raise FaultError if no response arrives in time, or if the link has no entry from the host.
        """

    async def dial(self, link: Link) -> Probe:
        """Open a connection through a link. Raises FaultError if refused, or if the link has no entry from the host."""


class Administered(Protocol):
    """Kafka's admin protocol, over a listener that no fault affects."""

    async def partitions(self, topics: Sequence[str] | None = None) -> Sequence[PartitionState]:
        """Return the state of each partition of these topics; None: of all topics, including internal topics."""

    async def reassign(self, assignment: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> None:
        """Request these replica lists; return when the controller accepts, before the move is done."""

    async def reassigning(self) -> frozenset[TopicPartition]: ...

    async def cancel_reassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Cancel the moves of these partitions that are in progress."""

    async def elect_preferred(self, partitions: Iterable[TopicPartition]) -> None:
        """Elect ``replicas[0]`` of each partition as leader."""

    async def elect_unclean(self, partitions: Iterable[TopicPartition]) -> None:
        """Elect any live replica of each partition without a leader, in sync or not."""

    async def controller(self) -> BrokerId: ...
    async def quorum(self) -> Quorum: ...

    async def quorum_lag(self) -> Mapping[BrokerId, int]:
        """Return each voter's lag behind the active controller, in records of the metadata log."""

    async def config(self, of: Resource, name: str) -> Mapping[str, Setting]:
        """Return the settings in force, read from the broker itself for a broker; empty for a client without quotas."""

    async def alter_config(self, of: Resource, name: str, changes: Mapping[str, str | None]) -> None:
        """Change dynamic settings; None removes the dynamic setting. Raises AdminError with Kafka's reason."""

    async def create_topic(
        self, topic: str, replicas: Mapping[int, tuple[BrokerId, ...]], config: Mapping[str, str]
    ) -> str:
        """Create a topic with these replicas by partition; return its id as Kafka writes it."""

    async def delete_topic(self, topic: str) -> None: ...

    async def topic_ids(self) -> Mapping[str, str]:
        """Return the ids of all topics by name, as Kafka writes them."""

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise the topic's partition count to ``partitions`` (CreatePartitions)."""

    async def log_ends(self, topic: str) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return log start offset and high watermark of each partition, from its leader."""

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Raise the log start offset of each partition (DeleteRecords)."""

    async def close_fetch_session(self, broker: BrokerId, session: int) -> int:
        """Close a fetch session of any client by its id (KIP-227); return Kafka's error code, 0 for success."""

    async def fetch_session_is_open(self, broker: BrokerId, session: int) -> bool:
        """Return True if the broker has a fetch session of this id; a read-only request."""

    async def coordinator(self, group: str) -> BrokerId:
        """Return the group's coordinator; ``group`` is the full name."""

    async def registered(self, excluding: frozenset[BrokerId] = frozenset()) -> frozenset[BrokerId]:
        """Return the registered, unfenced brokers, from the metadata of a broker not in ``excluding``."""


class Redirected(Protocol):
    """Redirection of links."""

    async def upstreams(self) -> Mapping[str, str]:
        """Read each proxy's upstream, ``host:port``, from Toxiproxy."""

    async def redirect(self, proxy: str, upstream: str) -> None:
        """Close all connections through a proxy and dial another upstream."""

    async def node_behind(self, link: Link) -> BrokerId:
        """Return the id that the broker behind a link reports. Raises FaultError if none answers."""


class Limited(Protocol):
    """CPU and memory limits of nodes."""

    async def limits(self, broker: BrokerId) -> Limits: ...
    async def limit(self, broker: BrokerId, limits: Limits) -> None: ...

    async def throttled(self, broker: BrokerId) -> Throttling:
        """Return the kernel's counters of the node's CPU quota since its start."""

    async def memory_used(self, broker: BrokerId) -> int:
        """Return the bytes in use by the kernel's count, page cache included; 0 for a node that doesn't run."""


class Upgradable(Protocol):
    """Replacement of nodes by another Kafka version on the same disk."""

    async def version(self, broker: BrokerId) -> str: ...

    async def reported_version(self, broker: BrokerId) -> str:
        """Return the Kafka version that the node's process logged at its last start; "" if not yet."""

    async def fetch(self, version: str) -> None:
        """Pull or build the image of a version; raise ImageError if the version has no image."""

    async def replace(self, broker: BrokerId, version: str) -> None:
        """Stop a node, replace it by another version on the same disk, start it; raise ClusterError on failure.

        After an interruption, either the old or the new container exists, and a repeated call completes the
        replacement.
        """

    async def supported_features(self, broker: BrokerId) -> Mapping[str, int]:
        """Return the highest level of each feature that a broker supports (ApiVersions, KIP-584)."""

    async def features(self) -> Mapping[str, int]:
        """Return the finalised feature levels (``metadata.version`` and others)."""

    async def raise_feature(self, name: str, level: int) -> None:
        """Finalise a higher level of a feature (UpdateFeatures, KIP-584)."""


class Stored(Protocol):
    """Filling and sealing of log directories."""

    async def log_dirs(self, broker: BrokerId) -> Sequence[LogDir]:
        """Return the node's log directories in the order of ``log.dirs``, from the file system."""

    async def offline_log_dirs(self, broker: BrokerId) -> frozenset[str]:
        """Return the log directories that the broker reports offline (DescribeLogDirs, KAFKA_STORAGE_ERROR)."""

    async def fill(self, broker: BrokerId, log_dir: str) -> None:
        """Fill a bounded log directory to its last byte with one file. Raises FaultError if it isn't bounded."""

    async def empty(self, broker: BrokerId, log_dir: str) -> None:
        """Remove the file of ``fill``."""

    async def seal(self, broker: BrokerId, log_dir: str) -> None:
        """Make a log directory unwritable for the broker's user, even for root."""

    async def unseal(self, broker: BrokerId, log_dir: str) -> None: ...


class ClientControl(Protocol):
    """Kill, pause and observation of client processes."""

    async def clients(self) -> Sequence[ClientProcess]:
        """Return the workers of the run on this cluster; empty without a run."""

    async def kill_client(self, worker: str) -> None:
        """SIGKILL a worker and its child processes; return when they are dead."""

    async def start_client(self, worker: str) -> None:
        """Start a killed worker at the current point of its schedule."""

    async def pause_client(self, worker: str) -> None: ...
    async def resume_client(self, worker: str) -> None: ...

    async def last_heartbeat(self, worker: str) -> Heartbeat | None:
        """Return the worker's last heartbeat, read from its spool; None before the first."""

    async def in_group(self, worker: str) -> bool | None:
        """Return whether the group coordinator counts the client as a member; None for a client without a group."""

    async def connections(self, worker: str) -> frozenset[str]:
        """Read the worker's established TCP connections from the kernel. Raises FaultError if that isn't permitted."""

    async def disconnect_client(self, worker: str) -> None:
        """Close all TCP connections of that worker only. Raises FaultError if the kernel doesn't permit it."""

    async def fetch_sessions(self, worker: str) -> Mapping[BrokerId, int]:
        """Return the client's fetch session with each broker; empty if the client doesn't report them."""


class WireProxyControl(Protocol):
    """Rules of the proxy that understands Kafka's protocol (``faults/wire_proxy``)."""

    async def add_rule(self, rule: Mapping[str, Any]) -> None:
        """Add a rule (format: ``wire_proxy/rules.py``); raise FaultError if the cluster has no wire proxy."""

    async def remove_rule(self, name: str) -> None: ...

    async def rules(self) -> Mapping[str, Mapping[str, int]]:
        """Read the counters of each rule in force from the proxy, by the rule's name."""

    async def probe_rule(self, name: str, api: str, limit_ms: int) -> Answer:
        """Send one harmless request of an API through the proxy; only this rule applies to it, if in force.

        Raises FaultError if no broker answers behind the proxy, even without rules.
        """


class Observed(Protocol):
    """Facts about nodes that need no Kafka request."""

    def racks(self) -> Mapping[BrokerId, str]:
        """Return the rack of every node, isolated controllers included."""

    async def state(self, broker: BrokerId) -> BrokerState:
        """Read the state of the node's container from the engine."""


class World(
    Killable,
    Pausable,
    Limited,
    Upgradable,
    Stored,
    Linked,
    Redirected,
    Administered,
    ClientControl,
    WireProxyControl,
    Observed,
    Protocol,
):
    """A cluster that offers all operations."""

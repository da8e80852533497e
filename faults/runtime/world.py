"""Operations of faults on a cluster, as small protocols, one for each part of a cluster that faults affect.

Faults use a cluster only through these protocols (typing.Protocol). A cluster in Docker implements every protocol, an
attached cluster only some. Operations that do I/O are async and have a time limit. An operation that fails raises
FaultError or another AftershockError. Operations are idempotent: starting a running node, removing a missing toxic, or
enabling an enabled proxy is no error.
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
    async def kill(self, broker: BrokerId) -> None:
        """Send SIGKILL to the node's container; return when the engine has accepted it, before the process is dead."""

    async def stop(self, broker: BrokerId) -> None:
        """Send SIGTERM; return when the process has ended.

        Raises FaultError or ClusterError if the process had to be killed.
        """

    async def start(self, broker: BrokerId) -> None:
        """Start the node's existing container; return before the broker registers."""


class Pausable(Protocol):
    """Pause and resume of nodes; the sockets of a paused node stay open."""

    async def pause(self, broker: BrokerId) -> None: ...
    async def resume(self, broker: BrokerId) -> None: ...


class Probe(Protocol):
    """Test connection over one link, open until the client or the broker closes it; one request at a time."""

    async def ask(self, ballast_bytes: int, limit_ms: int) -> Exchange:
        """Send a harmless request to the broker; request and response each have at least ``ballast_bytes``."""

    async def close_ms(self, limit_ms: int) -> float:
        """Close our half of the connection; return the time until the broker closed its half, ``limit_ms`` at most."""

    async def hang_up(self) -> None: ...


class Linked(Protocol):
    """Control of network links: Toxiproxy's toxics on links, and closing of links."""

    def links(self) -> Sequence[Link]:
        """Return all links that faults may use; the admin links of the harness are excluded."""

    async def add_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Add a toxic to a proxy; raise FaultError if the proxy has a toxic of that name."""

    async def update_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Change the attributes of a toxic; raise FaultError if the proxy has no toxic of that name."""

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

        Raises FaultError if no response arrives in time, or if the harness can't connect over the link.
        """

    async def dial(self, link: Link) -> Probe:
        """Open a connection through a link.

        Raises FaultError if the connection is refused, or if the harness can't connect over the link.
        """


class Administered(Protocol):
    """Requests of Kafka's admin protocol, over a listener that no fault affects."""

    async def partitions(self, topics: Sequence[str] | None = None) -> Sequence[PartitionState]:
        """Return the state of each partition of these topics; with None, of all topics, including internal topics."""

    async def reassign(self, assignment: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> None:
        """Request replica lists of partitions; return when the controller accepts, before the replicas are moved."""

    async def reassigning(self) -> frozenset[TopicPartition]: ...

    async def cancel_reassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Cancel the reassignments of these partitions that are in progress."""

    async def elect_preferred(self, partitions: Iterable[TopicPartition]) -> None:
        """Request that ``replicas[0]`` of each partition becomes its leader."""

    async def elect_unclean(self, partitions: Iterable[TopicPartition]) -> None:
        """Request that any live replica of each partition without a leader becomes its leader, in sync or not."""

    async def controller(self) -> BrokerId: ...
    async def quorum(self) -> Quorum: ...

    async def quorum_lag(self) -> Mapping[BrokerId, int]:
        """Return by how many records of the metadata log each voter is behind the active controller."""

    async def config(self, of: Resource, name: str) -> Mapping[str, Setting]:
        """Return a resource's settings in force, read from a broker itself; empty for a client without quotas."""

    async def alter_config(self, of: Resource, name: str, changes: Mapping[str, str | None]) -> None:
        """Change dynamic settings of a resource (None removes a setting); raise AdminError with Kafka's reason."""

    async def create_topic(
        self, topic: str, replicas: Mapping[int, tuple[BrokerId, ...]], config: Mapping[str, str]
    ) -> str:
        """Create a topic with the given replicas of each partition; return the topic id as Kafka writes it."""

    async def delete_topic(self, topic: str) -> None: ...

    async def topic_ids(self) -> Mapping[str, str]:
        """Return the topic ids of all topics by topic name, as Kafka writes topic ids."""

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise the topic's partition count to ``partitions`` (CreatePartitions)."""

    async def log_ends(self, topic: str) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return log start offset and high watermark of each partition, from its leader."""

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Raise the log start offset of each partition (DeleteRecords)."""

    async def close_fetch_session(self, broker: BrokerId, session: int) -> int:
        """Close a fetch session of any client by its id (KIP-227); return Kafka's error code, 0 for success."""

    async def fetch_session_is_open(self, broker: BrokerId, session: int) -> bool:
        """Return True if the broker has a fetch session of this id, without changing the session."""

    async def coordinator(self, group: str) -> BrokerId:
        """Return the broker that coordinates a consumer group, given by its full name."""

    async def registered(self, excluding: frozenset[BrokerId] = frozenset()) -> frozenset[BrokerId]:
        """Return the registered, unfenced brokers by the metadata of a broker that is not in ``excluding``."""


class Redirected(Protocol):
    """Redirection of links."""

    async def upstreams(self) -> Mapping[str, str]:
        """Read the upstream of each Toxiproxy proxy, ``host:port``."""

    async def redirect(self, proxy: str, upstream: str) -> None:
        """Close all connections through a proxy and give the proxy another upstream."""

    async def node_behind(self, link: Link) -> BrokerId:
        """Return the id that the broker behind a link reports; raise FaultError if no broker answers."""


class Limited(Protocol):
    async def limits(self, broker: BrokerId) -> Limits: ...
    async def limit(self, broker: BrokerId, limits: Limits) -> None: ...

    async def throttled(self, broker: BrokerId) -> Throttling:
        """Return the kernel's counters of the node's CPU quota since its start."""

    async def memory_used(self, broker: BrokerId) -> int:
        """Return the memory that a node uses in bytes, page cache included; 0 for a node that doesn't run."""


class Upgradable(Protocol):
    """Replacement of nodes by another Kafka version on the same disk."""

    async def version(self, broker: BrokerId) -> str: ...

    async def reported_version(self, broker: BrokerId) -> str:
        """Return the Kafka version that a node's process logged at its last start; "" before it logged a version."""

    async def fetch(self, version: str) -> None:
        """Pull or build the image of a Kafka version; raise ImageError if the version has no image."""

    async def replace(self, broker: BrokerId, version: str) -> None:
        """Replace a node by another Kafka version on the same disk, and start it; raise ClusterError on failure.

        If a replacement is interrupted, the old or the new container exists, and a repeated call completes it.
        """

    async def supported_features(self, broker: BrokerId) -> Mapping[str, int]:
        """Return the highest level of each feature that a broker supports (ApiVersions, KIP-584)."""

    async def features(self) -> Mapping[str, int]:
        """Return the cluster's finalised feature levels (``metadata.version`` and others)."""

    async def raise_feature(self, name: str, level: int) -> None:
        """Finalise a higher level of a cluster feature (UpdateFeatures, KIP-584)."""


class Stored(Protocol):
    """Filling of log directories, and withdrawal of their write permission."""

    async def log_dirs(self, broker: BrokerId) -> Sequence[LogDir]:
        """Return a node's log directories in the order of ``log.dirs``, as its file system has them."""

    async def offline_log_dirs(self, broker: BrokerId) -> frozenset[str]:
        """Return the log directories that a broker reports offline (DescribeLogDirs, KAFKA_STORAGE_ERROR)."""

    async def fill(self, broker: BrokerId, log_dir: str) -> None:
        """Fill a log directory of limited size to its last byte with one file; raise FaultError for a shared disk."""

    async def empty(self, broker: BrokerId, log_dir: str) -> None:
        """Remove the file with which ``fill`` filled a log directory."""

    async def seal(self, broker: BrokerId, log_dir: str) -> None:
        """Make a log directory unwritable for the broker's user, even for root."""

    async def unseal(self, broker: BrokerId, log_dir: str) -> None: ...


class ClientControl(Protocol):
    async def clients(self) -> Sequence[ClientProcess]:
        """Return the client processes (workers) of the run on this cluster; empty without a run."""

    async def kill_client(self, worker: str) -> None:
        """Send SIGKILL to a client process and its children; return when they are dead."""

    async def start_client(self, worker: str) -> None:
        """Start a killed client process at the current point of its send schedule."""

    async def pause_client(self, worker: str) -> None: ...
    async def resume_client(self, worker: str) -> None: ...

    async def last_heartbeat(self, worker: str) -> Heartbeat | None:
        """Return a client process's last heartbeat, read from its spool (shared memory); None before the first."""

    async def in_group(self, worker: str) -> bool | None:
        """Return True if the group coordinator counts the client as a member; None for a client without a group."""

    async def connections(self, worker: str) -> frozenset[str]:
        """Read a client process's established TCP connections from the kernel; raise FaultError without permission."""

    async def disconnect_client(self, worker: str) -> None:
        """Close all TCP connections of one client process; raise FaultError if the kernel doesn't permit that."""

    async def fetch_sessions(self, worker: str) -> Mapping[BrokerId, int]:
        """Return a client's fetch session with each broker; empty if the client doesn't report its sessions."""


class WireProxyControl(Protocol):
    """Rules of the proxy that understands Kafka's protocol (``faults/wire_proxy``)."""

    async def add_rule(self, rule: Mapping[str, Any]) -> None:
        """Add a rule to the wire proxy (format: ``wire_proxy/rules.py``); raise FaultError without a wire proxy."""

    async def remove_rule(self, name: str) -> None: ...

    async def rules(self) -> Mapping[str, Mapping[str, int]]:
        """Read the counters of each rule in force from the wire proxy, by the rule's name."""

    async def probe_rule(self, name: str, api: str, limit_ms: int) -> Answer:
        """Send a harmless request of an API through the wire proxy; no rule except this rule applies to the request.

        Raises FaultError if no broker answers behind the wire proxy, even without rules.
        """


class Observed(Protocol):
    """Facts about nodes that need no request to Kafka: their racks, and the states of their containers."""

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
    """A cluster that implements all protocols, so that every fault kind can be injected into it."""

"""Interface through which faults use a cluster, one ``typing.Protocol`` for each part of the cluster.

A cluster in Docker implements every protocol, an attached cluster only some. Operations that do I/O are async and have
a time limit. An operation that fails raises FaultError or another AftershockError. Operations are idempotent, so
starting a running node, removing a missing toxic, or enabling an enabled proxy is no error.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from aftershock.faults.sections.cluster import BlockDevice
from aftershock.faults.targets.values import (
    Answer,
    BrokerId,
    BrokerState,
    ClientProcess,
    ClockShift,
    DiskCounts,
    DiskDefects,
    Exchange,
    FloodLoad,
    GcPauses,
    GroupMember,
    Heartbeat,
    Limits,
    Link,
    LogDamage,
    LogDir,
    OpenTransaction,
    Outcome,
    PacketChange,
    PacketCounts,
    PartitionState,
    Quorum,
    Resource,
    Setting,
    Stream,
    Throttling,
    TopicPartition,
    Toxic,
    TransactionState,
)


class NodeControl(Protocol):
    def racks(self) -> Mapping[BrokerId, str]:
        """Return the rack of every node, isolated controllers included."""

    async def state(self, broker: BrokerId) -> BrokerState: ...

    async def kill(self, broker: BrokerId) -> None:
        """Send SIGKILL to a node; return when the engine has accepted it, which may be before the death."""

    def has_hosts(self) -> bool:
        """Return True if the address of a node can outlive its process."""

    async def crash(self, broker: BrokerId) -> None:
        """Do what ``kill`` does, but keep the node's address, so that connections to it are refused at once."""

    async def vanish(self, broker: BrokerId) -> None:
        """Do what ``kill`` does, after the node's network is gone, so that its connections are never closed."""

    async def dial_node(self, broker: BrokerId) -> Outcome:
        """Open a connection to a node where no proxy is between; ``closed`` means that the node's host refused it."""

    async def stop(self, broker: BrokerId) -> None:
        """Send SIGTERM and await the end of the process; raise FaultError or ClusterError if it had to be killed."""

    async def start(self, broker: BrokerId) -> None:
        """Start the node's existing container; return before the broker registers with the controller."""

    async def pause(self, broker: BrokerId) -> None:
        """Freeze a node's processes; the sockets of the node stay open."""

    async def resume(self, broker: BrokerId) -> None: ...

    def has_pods(self) -> bool:
        """Return True if the nodes are pods on a Kubernetes cluster."""

    def pods_return(self) -> bool:
        """Return True if a controller of the cluster makes a deleted pod again at once, as for a stateful set."""

    async def delete_pod(self, broker: BrokerId, grace_ms: int | None, *, evict: bool = False) -> int:
        """Delete a node's pod, by default with its own grace period; return when the API server has accepted it.

        Returns the grace period in ms. Raises ClusterError for a pod that must not be deleted, and, with ``evict``, if
        a disruption budget of the pods does not allow it.
        """

    async def machines(self) -> Mapping[BrokerId, str]:
        """Return the Kubernetes node on which each node's pod is; without those whose pod is on none."""

    async def cordon(self, machine: str, fault: str) -> None:
        """Let the scheduler place no pod on a Kubernetes node; raise ClusterError if that is so already."""

    async def uncordon(self, machine: str, fault: str) -> None:
        """Let the scheduler place pods again on a Kubernetes node that the fault has cordoned."""

    async def cordoned(self, machine: str, fault: str) -> bool:
        """Return True if the scheduler places no pod on a Kubernetes node because of the fault."""


class Probe(Protocol):
    """Test connection of the harness to a broker over one network link."""

    async def ask(self, ballast_bytes: int, limit_ms: int) -> Exchange:
        """Send a harmless request; request and response each have at least ``ballast_bytes``."""

    async def close_ms(self, limit_ms: int) -> float:
        """Half-close the connection; return the time until the broker closed its half, at most ``limit_ms``."""

    async def hang_up(self) -> None: ...


class Linked(Protocol):
    """Control of network links, by the Toxiproxy proxies in front of the brokers and the toxics on these proxies."""

    def links(self) -> Sequence[Link]:
        """Return all links that faults may use, which excludes the admin links of the harness."""

    def takes_toxics(self, link: Link) -> bool:
        """Return True if a proxy stands before the link's broker; else only the packets of the link can be changed."""

    async def add_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Add a toxic to a proxy; raise FaultError if the proxy has a toxic of that name."""

    async def update_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Change the attributes of the toxic of this name; raise FaultError if the proxy has no such toxic."""

    async def remove_toxic(self, proxy: str, name: str) -> None: ...

    async def toxics(self) -> Mapping[str, tuple[Toxic, ...]]:
        """Read the toxics of each proxy from Toxiproxy; a proxy without toxics may be absent."""

    async def disable(self, proxy: str) -> None:
        """Close all connections through a proxy and refuse new connections."""

    async def enable(self, proxy: str) -> None: ...
    async def disabled(self) -> frozenset[str]: ...

    async def upstreams(self) -> Mapping[str, str]:
        """Return the upstream ``host:port`` of each Toxiproxy proxy, by the proxy's name."""

    async def redirect(self, proxy: str, upstream: str) -> None:
        """Close all connections through a proxy and give the proxy another upstream."""

    async def node_behind(self, link: Link) -> BrokerId:
        """Return the id that the broker behind a link reports; raise FaultError if no broker answers."""

    async def probe_ms(self, link: Link) -> float:
        """Send a small Kafka request on a new connection; return the round trip in ms, raise FaultError without one."""

    async def dial(self, link: Link) -> Probe:
        """Open a connection to the broker through a link; raise FaultError if that fails."""


class Administered(Protocol):
    """Requests of Kafka's admin protocol, over a listener that no fault affects."""

    async def partitions(self, topics: Sequence[str] | None = None) -> Sequence[PartitionState]:
        """Return the state of each partition of these topics; with None, of all topics, including internal topics."""

    async def reassign(self, assignment: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> None:
        """Request replica lists of partitions; return when the controller accepts, before the replicas are moved."""

    async def reassigning(self) -> frozenset[TopicPartition]: ...

    async def cancel_reassign(self, partitions: Iterable[TopicPartition]) -> None: ...
    async def elect_preferred(self, partitions: Iterable[TopicPartition]) -> None: ...

    async def elect_unclean(self, partitions: Iterable[TopicPartition]) -> None:
        """Request that a live replica, in sync or not, becomes leader of each partition that has no leader."""

    async def controller(self) -> BrokerId: ...
    async def quorum(self) -> Quorum: ...

    async def quorum_lag(self) -> Mapping[BrokerId, int]:
        """Return the number of records of the metadata log by which each voter is behind the active controller."""

    async def config(self, of: Resource, name: str) -> Mapping[str, Setting]:
        """Return a resource's settings in force; a broker's settings are read from that broker itself."""

    async def alter_config(self, of: Resource, name: str, changes: Mapping[str, str | None]) -> None:
        """Change dynamic settings of a resource (None removes a setting); raise AdminError with Kafka's reason."""

    async def create_topic(
        self, topic: str, replicas: Mapping[int, tuple[BrokerId, ...]], config: Mapping[str, str]
    ) -> str:
        """Create a topic with the given replicas of each partition; return the topic id in Kafka's base64 form."""

    async def delete_topic(self, topic: str) -> None: ...

    async def topic_ids(self) -> Mapping[str, str]:
        """Return the topic id of each topic in Kafka's base64 form, by topic name."""

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise the topic's partition count to the total ``partitions`` (CreatePartitions)."""

    async def log_ends(self, topic: str) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return log start offset and high watermark of each partition, from its leader."""

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> None: ...

    async def close_fetch_session(self, broker: BrokerId, session: int) -> int:
        """Close a fetch session of any client by its id (KIP-227); return Kafka's error code, 0 for success."""

    async def fetch_session_is_open(self, broker: BrokerId, session: int) -> bool:
        """Return True if the broker has a fetch session of this id, without changing the fetch session."""

    async def coordinator(self, group: str) -> BrokerId: ...
    async def transaction_coordinator(self, transactional_id: str) -> BrokerId: ...

    async def fence_producer(self, transactional_id: str) -> tuple[int, int]:
        """Raise the epoch of a transactional id; return the producer id and the epoch that Kafka gave out."""

    async def transaction_state(self, transactional_id: str) -> TransactionState | None:
        """Return what the coordinator of a transactional id says of it; None if it does not know the id."""

    async def transaction_states(self, producer_id: int) -> Sequence[TransactionState]:
        """Return the states of a producer id's transactional ids; raise AdminError unless every broker answers."""

    async def open_transactions(self, topic: str, partition: int) -> Sequence[OpenTransaction]:
        """Return the transactions that the leader of a partition has open."""

    async def write_abort_marker(self, topic: str, partition: int, transaction: OpenTransaction) -> None:
        """End an open transaction in one partition by an ABORT marker, without its coordinator."""

    async def group_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """Return the offsets that a group has committed."""

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete committed offsets; raise AdminError if a member of the group subscribes to their topic."""

    async def registered(self, excluding: frozenset[BrokerId] = frozenset()) -> frozenset[BrokerId]:
        """Return the registered, unfenced brokers by the metadata of any broker that is not in ``excluding``."""


class MachineControl(Protocol):
    """Control of the resources and log directories of a node's container."""

    async def limits(self, broker: BrokerId) -> Limits: ...
    async def limit(self, broker: BrokerId, limits: Limits) -> None: ...
    async def throttled(self, broker: BrokerId) -> Throttling: ...

    async def memory_used(self, broker: BrokerId) -> int:
        """Return the memory that a node uses in bytes, page cache included; 0 for a node that doesn't run."""

    async def log_dirs(self, broker: BrokerId) -> Sequence[LogDir]:
        """Return a node's log directories, as its file system has them, in the order of the setting ``log.dirs``."""

    async def offline_log_dirs(self, broker: BrokerId) -> frozenset[str]: ...

    async def fill(self, broker: BrokerId, log_dir: str) -> None:
        """Fill a log directory to its last byte; raise FaultError if another log directory shares its file system."""

    async def empty(self, broker: BrokerId, log_dir: str) -> None:
        """Remove the file with which ``fill`` filled a log directory."""

    async def seal(self, broker: BrokerId, log_dir: str) -> None:
        """Make a log directory unwritable for the broker's user, even for root."""

    async def unseal(self, broker: BrokerId, log_dir: str) -> None: ...

    async def block_device(self, broker: BrokerId) -> BlockDevice | None:
        """Return the block device of a node's log directory; None if the directory is on the engine's disk."""

    async def set_disk_defects(self, broker: BrokerId, defects: DiskDefects) -> None:
        """Make a node's disk slow or faulty, or sound without defects; raise ClusterError without a disk layer."""

    async def disk_counts(self, broker: BrokerId) -> DiskCounts: ...

    async def write_ms(self, broker: BrokerId) -> float | None:
        """Write and fsync 4 KiB in a node's log directory; return the time it took, None after an error."""

    async def settle_disk(self, broker: BrokerId) -> None:
        """Fsync all files of a node's log directory, until the kernel has no write error left to report."""

    async def damage_log(self, broker: BrokerId, damage: LogDamage) -> tuple[str, str]:
        """Damage a file of a node that does not run; return the file's checksum before and after."""

    async def cut_power(self, brokers: Collection[BrokerId]) -> frozenset[BrokerId]:
        """Cut the power of nodes at the same moment; return those whose file system the kernel reports as shut down.

        A node's processes are frozen, its file system is shut down without its journal and its unwritten data, and the
        node is killed. Raises ClusterError if a step fails; then ``restore_power`` must follow.
        """

    async def restore_power(self, brokers: Collection[BrokerId]) -> None:
        """Mount the file systems of nodes again and start the nodes, also after an interrupted ``cut_power``."""


class ClockControl(Protocol):
    """Control of the wall clocks of nodes; monotonic time is never changed."""

    def has_clocks(self) -> bool:
        """Return True if the clocks of the cluster's nodes can be moved."""

    async def set_clock(self, broker: BrokerId, shift: ClockShift) -> None:
        """Move a node's clock, by its true time; an unmoved ``ClockShift()`` restores it."""

    async def clock_error_ms(self, broker: BrokerId) -> float:
        """Return by how much a broker's clock is ahead, by the append time of a record; negative if it is behind."""


class GcControl(Protocol):
    """Garbage collections that stop the JVM of a node for asked times."""

    def has_gc_pauses(self) -> bool:
        """Return True if the cluster's JVMs have the agent that stops them."""

    async def set_gc_pauses(self, broker: BrokerId, pauses: GcPauses) -> None:
        """Stop a node's JVM again and again; ``GcPauses()`` ends that."""

    async def gc_pauses_set(self, broker: BrokerId) -> bool:
        """Return True if a node's JVM is stopped again and again."""

    async def gc_stops_ms(self, broker: BrokerId) -> Sequence[float]:
        """Return the durations of a node's full collections, in order, by the log of its JVM."""


class PacketControl(Protocol):
    """Rules of the kernel about the packets of network links; a fault's rules are known by its id."""

    def has_packet_control(self) -> bool:
        """Return True if the packets of the cluster's links can be changed."""

    async def change_packets(self, fault: str, streams: Sequence[tuple[str, Stream]], change: PacketChange) -> None:
        """Change packets of streams, each a proxy and a direction."""

    async def isolate(self, fault: str, broker: BrokerId) -> None:
        """Drop all packets of a broker's container; raise FaultError in a launched cluster."""

    async def remove_packet_rules(self, fault: str) -> None: ...
    async def has_packet_rules(self, fault: str) -> bool: ...

    async def packet_counts(self, fault: str) -> PacketCounts:
        """Return what the kernel has counted for a fault's rules; zeros without rules."""


class Upgradable(Protocol):
    """Replacement of nodes by another Kafka version on the same disk."""

    async def version(self, broker: BrokerId) -> str: ...

    async def reported_version(self, broker: BrokerId) -> str:
        """Return the Kafka version that a node's process logged at its last start; "" before the process logged it."""

    async def fetch(self, version: str) -> None:
        """Pull or build the image of a Kafka version; raise ImageError if the version has no image."""

    async def replace(self, broker: BrokerId, version: str) -> None:
        """Start a node in another Kafka version on the same disk; raise ClusterError on failure.

        A repeated call completes an interrupted replacement, which leaves either the old or the new container.
        """

    async def supported_features(self, broker: BrokerId) -> Mapping[str, int]:
        """Return the highest level of each feature that a broker supports (ApiVersions, KIP-584)."""

    async def features(self) -> Mapping[str, int]:
        """Return the finalised level of each feature of the cluster, such as ``metadata.version``."""

    async def raise_feature(self, name: str, level: int) -> None: ...


class FloodControl(Protocol):
    """A producer of the harness that overloads brokers, over a listener that no fault affects."""

    async def start_flood(self, fault: str, flood: FloodLoad) -> None:
        """Start the producer, which ends by itself after ``for_ms``, or when this process ends."""

    async def end_flood(self, fault: str) -> None:
        """End the producer, if this process started it."""


class ClientControl(Protocol):
    """Control of a run's client processes; a worker is a client process, given by its name."""

    async def clients(self) -> Sequence[ClientProcess]:
        """Return the client processes of the run on this cluster; empty without a run."""

    async def kill_client(self, worker: str) -> None:
        """Send SIGKILL to a client process and its children; return when they are dead."""

    async def start_client(self, worker: str) -> None:
        """Start a killed client process at the current point of its send schedule, or a member in reserve."""

    async def leave_client(self, worker: str) -> None:
        """Let a client commit, leave its group, close and exit; return when its process has ended."""

    async def pause_client(self, worker: str) -> None: ...
    async def resume_client(self, worker: str) -> None: ...

    async def stop_polling(self, worker: str) -> None:
        """Let a consumer process no further records, while its client library goes on in the background."""

    async def resume_polling(self, worker: str) -> None: ...

    async def last_heartbeat(self, worker: str) -> Heartbeat | None:
        """Return a client process's last status report, read from shared memory; None before the first report."""

    async def in_group(self, worker: str) -> bool | None:
        """Return True if the group coordinator counts the client as a member.

        None for a client without a group, and for a process of a service that can't be told from its other members.
        """

    async def member_ids(self, worker: str) -> frozenset[str] | None:
        """Return the ids of the group's members that are this client; None as for ``in_group``."""

    async def evict_client(self, worker: str) -> frozenset[str]:
        """Remove the members that are this client from their group; return their ids."""

    async def group_members(self, worker: str) -> Sequence[GroupMember]:
        """Return all members of the client's consumer group; empty for a client without a group."""

    async def connections(self, worker: str) -> frozenset[str]:
        """Read a client process's established TCP connections; raise FaultError if the kernel refuses."""

    async def disconnect_client(self, worker: str) -> None:
        """Close all TCP connections of one client process; raise FaultError if the kernel doesn't permit that."""

    async def fetch_sessions(self, worker: str) -> Mapping[BrokerId, int]:
        """Return the id of a client's fetch session with each broker; empty if the client doesn't report sessions."""


class WireProxyControl(Protocol):
    """Rules of the wire proxy, the proxy that understands Kafka's protocol (``faults/wire_proxy``)."""

    async def add_rule(self, rule: Mapping[str, Any]) -> None:
        """Add a rule, in the format of ``wire_proxy/rules.py``; raise FaultError if the cluster has no wire proxy."""

    async def remove_rule(self, name: str) -> None: ...

    async def rules(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counters of each rule in force, by the rule's name."""

    async def probe_rule(self, name: str, api: str, limit_ms: int, topic: str | None = None) -> Answer:
        """Send a harmless request of an API through the wire proxy, to which only the rule of this name applies.

        A Metadata request may be about a ``topic`` of the cluster; other probes name a topic that does not exist.
        Raises FaultError if no broker answers behind the wire proxy, even without rules.
        """

    async def ask_bootstrap(self, rack: str, broker: BrokerId, limit_ms: int) -> tuple[Outcome, BrokerId | None]:
        """Connect to a bootstrap address of a rack's clients; return what came, and the id that the broker reports.

        Raises FaultError if the wire proxy has no such address.
        """


class World(
    NodeControl,
    MachineControl,
    ClockControl,
    GcControl,
    PacketControl,
    Upgradable,
    Linked,
    Administered,
    ClientControl,
    WireProxyControl,
    FloodControl,
    Protocol,
):
    """A cluster that implements all protocols, so that every fault kind can be injected into it."""

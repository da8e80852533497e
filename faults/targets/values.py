"""Plain values shared by faults and clusters, such as links, toxics, partitions and client processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NewType

BrokerId = NewType("BrokerId", int)
Channel = Literal["client", "replication", "controller"]
Stream = Literal["upstream", "downstream"]
Outcome = Literal["answered", "closed", "silent"]
BrokerState = Literal["running", "paused", "exited"]
ClientState = Literal["running", "paused", "exited"]
TopicPartition = tuple[str, int]
Resource = Literal["broker", "topic", "client"]
"""Owner of a setting: a broker (by id), a topic, or a client's quotas (by its ``client.id``)."""


@dataclass(frozen=True)
class Link:
    """Network path from ``source_rack`` to one listener of a broker, through one Toxiproxy proxy.

    Between the containers of an attached cluster's brokers no proxy stands: such a link is from one broker, ``source``,
    to another, and ``proxy`` is only its name.
    """

    proxy: str
    channel: Channel
    source_rack: str
    broker: BrokerId
    source: BrokerId | None = None


@dataclass(frozen=True)
class Toxic:
    """Toxic of Toxiproxy, with its attributes by Toxiproxy's names (``latency`` in ms for a latency toxic).

    A toxic ``upstream`` affects requests to the broker, ``downstream`` the responses.
    """

    name: str
    type: str
    stream: Stream
    attributes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Exchange:
    """One request over a probe connection; the other side may have closed or reset it, or sent no data (``silent``)."""

    end: Literal["answered", "closed", "reset", "silent"]
    ms: float
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class PartitionState:
    """State of a partition as the controller reports it; an offline partition has no ``leader``."""

    topic: str
    partition: int
    leader: BrokerId | None
    leader_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]


@dataclass(frozen=True)
class Limits:
    """Limits of a node's container; None means no limit."""

    cpus: float | None
    memory_bytes: int | None


@dataclass(frozen=True)
class ClockShift:
    """Difference of a node's wall clock from true time.

    The clock is ``offset_ms`` ahead, runs at ``rate`` seconds per true second from now on, and is ``strobe_ms`` ahead
    and behind in turn, each for ``every_ms``.
    """

    offset_ms: int = 0
    rate: float = 1.0
    strobe_ms: int = 0
    every_ms: int = 0


@dataclass(frozen=True)
class GcPauses:
    """Garbage collections that stop a node's JVM: one every ``every_ms``, 0 for none.

    Each takes between ``least_ms`` and ``greatest_ms``, drawn from ``seed``.
    """

    every_ms: int = 0
    least_ms: int = 0
    greatest_ms: int = 0
    seed: int = 0


@dataclass(frozen=True)
class FloodLoad:
    """Load by a producer that belongs to no arm: so many bytes/s of records to the topic's partitions in turn."""

    topic: str
    partitions: int
    bytes_per_s: int
    record_size: int
    for_ms: int


DiskOperation = Literal["read", "write", "fsync"]


@dataclass(frozen=True)
class DiskDefects:
    """Defects of a node's disk: operations take longer by a random time around ``delay_ms``, or end with EIO.

    The times are between ``delay_ms - jitter_ms`` and ``delay_ms + jitter_ms``; ``error_share`` is from 0 to 1.
    """

    operations: tuple[DiskOperation, ...] = ()
    delay_ms: int = 0
    jitter_ms: int = 0
    error_share: float = 0.0


@dataclass(frozen=True)
class DiskCounts:
    """Operations of a node's disk since the launch that were delayed, and those that ended with an error."""

    delayed: int
    errors: int


@dataclass(frozen=True)
class LogDamage:
    """Damage to the newest segment of a partition, or to its index of offsets.

    To ``corrupt`` flips all bits of ``bytes`` bytes at nine tenths of the file; to ``truncate`` cuts them off its end.
    """

    topic: str
    partition: int
    file: Literal["segment", "index"]
    action: Literal["corrupt", "truncate"]
    bytes: int


@dataclass(frozen=True)
class PacketChange:
    """What happens to a random ``share`` (0 to 1) of the packets of some links.

    A delay is drawn between ``delay_ms - jitter_ms`` and ``delay_ms + jitter_ms``.
    """

    action: Literal["drop", "delay", "duplicate", "corrupt"]
    share: float
    delay_ms: int = 0
    jitter_ms: int = 0


@dataclass(frozen=True)
class PacketCounts:
    """Packets that crossed a fault's links, those of them that were changed, and counters of TCP at both ends.

    ``tcp`` has the kernels' counters by their names in Linux (RFC 4022, ``/proc/net/snmp`` and ``netstat``), since the
    start, for all connections of the hosts at both ends of the links.
    """

    seen: int
    changed: int
    tcp: Mapping[str, int]


@dataclass(frozen=True)
class Throttling:
    """Counters of the kernel for the CPU quota of a container since its start."""

    periods: int
    throttled: int
    throttled_s: float


@dataclass(frozen=True)
class LogDir:
    """Log directory of a broker; ``bounded`` is True if the log directory has a file system of its own."""

    path: str
    size_bytes: int
    free_bytes: int
    bounded: bool
    writable: bool


@dataclass(frozen=True)
class Setting:
    """Kafka setting, with its value in force and its dynamic value; ``read_only`` settings change only by a restart."""

    value: str | None
    dynamic: str | None
    read_only: bool = False


@dataclass(frozen=True)
class Quorum:
    """Active controller, and the epoch of the metadata quorum in which the node became the active controller."""

    controller: BrokerId
    epoch: int


@dataclass(frozen=True)
class Heartbeat:
    """Status report of a client process; ``ok`` counts successes, ``late_us`` is the p99 of the send schedule's lag.

    ``polls`` is False while a fault keeps a consumer from polling.
    """

    t_us: int
    ok: int
    late_us: int
    polls: bool = True


@dataclass(frozen=True)
class ClientProcess:
    """A client process (worker), which performs one operation of one arm of a workload.

    ``number`` counts the workers of an operation from 1. A worker in ``reserve`` runs only if a fault has started it.
    """

    name: str
    workload: str
    arm: str
    op: Literal["produce", "consume", "commit", "pipe"]
    rack: str
    state: ClientState
    number: int = 1
    reserve: bool = False


@dataclass(frozen=True)
class TransactionState:
    """State of a transactional id by its coordinator, such as ``Ongoing``, with the partitions of its transaction."""

    transactional_id: str
    state: str
    producer_id: int
    epoch: int
    partitions: frozenset[TopicPartition]

    @property
    def in_progress(self) -> bool:
        """True if the coordinator will write markers to the partitions."""
        return self.state in ("Ongoing", "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True)
class OpenTransaction:
    """Transaction that the leader of a partition has open there since ``first_offset``.

    ``coordinator_epoch`` is that of the producer's last marker in the partition, -1 before the first.
    """

    producer_id: int
    epoch: int
    coordinator_epoch: int
    first_offset: int


@dataclass(frozen=True)
class GroupMember:
    """Member of a consumer group as the group's coordinator describes it; ``client`` is the member's ``client.id``.

    ``epoch`` is the member epoch (KIP-848), None in a classic group, ``instance`` the id of a static member (KIP-345).
    """

    client: str
    id: str
    epoch: int | None
    partitions: frozenset[TopicPartition]
    instance: str | None = None


@dataclass(frozen=True)
class Answer:
    """Outcome of a probe of the wire proxy; ``silent`` means that no response came within the limit.

    ``errors`` has all error codes in the response, ``versions`` the highest version of each API in an ApiVersions
    response, ``features`` the finalized level of each feature there. ``throttle_ms`` is the response's throttle time.
    ``epochs`` has the leader epoch of each partition in a Metadata response about one topic.
    """

    outcome: Outcome
    ms: float
    errors: frozenset[int] = frozenset()
    versions: Mapping[str, int] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    throttle_ms: int = 0
    epochs: Mapping[int, int] = field(default_factory=dict)

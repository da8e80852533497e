"""Plain values shared by faults and clusters: nodes, links, toxics, partitions, limits, clients."""

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
    """Network path into one broker: from ``source_rack``, to one of its listeners, through one Toxiproxy proxy."""

    proxy: str
    channel: Channel
    source_rack: str
    broker: BrokerId


@dataclass(frozen=True)
class Toxic:
    """Toxic of Toxiproxy, with its attributes by Toxiproxy's names (``latency`` in ms for a latency toxic).

    ``upstream`` carries traffic from the source to the broker, ``downstream`` the answers.
    """

    name: str
    type: str
    stream: Stream
    attributes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Exchange:
    """One request over a connection of the harness. ``closed``, ``reset``: by the peer; ``silent``: no data in time."""

    end: Literal["answered", "closed", "reset", "silent"]
    ms: float
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class PartitionState:
    """Current state of a partition as the controller reports it. An offline partition has no ``leader``."""

    topic: str
    partition: int
    leader: BrokerId | None
    leader_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]


@dataclass(frozen=True)
class Limits:
    """Resource limits of a node's container; None means no limit."""

    cpus: float | None
    memory_bytes: int | None


@dataclass(frozen=True)
class Throttling:
    """Cumulative figures of the kernel's CPU controller: periods, throttled periods, seconds spent throttled."""

    periods: int
    throttled: int
    throttled_s: float


@dataclass(frozen=True)
class LogDir:
    """A log directory. ``bounded``: on a separate file system, so that filling the directory affects nothing else."""

    path: str
    size_bytes: int
    free_bytes: int
    bounded: bool
    writable: bool


@dataclass(frozen=True)
class Setting:
    """Effective value of a setting, dynamic value of the resource itself, and whether only a node's start reads it."""

    value: str | None
    dynamic: str | None
    read_only: bool = False


@dataclass(frozen=True)
class Quorum:
    """Active controller, and the epoch of the metadata quorum in which the controller became active."""

    controller: BrokerId
    epoch: int


@dataclass(frozen=True)
class Heartbeat:
    """Status report of a worker, written twice a second.

    ``t_us``: time on the run's clock; ``ok``: number of successful operations; ``late_us``: p99 of the delay behind the
    send schedule.
    """

    t_us: int
    ok: int
    late_us: int


@dataclass(frozen=True)
class ClientProcess:
    """A worker: one operation of one arm of a workload. ``name`` is ``<workload>-<arm>-<op>``."""

    name: str
    workload: str
    arm: str
    op: Literal["produce", "consume", "commit"]
    rack: str
    state: ClientState


@dataclass(frozen=True)
class Answer:
    """Outcome and duration of a request: answered, connection closed, or neither within the limit.

    ``errors``: all error codes in the answer; ``versions``: the highest offered version of each API (ApiVersions only).
    """

    outcome: Outcome
    ms: float
    errors: frozenset[int] = frozenset()
    versions: Mapping[str, int] = field(default_factory=dict)

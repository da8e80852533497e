"""The plain values that faults and clusters speak of: nodes, links, toxics, partitions, limits, clients."""

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
"""Whose settings: a broker's by its id, a topic's, or the quotas of a client by its ``client.id``."""


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
class Exchange:
    """One question over a connection of our own: how it ended, after how long, and the bytes that crossed.

    ``closed`` and ``reset`` are the other side's doing; on ``silent`` nothing came in time.
    """

    end: Literal["answered", "closed", "reset", "silent"]
    ms: float
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class PartitionState:
    """A partition as the controller sees it now. ``leader`` is None while the partition is offline."""

    topic: str
    partition: int
    leader: BrokerId | None
    leader_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]


@dataclass(frozen=True)
class Limits:
    """What a node may have of the machine; None: as much as there is."""

    cpus: float | None
    memory_bytes: int | None


@dataclass(frozen=True)
class Throttling:
    """Cumulative figures of the kernel's CPU controller: periods, those throttled, seconds spent throttled."""

    periods: int
    throttled: int
    throttled_s: float


@dataclass(frozen=True)
class LogDir:
    """A log directory. ``bounded``: its size is its own, so filling it hurts nobody else.

    ``writable``: by the broker.
    """

    path: str
    size_bytes: int
    free_bytes: int
    bounded: bool
    writable: bool


@dataclass(frozen=True)
class Setting:
    """A configuration entry: its value in force, and the dynamic one of this very resource if there is one.

    ``read_only``: Kafka takes it only when the node starts.
    """

    value: str | None
    dynamic: str | None
    read_only: bool = False


@dataclass(frozen=True)
class Quorum:
    """The active controller, and the epoch of the metadata quorum since which it is that."""

    controller: BrokerId
    epoch: int


@dataclass(frozen=True)
class SignOfLife:
    """What a worker last said of itself, about twice a second.

    ``t_us``: when, on the run's clock. ``ok``: what has succeeded since it was started. ``late_us``: how far it sends
    behind its schedule (p99).
    """

    t_us: int
    ok: int
    late_us: int


@dataclass(frozen=True)
class ClientProcess:
    """A worker: one arm of a workload doing one thing. ``name`` is ``<workload>-<arm>-<op>``."""

    name: str
    workload: str
    arm: str
    op: Literal["produce", "consume", "commit"]
    rack: str
    state: ClientState


@dataclass(frozen=True)
class Answer:
    """What became of a request, and after how long: answered, hung up on, or neither within its limit.

    ``errors``: all error codes in the answer; ``versions``: the highest one offered of each API (ApiVersions only).
    """

    outcome: Outcome
    ms: float
    errors: frozenset[int] = frozenset()
    versions: Mapping[str, int] = field(default_factory=dict)

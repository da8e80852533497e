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

    A toxic ``upstream`` affects requests to the broker, ``downstream`` the responses.
    """

    name: str
    type: str
    stream: Stream
    attributes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Exchange:
    """One request over a connection of the harness, and its outcome.

    ``closed``, ``reset``: by the other end of the connection; ``silent``: no data in time.
    """

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
    """Resource limits of a node's container; None means no limit."""

    cpus: float | None
    memory_bytes: int | None


@dataclass(frozen=True)
class Throttling:
    """Cumulative figures of the kernel's CPU controller: periods, throttled periods, seconds of throttling."""

    periods: int
    throttled: int
    throttled_s: float


@dataclass(frozen=True)
class LogDir:
    """``bounded``: True if the log directory has its own file system, so that filling it affects nothing else."""

    path: str
    size_bytes: int
    free_bytes: int
    bounded: bool
    writable: bool


@dataclass(frozen=True)
class Setting:
    """Value in force of a Kafka setting, the resource's own dynamic value, and whether a change needs a restart."""

    value: str | None
    dynamic: str | None
    read_only: bool = False


@dataclass(frozen=True)
class Quorum:
    """Active controller, and the quorum's epoch in which the node became the active controller."""

    controller: BrokerId
    epoch: int


@dataclass(frozen=True)
class Heartbeat:
    """Status report of a client process (worker), written twice a second.

    ``t_us``: time on the run's clock; ``ok``: number of successful operations of the client; ``late_us``: p99 of the
    delay behind the send schedule.
    """

    t_us: int
    ok: int
    late_us: int


@dataclass(frozen=True)
class ClientProcess:
    """A client process (worker): one operation of one arm of a workload."""

    name: str
    workload: str
    arm: str
    op: Literal["produce", "consume", "commit"]
    rack: str
    state: ClientState


@dataclass(frozen=True)
class Answer:
    """Outcome and duration of a request: answered, connection closed, or no response within the limit.

    ``errors``: all error codes in the response; ``versions``: the highest offered version of each API (ApiVersions
    only).
    """

    outcome: Outcome
    ms: float
    errors: frozenset[int] = frozenset()
    versions: Mapping[str, int] = field(default_factory=dict)

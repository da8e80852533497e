"""The settings of the reference consumer: Kafka's names and defaults (4.3), and our switches.

What the parts of one consumer share.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

from aftershock.errors import SettingError
from aftershock.workloads.kafka.client.network_client import Brokers
from aftershock.workloads.kafka.client.settings import ClientSettings, choice, flag, number, text
from aftershock.workloads.kafka.client.tasks import Tell
from aftershock.workloads.kafka.consumer.fetch_buffer import FetchBuffer
from aftershock.workloads.kafka.rules.leader_discovery import LeaderDiscovery
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.read_replica import ReadReplicas
from aftershock.workloads.kafka.rules.subscription_state import Positions
from aftershock.workloads.kafka.rules.values import Backoff, TopicPartition
from aftershock.workloads.kafka.wire.codec import FRAME_BYTES_MAX

MEBIBYTE = 1024 * 1024
FETCH_BYTES_MAX = FRAME_BYTES_MAX - 10 * MEBIBYTE
"""The most that ``fetch.max.bytes`` may be here (Kafka: 2 GiB). A longer frame than ``FRAME_BYTES_MAX`` would break the
connection, and be asked for again; an answer has its own fields and, when a broker goes over, a batch besides."""


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    """What a consumer has. ``fetch_session`` (KIP-227) and ``read_replica`` (KIP-392) switch one rule each.

    Kafka's own switch of KIP-392 is whether ``client.rack`` is given; with ``read_replica`` off the rack isn't told.
    """

    group_id: str | None = text(None)
    group_remote_assignor: str | None = text(None)
    auto_offset_reset: Literal["earliest", "latest", "none"] = choice(
        "latest", {name: name for name in ("earliest", "latest", "none")}
    )
    enable_auto_commit: bool = flag(default=True)
    auto_commit_interval_ms: int = number(5_000, 1)
    default_api_timeout_ms: int = number(60_000, 1)
    fetch_min_bytes: int = number(1)
    fetch_max_bytes: int = number(50 * MEBIBYTE, most=FETCH_BYTES_MAX)
    fetch_max_wait_ms: int = number(500)
    max_partition_fetch_bytes: int = number(MEBIBYTE)
    max_poll_records: int = number(500, 1)
    max_poll_interval_ms: int = number(300_000, 1)
    check_crcs: bool = flag(default=True)
    fetch_session: bool = flag(default=True)
    read_replica: bool = flag(default=True)

    def __post_init__(self) -> None:
        """``SettingError`` for settings that contradict one another."""
        if self.request_timeout_ms <= self.fetch_max_wait_ms:
            raise SettingError(
                f"request.timeout.ms is {self.request_timeout_ms}, not above fetch.max.wait.ms "
                f"({self.fetch_max_wait_ms}): every idle fetch would time out; raise it"
            )


class Shared(NamedTuple):
    """One consumer's. ``on_change`` wakes its loop; ``clock_ms`` is the event loop's time."""

    settings: ConsumerSettings
    brokers: Brokers
    metadata: Metadata
    discovery: LeaderDiscovery
    positions: Positions
    replicas: ReadReplicas
    buffer: FetchBuffer
    backoff: Backoff
    clock_ms: Callable[[], float]
    tell: Tell
    on_change: Callable[[], None]

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Have these partitions and no others; nothing stays of those that go: neither data nor a lease."""
        gone = set(self.positions).difference(partitions)
        self.positions.assign(partitions)
        self.buffer.drop(gone)
        self.replicas.forget(gone)

"""Settings of the reference consumer, and the objects that the consumer's components share."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

from aftershock.errors import SettingError
from aftershock.workloads.kafka.client.network_client import NetworkClient
from aftershock.workloads.kafka.client.settings import ClientSettings, choice, flag, number, text
from aftershock.workloads.kafka.client.tasks import EventListener
from aftershock.workloads.kafka.consumer.fetch_buffer import FetchBuffer
from aftershock.workloads.kafka.rules.leader_discovery import LeaderDiscovery
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.read_replica import ReadReplicas
from aftershock.workloads.kafka.rules.subscription_state import SubscriptionState
from aftershock.workloads.kafka.rules.values import Backoff, TopicPartition
from aftershock.workloads.kafka.wire.codec import FRAME_BYTES_MAX

MEBIBYTE = 1024 * 1024
FETCH_BYTES_MAX = FRAME_BYTES_MAX - 10 * MEBIBYTE
"""Upper limit of ``fetch.max.bytes`` (Kafka: 2 GiB), because a response above ``FRAME_BYTES_MAX`` breaks the
connection; a response also has other fields and, if its first batch exceeds the limit, one larger batch."""


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    """Settings of a reference consumer; ``fetch_session`` switches KIP-227 on or off, and ``read_replica`` KIP-392."""

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
        if self.request_timeout_ms <= self.fetch_max_wait_ms:
            raise SettingError(
                f"request.timeout.ms is {self.request_timeout_ms}, not above fetch.max.wait.ms "
                f"({self.fetch_max_wait_ms}): every idle fetch would time out; raise request.timeout.ms"
            )


class ConsumerContext(NamedTuple):
    """Objects that a consumer's components share; ``on_change`` wakes the consumer."""

    settings: ConsumerSettings
    brokers: NetworkClient
    metadata: Metadata
    discovery: LeaderDiscovery
    positions: SubscriptionState
    replicas: ReadReplicas
    buffer: FetchBuffer
    backoff: Backoff
    clock_ms: Callable[[], float]
    on_event: EventListener
    on_change: Callable[[], None]

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Replace the assigned partitions; drop the fetched data of partitions that are no longer assigned."""
        removed = set(self.positions).difference(partitions)
        self.positions.assign(partitions)
        self.buffer.drop(removed)
        self.replicas.forget(removed)

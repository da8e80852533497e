"""Settings of the reference consumer, and the objects that the consumer's components share."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from aftershock.errors import SettingError
from aftershock.workloads.kafka.client.network_client import NetworkClient
from aftershock.workloads.kafka.client.settings import ClientSettings, choice, flag, number, text
from aftershock.workloads.kafka.client.tasks import EventListener
from aftershock.workloads.kafka.consumer.fetch_buffer import FetchBuffer
from aftershock.workloads.kafka.rules.assignors import ASSIGNORS
from aftershock.workloads.kafka.rules.leader_discovery import LeaderDiscovery
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.read_replica import ReadReplicas
from aftershock.workloads.kafka.rules.subscription_state import SubscriptionState
from aftershock.workloads.kafka.rules.values import Backoff, TopicPartition
from aftershock.workloads.kafka.wire.codec import FRAME_BYTES_MAX

Topics = Sequence[str] | re.Pattern[str]
"""Topics that a consumer subscribes to by name, or a pattern that the whole names of the topics match."""
READ_COMMITTED = 1
MEBIBYTE = 1024 * 1024
FETCH_BYTES_MAX = FRAME_BYTES_MAX - 10 * MEBIBYTE
"""Upper limit of ``fetch.max.bytes`` (Kafka: 2 GiB), because a response above ``FRAME_BYTES_MAX`` breaks the
connection; a response also has other fields and, if its first batch exceeds the limit, one larger batch."""

_ASSIGNOR_CLASSES = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
_JAVA_PACKAGE = "org.apache.kafka.clients.consumer."
_INSTANCE_ID = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_CLASSIC_ONLY = ("partition_assignment_strategy", "session_timeout_ms", "heartbeat_interval_ms")


def _assignors(value: object) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items:
        raise TypeError(f"give one or several of {', '.join(ASSIGNORS)}, with commas between them")
    names = []
    for item in items:
        name = str(item).strip().removeprefix(_JAVA_PACKAGE)
        name = _ASSIGNOR_CLASSES.get(name, name)
        if name not in ASSIGNORS:
            raise ValueError(f"this client has no assignor {name!r}; give one or several of {', '.join(ASSIGNORS)}")
        if name in names:
            raise ValueError(f"it has the assignor {name} twice; remove one of the two")
        names.append(name)
    return tuple(names)


def _instance_id(value: object) -> str | None:
    if not isinstance(value, str):
        raise TypeError("give text")
    if value and (value in {".", ".."} or not _INSTANCE_ID.fullmatch(value)):
        raise ValueError("give up to 249 letters, digits, dots, hyphens and underscores, but not . or ..")
    return value or None


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    """Settings of a reference consumer; ``fetch_session`` switches KIP-227 on or off, and ``read_replica`` KIP-392.

    ``group_protocol`` is ``consumer`` by default (KIP-848), ``classic`` by default in Kafka.
    """

    group_id: str | None = text(None)
    group_protocol: Literal["consumer", "classic"] = choice(
        "consumer", {name: name for name in ("consumer", "classic")}
    )
    group_remote_assignor: str | None = text(None)
    group_instance_id: str | None = field(default=None, metadata={"read": _instance_id})
    partition_assignment_strategy: tuple[str, ...] = field(
        default=("range", "cooperative-sticky"), metadata={"read": _assignors}
    )
    session_timeout_ms: int = number(45_000, 1)
    heartbeat_interval_ms: int = number(3_000, 1)
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
    isolation_level: int = choice(0, {"read_uncommitted": 0, "read_committed": READ_COMMITTED})
    check_crcs: bool = flag(default=True)
    fetch_session: bool = flag(default=True)
    read_replica: bool = flag(default=True)

    def __post_init__(self) -> None:
        if self.request_timeout_ms <= self.fetch_max_wait_ms:
            raise SettingError(
                f"request.timeout.ms is {self.request_timeout_ms}, not above fetch.max.wait.ms "
                f"({self.fetch_max_wait_ms}): every idle fetch would time out; raise request.timeout.ms"
            )
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise SettingError(
                f"heartbeat.interval.ms is {self.heartbeat_interval_ms}, not below session.timeout.ms "
                f"({self.session_timeout_ms}): the session would time out between two heartbeats; lower "
                "heartbeat.interval.ms"
            )
        if self.group_instance_id is not None and self.group_id is None:
            raise SettingError("group.instance.id needs a group: set group.id, or remove group.instance.id")

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raise SettingError for a setting of the other group protocol (``ConsumerConfig``); imply no defaults."""
        protocol = values.get("group_protocol", "consumer")
        foreign = _CLASSIC_ONLY if protocol == "consumer" else ("group_remote_assignor",)
        for name in foreign:
            if values.get(name) is not None:
                other = "classic" if protocol == "consumer" else "consumer"
                raise SettingError(
                    f"{name.replace('_', '.')} has no effect with group.protocol={protocol}: remove it, or set "
                    f"group.protocol={other}"
                )
        return {}


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

"""Settings of the reference clients, with names (``_`` for ``.``) and defaults of Kafka 4.3, and further switches."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import nan
from typing import Any, Literal, TypeVar

from aftershock.errors import SettingError
from aftershock.workloads.kafka.rules.leader_discovery import LeaderDiscoverySwitches
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.kafka.wire.security import PLAINTEXT, Security

INT32_MAX = 2**31 - 1
S = TypeVar("S", bound="ClientSettings")


def parse(cls: type[S], settings: Mapping[str, object]) -> S:
    """Parse settings, named as in Kafka (``linger.ms``) or as fields (``linger_ms``), into an instance of ``cls``.

    Raises SettingError if a setting's name is unknown, its value is invalid, or two settings contradict each other.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values = {}
    for name, value in settings.items():
        field_name = name.replace(".", "_")
        if field_name not in fields:
            nearest = "".join(get_close_matches(field_name, list(fields), n=1, cutoff=0.0)).replace("_", ".")
            raise SettingError(f"the client has no setting {name}; the nearest is {nearest}")
        try:
            values[field_name] = fields[field_name].metadata["read"](value)
        except (TypeError, ValueError) as error:
            raise SettingError(f"the setting {name} can't be {value!r}: {error}") from error
    if "bootstrap_servers" not in values:
        raise SettingError(
            "bootstrap.servers is missing; set bootstrap.servers to host:port, or to several "
            "addresses separated by commas"
        )
    return cls(**{**cls.implied(values), **values})


def number(default: float, least: float = 0, most: float = INT32_MAX) -> Any:
    """Return a dataclass field for a number of the same type as ``default``, from ``least`` to ``most``."""
    kind, name = type(default), "an integer" if isinstance(default, int) else "a number"

    def read(value: object) -> float:
        try:
            parsed = nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]  # TypeError is handled
        except (TypeError, ValueError):
            parsed = nan
        if not least <= parsed <= most or kind(parsed) != parsed:
            raise ValueError(f"give {name} from {least} to {most}")
        return kind(parsed)

    return dataclasses.field(default=default, metadata={"read": read})


def flag(*, default: bool) -> Any:
    """Return a dataclass field for a boolean setting, whose value may be the text ``true`` or ``false``."""
    return choice(default, {"true": True, "false": False})


def choice(default: object, values: Mapping[str, object]) -> Any:
    """Return a dataclass field for a setting whose value must be a key of ``values`` in any case."""

    def read(value: object) -> object:
        key = str(value).lower()
        if key not in values:
            raise ValueError(f"give one of {', '.join(values)}")
        return values[key]

    return dataclasses.field(default=default, metadata={"read": read})


def text(default: str | None) -> Any:
    """Return a dataclass field for a text setting; empty text becomes the default."""

    def read(value: object) -> str | None:
        if not isinstance(value, str):
            raise TypeError("give text")
        return value or default

    return dataclasses.field(default=default, metadata={"read": read})


def _security(value: object) -> Security:
    if not isinstance(value, Security):
        raise TypeError("the value must be an instance of wire.security.Security")
    return value


def _addresses(value: object) -> tuple[Address, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items:
        raise TypeError("give an address as host:port, or several addresses with commas between them")
    addresses = []
    for item in items:
        host, colon, port = ("", "", "") if isinstance(item, Address) else str(item).strip().rpartition(":")
        if isinstance(item, Address):
            addresses.append(item)
        elif colon and host and port.isdigit():
            addresses.append(Address.checked(host.strip("[]"), int(port)))
        else:
            raise ValueError(f"{str(item).strip()!r} is not host:port")
    return tuple(addresses)


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Settings of all reference clients.

    ``security`` stands for Kafka's settings ``security.protocol``, ``sasl.*`` and ``ssl.*``. With
    ``metadata_own_connection``, which Kafka lacks, a late Metadata response delays no other response.
    """

    bootstrap_servers: tuple[Address, ...] = dataclasses.field(metadata={"read": _addresses})
    client_id: str = text("aftershock")
    client_rack: str | None = text(None)
    security: Security = dataclasses.field(default=PLAINTEXT, metadata={"read": _security})
    request_timeout_ms: int = number(30_000, 1)
    retry_backoff_ms: int = number(100, 1)
    retry_backoff_max_ms: int = number(1_000, 1)
    reconnect_backoff_ms: int = number(50, 1)
    reconnect_backoff_max_ms: int = number(1_000, 1)
    socket_connection_setup_timeout_ms: int = number(10_000, 1)
    connections_max_idle_ms: int = number(540_000, 1)
    metadata_max_age_ms: int = number(300_000, 1)
    metadata_recovery_rebootstrap_trigger_ms: int = number(300_000)
    metadata_own_connection: bool = flag(default=False)
    leader_discovery: LeaderDiscoverySwitches = dataclasses.field(
        default=LeaderDiscoverySwitches(), metadata={"read": LeaderDiscoverySwitches.of}
    )

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG003  # used by subclasses
        """Return defaults that depend on the settings in ``values``."""
        return {}


@dataclass(frozen=True, kw_only=True)
class ProducerSettings(ClientSettings):
    """Settings of a reference producer.

    ``partitioner`` is ``adaptive`` (KIP-794, Kafka's default), ``uniform`` (KIP-794 without adaptive weights),
    ``availability`` (KIP-794 with the availability timeout) or ``sticky`` (KIP-480). ``switch`` is when the partition
    changes: ``delayed`` (as Kafka ships it, KAFKA-14156) or ``sharp`` (as in KIP-794's text).
    """

    acks: int = choice(-1, {"all": -1, "-1": -1, "1": 1, "0": 0})
    enable_idempotence: bool = flag(default=True)
    retries: int = number(INT32_MAX)
    max_in_flight_requests_per_connection: int = number(5, 1)
    linger_ms: float = number(5.0)
    batch_size: int = number(16_384)
    buffer_memory: int = number(32 * 1024 * 1024)
    max_request_size: int = number(1024 * 1024)
    max_block_ms: int = number(60_000)
    delivery_timeout_ms: int = number(120_000)
    compression_type: str = choice("none", {name: name for name in ("none", "gzip", "snappy", "lz4", "zstd")})
    partitioner: Literal["sticky", "uniform", "adaptive", "availability"] = choice(
        "adaptive", {name: name for name in ("sticky", "uniform", "adaptive", "availability")}
    )
    switch: Literal["delayed", "sharp"] = choice("delayed", {name: name for name in ("delayed", "sharp")})
    partitioner_availability_timeout_ms: int = number(0)
    partitioner_ignore_keys: bool = flag(default=False)
    partitioner_rack_aware: bool = flag(default=False)
    transactional_id: str | None = text(None)
    transaction_timeout_ms: int = number(60_000, 1)

    def __post_init__(self) -> None:
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise SettingError(
                f"delivery.timeout.ms is {self.delivery_timeout_ms}, less than linger.ms + request.timeout.ms "
                f"({self.linger_ms} + {self.request_timeout_ms}): raise delivery.timeout.ms, or lower "
                "request.timeout.ms"
            )
        if self.transactional_id is not None and not self.enable_idempotence:
            raise SettingError("transactional.id needs idempotence: remove enable.idempotence, or transactional.id")
        requirements = {
            "acks=all": self.acks != -1,
            "retries above 0": self.retries == 0,
            "max.in.flight.requests.per.connection of at most 5": self.max_in_flight_requests_per_connection > 5,  # noqa: PLR2004  # batches that a broker remembers per producer
        }
        for requirement, is_violated in requirements.items():
            if self.enable_idempotence and is_violated:
                raise SettingError(
                    f"enable.idempotence needs {requirement}: change that setting, or switch enable.idempotence off"
                )

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the default of ``enable_idempotence``, False if other settings exclude idempotence, as in Kafka."""
        fits = values.get("acks", -1) == -1 and values.get("retries", 1) > 0
        return {"enable_idempotence": fits and values.get("max_in_flight_requests_per_connection", 5) <= 5}  # noqa: PLR2004

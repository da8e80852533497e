from dataclasses import fields
from typing import Any

import pytest

from aftershock.errors import SettingError
from aftershock.workloads.kafka.client.settings import ClientSettings, ProducerSettings, parse
from aftershock.workloads.kafka.rules.leader_discovery import LeaderDiscoverySwitches
from aftershock.workloads.kafka.wire.connection import Address

HOST = {"bootstrap.servers": "h:1"}


def producer(**changes: object) -> ProducerSettings:
    return parse(ProducerSettings, HOST | changes)


KAFKA_4_3 = {
    "acks": -1,
    "batch.size": 16384,
    "buffer.memory": 33554432,
    "compression.type": "none",
    "connections.max.idle.ms": 540000,
    "delivery.timeout.ms": 120000,
    "enable.idempotence": True,
    "linger.ms": 5,
    "max.block.ms": 60000,
    "max.in.flight.requests.per.connection": 5,
    "max.request.size": 1048576,
    "metadata.max.age.ms": 300000,
    "partitioner.availability.timeout.ms": 0,
    "partitioner.ignore.keys": False,
    "reconnect.backoff.max.ms": 1000,
    "reconnect.backoff.ms": 50,
    "request.timeout.ms": 30000,
    "retries": 2147483647,
    "retry.backoff.max.ms": 1000,
    "retry.backoff.ms": 100,
    "socket.connection.setup.timeout.ms": 10000,
}


def test_defaults_are_kafkas() -> None:
    """Every setting that Kafka's producer also has, has the default of Kafka 4.3 (ProducerConfig)."""
    settings = producer()
    assert {name: getattr(settings, name.replace(".", "_")) for name in KAFKA_4_3} == KAFKA_4_3


@pytest.mark.parametrize("name", ["linger.ms", "linger_ms"])
def test_dots_and_underscores_are_equivalent(name: str) -> None:
    assert 7 == producer(**{name: 7}).linger_ms


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        ("linger.ms", "2.5", 2.5),
        ("batch.size", "100", 100),
        ("acks", "all", -1),
        ("acks", "ALL", -1),
        ("acks", -1, -1),
        ("enable.idempotence", "True", True),
        ("enable.idempotence", False, False),
        ("client.rack", "", None),
        ("client.rack", "b", "b"),
        ("compression.type", "ZSTD", "zstd"),
        ("bootstrap.servers", "a:1, b:2", (Address("a", 1), Address("b", 2))),
        ("bootstrap.servers", "[::1]:9092", (Address("::1", 9092),)),
        ("bootstrap.servers", [Address("a", 1)], (Address("a", 1),)),
        ("leader.discovery", "metadata", LeaderDiscoverySwitches.of("metadata")),
        ("leader.discovery", {"hints": False}, LeaderDiscoverySwitches(hints=False)),
    ],
)
def test_text_is_parsed_by_the_settings_type(name: str, given: object, read: object) -> None:
    """As a plan or a properties file has it."""
    assert read == getattr(producer(**{name: given}), name.replace(".", "_"))


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("linger.ms", "soon", "a number"),
        ("linger.ms", -1, "from 0"),
        ("linger.ms", True, "a number"),
        ("batch.size", 1.5, "an integer"),
        ("batch.size", "many", "an integer"),
        ("batch.size", 2**31, "to 2147483647"),
        ("retry.backoff.ms", 0, "from 1"),
        ("acks", 2, "all, -1, 1, 0"),
        ("acks", True, "all"),
        ("enable.idempotence", "yes", "true, false"),
        ("compression.type", "brotli", "zstd"),
        ("compression.type", ["gzip"], "gzip"),
        ("client.id", 5, "text"),
        ("bootstrap.servers", "nowhere", "'nowhere' is not host:port"),
        ("bootstrap.servers", "h:70000", "from 1 to 65535"),
        ("bootstrap.servers", "h:0", "from 1 to 65535"),
        ("bootstrap.servers", "a..b:9092", "'a..b' is not a host name"),
        ("bootstrap.servers", "", "host:port"),
        ("bootstrap.servers", 9092, "host:port"),
        ("partitioner", "random", "sticky, uniform, adaptive, availability"),
        ("switch", "late", "delayed, sharp"),
        ("leader.discovery", "sometimes", "response, metadata"),
    ],
)
def test_invalid_values_are_refused(name: str, given: object, says: str) -> None:
    """The error names the setting, the value, and valid values."""
    with pytest.raises(SettingError) as refused:
        producer(**{name: given})
    assert says in str(refused.value)
    assert f"{name} can't be {given!r}" in str(refused.value).replace("leader_", "leader.")


@pytest.mark.parametrize(("name", "nearest"), [("linger", "linger.ms"), ("batch_sizes", "batch.size"), ("ack", "acks")])
def test_an_unknown_setting_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(SettingError, match=f"no setting {name}; the nearest is {nearest}"):
        producer(**{name: 1})


def test_bootstrap_servers_are_required() -> None:
    with pytest.raises(SettingError, match=r"bootstrap\.servers"):
        parse(ProducerSettings, {})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"delivery.timeout.ms": 30_000}, "delivery.timeout.ms is 30000, less than linger.ms"),
        ({"enable.idempotence": True, "acks": 1}, "enable.idempotence needs acks=all"),
        ({"enable.idempotence": True, "retries": 0}, "retries above 0"),
        ({"enable.idempotence": True, "max.in.flight.requests.per.connection": 6}, "at most 5"),
    ],
)
def test_contradicting_settings_are_refused(changes: dict[str, Any], says: str) -> None:
    """As in ProducerConfig: explicitly set values must fit together."""
    with pytest.raises(SettingError, match=says):
        producer(**changes)


@pytest.mark.parametrize("changes", [{"acks": 1}, {"retries": 0}, {"max.in.flight.requests.per.connection": 6}])
def test_idempotence_is_disabled_implicitly(changes: dict[str, Any]) -> None:
    """If idempotence is not set explicitly and other settings exclude it, it is off, as in Kafka."""
    assert producer().enable_idempotence
    assert not producer(**changes).enable_idempotence


@pytest.mark.parametrize("cls", [ClientSettings, ProducerSettings])
def test_every_setting_can_be_parsed(cls: type[ClientSettings]) -> None:
    """Each field has a parser, and its own default parses to itself."""
    settings = parse(cls, HOST)
    for field in fields(cls):
        value = getattr(settings, field.name)
        if value is not None:
            assert value == field.metadata["read"](value)

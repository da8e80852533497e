"""The consumer's settings: Kafka's names, defaults and contradictions."""

import pytest

from aftershock.errors import SettingError
from aftershock.workloads.kafka.client.settings import parse
from aftershock.workloads.kafka.consumer.shared import FETCH_BYTES_MAX, ConsumerSettings
from aftershock.workloads.kafka.wire.codec import FRAME_BYTES_MAX

HERE = {"bootstrap.servers": "h:1"}


def test_defaults_are_kafkas() -> None:
    """Kafka 4.3's."""
    told = parse(ConsumerSettings, HERE)
    assert ("latest", True, 5000, 500, 1, 50 * 2**20, 2**20, 500, True) == (
        told.auto_offset_reset,
        told.enable_auto_commit,
        told.auto_commit_interval_ms,
        told.fetch_max_wait_ms,
        told.fetch_min_bytes,
        told.fetch_max_bytes,
        told.max_partition_fetch_bytes,
        told.max_poll_records,
        told.check_crcs,
    )


def test_either_spelling_and_ablation_switches() -> None:
    """Dots or underscores; the two ablation switches are settings like any other."""
    told = parse(ConsumerSettings, HERE | {"group.id": "g", "fetch_session": False, "read.replica": "false"})
    assert ("g", False, False) == (told.group_id, told.fetch_session, told.read_replica)


def test_group_defaults_are_kafkas_except_the_protocol() -> None:
    """KIP-848 groups are the default of this client, classic groups that of Kafka."""
    told = parse(ConsumerSettings, HERE)
    assert ("consumer", ("range", "cooperative-sticky"), None, 45_000, 3_000) == (
        told.group_protocol,
        told.partition_assignment_strategy,
        told.group_instance_id,
        told.session_timeout_ms,
        told.heartbeat_interval_ms,
    )


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("range", ("range",)),
        ("sticky, roundrobin", ("sticky", "roundrobin")),
        (["cooperative-sticky"], ("cooperative-sticky",)),
        (
            "org.apache.kafka.clients.consumer.RangeAssignor,org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
            ("range", "cooperative-sticky"),
        ),
        (
            "org.apache.kafka.clients.consumer.RoundRobinAssignor,org.apache.kafka.clients.consumer.StickyAssignor",
            ("roundrobin", "sticky"),
        ),
    ],
)
def test_assignors_have_the_names_of_kafka_or_librdkafka(said: object, names: tuple[str, ...]) -> None:
    """Kafka's setting has class names, librdkafka's the names that the group protocol uses."""
    told = parse(ConsumerSettings, HERE | {"group.protocol": "classic", "partition.assignment.strategy": said})
    assert names == told.partition_assignment_strategy


CLASSIC = {"group.protocol": "classic"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"group.protocol": "newest"}, "give one of consumer, classic"),
        ({"partition.assignment.strategy": "range"}, r"remove it, or set group\.protocol=classic"),
        ({"session.timeout.ms": 10_000}, r"session\.timeout\.ms has no effect with group\.protocol=consumer"),
        ({"heartbeat.interval.ms": 1_000}, r"heartbeat\.interval\.ms has no effect"),
        (CLASSIC | {"group.remote.assignor": "uniform"}, r"remove it, or set group\.protocol=consumer"),
        (CLASSIC | {"partition.assignment.strategy": "mine"}, "no assignor 'mine'"),
        (CLASSIC | {"partition.assignment.strategy": "range,RangeAssignor"}, "assignor range twice"),
        (CLASSIC | {"partition.assignment.strategy": []}, "give one or several of range, roundrobin, sticky, coop"),
        (CLASSIC | {"heartbeat.interval.ms": 45_000}, r"not below session\.timeout\.ms"),
        ({"group.instance.id": "i"}, r"group\.instance\.id needs a group: set group\.id"),
        ({"group.id": "g", "group.instance.id": "a b"}, "up to 249 letters"),
        ({"group.id": "g", "group.instance.id": ".."}, "up to 249 letters"),
        ({"group.id": "g", "group.instance.id": 7}, "give text"),
        ({"auto.offset.reset": "middle"}, "auto.offset.reset"),
        ({"fetch.max.wait": 3}, "fetch.max.wait.ms"),
        ({"request.timeout.ms": 500}, "fetch.max.wait.ms"),
        ({"max.poll.records": 0}, "max.poll.records"),
        ({"fetch.max.bytes": FETCH_BYTES_MAX + 1}, "fetch.max.bytes"),
    ],
)
def test_invalid_settings_are_refused_with_a_remedy(changes: dict[str, object], text: str) -> None:
    """An unknown name, a value out of range, and two settings that contradict one another."""
    with pytest.raises(SettingError, match=text):
        parse(ConsumerSettings, HERE | changes)


def test_the_largest_fetch_response_fits_a_frame() -> None:
    """With room for a batch of Kafka's default size beyond the limit: a larger response would be refused for ever."""
    assert FETCH_BYTES_MAX == parse(ConsumerSettings, HERE | {"fetch.max.bytes": FETCH_BYTES_MAX}).fetch_max_bytes
    assert 2**20 < FRAME_BYTES_MAX - FETCH_BYTES_MAX

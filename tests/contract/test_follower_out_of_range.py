"""KIP-392's four cases of an offset that a follower can't serve, by Fetch to the follower itself (docs/kips/kip392.md).

A consumer with a lease never fetches ahead of its position, so no run of a plan meets cases 1, 2 and 4.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v9 import request as offsets

from aftershock.errors import AdminError
from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.faults.targets.values import BrokerId, Toxic
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.kafka.admin import BROKER, still_lacking
from aftershock.harness.kafka.replicas import fetch_from
from aftershock.harness.kafka.settings import create_topic_on
from aftershock.tests.contract.conftest import Launch

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

LEADER, NEAR, FAR = BrokerId(1), BrokerId(2), BrokerId(3)
FAR_LINK, SLOW = "replication_c-k1", "slow"
CONFIG = {"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "500"}
WRITTEN = 3
"""Records of each topic at the start of its test, on all three brokers."""
OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
EARLIEST = -2


@pytest.fixture(scope="module")
def brokers(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three racks, with retention checks twice a second."""
    with launch(ClusterPlan(config=CONFIG), tmp_path_factory.mktemp("followers")) as cluster:
        yield cluster


@pytest.fixture
def topic(brokers: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of the test, led from rack a."""
    name = str(request.node.name)
    create_topic_on(brokers.admin, name, {0: (LEADER, NEAR, FAR)}, {})
    brokers.await_in_sync(30.0, [name])
    write(brokers, name, WRITTEN)
    for broker in (NEAR, FAR):
        becomes(brokers, name, broker, WRITTEN - 1, "records", 10.0)
    return name


def write(cluster: Cluster, topic: str, records: int, acks: str = "all") -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap("a"), "acks": acks, "linger.ms": 0})
    for number in range(records):
        producer.produce(topic, b"%d" % number, partition=0)
    assert 0 == producer.flush(30)


def answered(cluster: Cluster, topic: str, broker: BrokerId, at: int) -> str:
    """Return a broker's response to a Fetch at an offset: ``records``, ``nothing``, or the error."""
    try:
        answer: Any = fetch_from(cluster.admin, broker, (topic, 0), at, no_wait=True)
    except AdminError as error:
        return error.code
    return "records" if answer.records else "nothing"


def becomes(cluster: Cluster, topic: str, broker: BrokerId, at: int, what: str, deadline_s: float) -> None:
    """Wait until that is the response."""

    def lacking() -> str:
        said = answered(cluster, topic, broker, at)
        return "" if said == what else f"k{broker} answered {said}"

    assert "" == still_lacking(lacking, deadline_s)


@contextmanager
def far_hears_later(cluster: Cluster, delay_ms: int) -> Iterator[None]:
    """Delay the far follower's replication."""
    cluster.toxiproxy.add_toxic(FAR_LINK, Toxic(SLOW, "latency", "downstream", {"latency": delay_ms}))
    try:
        yield
    finally:
        cluster.toxiproxy.remove_toxic(FAR_LINK, SLOW)


def in_sync(cluster: Cluster, topic: str) -> set[int]:
    (state,) = cluster.admin.partitions([topic])
    return set(state.isr)


def earliest_from(cluster: Cluster, topic: str, broker: BrokerId) -> ErrorCode:
    """Return the log start that a broker reports."""
    partition = offsets.ListOffsetsPartition(partition_index=cast("Any", 0), timestamp=cast("Any", EARLIEST))
    asked = offsets.ListOffsetsTopic(name=cast("Any", topic), partitions=(partition,))
    request = offsets.ListOffsetsRequest(replica_id=cast("Any", -1), isolation_level=cast("Any", 0), topics=(asked,))
    error: ErrorCode = cluster.admin.ask(request, only=broker).topics[0].partitions[0].error_code
    return error


def test_uncommitted_records_are_not_served(brokers: Cluster, topic: str) -> None:
    """Case 1: the near follower has the records, the far one of the ISR doesn't yet: no error, and no records."""
    last = WRITTEN + 1
    with far_hears_later(brokers, 3_000):
        write(brokers, topic, 2, acks="1")
        # The last record's offset is out of range until the follower has it.
        becomes(brokers, topic, NEAR, last, "nothing", 2.0)
        assert {LEADER, NEAR, FAR} == in_sync(brokers, topic)
    becomes(brokers, topic, NEAR, last, "records", 10.0)


def test_committed_records_that_the_follower_lacks(brokers: Cluster, topic: str) -> None:
    """Case 2: a follower out of the ISR lags committed records, and answers out of range; the leader has them.

    Case 4, an offset that no broker has, looks the same at the follower: the client must use the leader.
    """
    with far_hears_later(brokers, 20_000):
        write(brokers, topic, 2, acks="1")  # A follower that has every record never lags.
        assert "" == still_lacking(lambda: "" if FAR not in in_sync(brokers, topic) else "in sync", 15.0)
        committed, nobodys = WRITTEN + 1, 1000
        assert ("records", OUT_OF_RANGE) == tuple(answered(brokers, topic, k, committed) for k in (LEADER, FAR))
        assert (OUT_OF_RANGE, OUT_OF_RANGE) == tuple(answered(brokers, topic, k, nobodys) for k in (LEADER, FAR))
    brokers.await_in_sync(40.0)


def test_an_offset_before_the_followers_log_start(brokers: Cluster, topic: str) -> None:
    """Case 3: each broker applies retention itself: the leader has records that a follower has deleted."""
    brokers.admin.alter_configs(BROKER, str(NEAR), {"log.retention.ms": "1"})
    try:
        becomes(brokers, topic, NEAR, 0, OUT_OF_RANGE, 20.0)
        assert "records" == answered(brokers, topic, LEADER, 0)
        assert ErrorCode.not_leader_or_follower == earliest_from(brokers, topic, NEAR)
        assert ErrorCode.none == earliest_from(brokers, topic, LEADER)
    finally:
        brokers.admin.alter_configs(BROKER, str(NEAR), {"log.retention.ms": None})

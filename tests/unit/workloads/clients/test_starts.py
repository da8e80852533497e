"""Where a consumer begins, on librdkafka's mock cluster."""

from contextlib import closing

from confluent_kafka import Consumer, Producer, TopicPartition

from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.clients.conformance.mock_cluster import PARTITIONS
from aftershock.workloads.clients.starts import settle_starts


def fill(bench: Bench) -> dict[int, int]:
    """Partition n gets n records; where each ends."""
    producer = Producer({"bootstrap.servers": bench._common["bootstrap"]})
    for number in range(PARTITIONS):
        for _ in range(number):
            producer.produce(bench.topic, b"x", partition=number)
    assert producer.flush(20) == 0
    return {number: number for number in range(PARTITIONS)}


def committed(bench: Bench, group: str) -> dict[int, int]:
    config = {"bootstrap.servers": bench._common["bootstrap"], "group.id": group}
    with closing(Consumer(config)) as consumer:
        found = consumer.committed([TopicPartition(bench.topic, number) for number in range(PARTITIONS)], timeout=20)
    return {one.partition: one.offset for one in found if one.offset >= 0}


def test_without_a_group(live_bench: Bench) -> None:
    """The beginnings or the ends as they are now; another library's settings don't matter."""
    ends = fill(live_bench)
    assert settle_starts(live_bench.consume(settings={"no.such.setting": 1})) == dict.fromkeys(range(PARTITIONS), 0)
    assert settle_starts(live_bench.consume(from_="latest")) == ends


def test_a_new_group_that_begins_at_the_end_has_that_committed(live_bench: Bench) -> None:
    """So that it doesn't begin wherever the end is by the time its members read; at the beginning it needs nothing."""
    ends = fill(live_bench)
    assert settle_starts(live_bench.consume(group=f"{live_bench.topic}-e")) == dict.fromkeys(range(PARTITIONS), 0)
    assert committed(live_bench, f"{live_bench.topic}-e") == {}
    assert settle_starts(live_bench.consume(group=f"{live_bench.topic}-l", from_="latest")) == ends
    assert committed(live_bench, f"{live_bench.topic}-l") == ends


def test_a_group_that_has_read_goes_on(live_bench: Bench) -> None:
    """What it has committed goes before ``from``, for the partitions that it has committed."""
    ends, group = fill(live_bench), f"{live_bench.topic}-g"
    config = {"bootstrap.servers": live_bench._common["bootstrap"], "group.id": group}
    with closing(Consumer(config)) as consumer:
        consumer.commit(offsets=[TopicPartition(live_bench.topic, 3, 1)], asynchronous=False)
    assert settle_starts(live_bench.consume(group=group, from_="latest")) == ends | {3: 1}

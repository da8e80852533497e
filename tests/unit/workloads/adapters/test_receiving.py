"""Start positions and foreign records, on librdkafka's mock cluster."""

import time
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.adapters import receiving
from aftershock.workloads.adapters.conformance.bench import PARTITIONS
from aftershock.workloads.adapters.receiving import ReceiveRecorder, resolve_start_offsets
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.outcomes import convert
from aftershock.workloads.load.schedule import Mark

if TYPE_CHECKING:
    from aftershock.tests.unit.workloads.conftest import Bench


def test_records_from_before_the_run_are_foreign(bench: "Bench") -> None:
    """An earlier run's mark looks like ours; by its offset the record is foreign and leaves no row. Later records
    count.
    """
    told = bench.consume(begin={0: 5})
    receiving = ReceiveRecorder(told, bench.now_us, Events(told, bench.now_us))
    for partition, offset in ((0, 4), (0, 5), (1, 0)):
        receiving.take(Mark(producer_id=0, seq=1, intended_us=1), partition=partition, offset=offset, size_bytes=9)
    assert (2, 1, 0) == (receiving.tally.done, receiving.foreign, receiving.assignments)
    convert(bench.spool, bench.outcomes)
    rows = pq.read_table(bench.outcomes).to_pylist()
    assert [(0, 5), (1, 0)] == [(row["partition"], row["offset"]) for row in rows]


def fill(bench: Bench) -> dict[int, int]:
    """Write n records to partition n; return the end offsets."""
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


def test_start_offsets_without_a_group(live_bench: Bench) -> None:
    """The current beginnings or ends; another library's settings are ignored."""
    ends = fill(live_bench)
    assert resolve_start_offsets(live_bench.consume(settings={"no.such.setting": 1})) == dict.fromkeys(
        range(PARTITIONS), 0
    )
    assert resolve_start_offsets(live_bench.consume(from_="latest")) == ends


def test_a_new_group_commits_its_start_at_the_end(live_bench: Bench) -> None:
    """So that it doesn't start at the end at the time of its members' first fetch; at the beginning no commit is
    needed.
    """
    ends = fill(live_bench)
    assert resolve_start_offsets(live_bench.consume(group=f"{live_bench.topic}-e")) == dict.fromkeys(
        range(PARTITIONS), 0
    )
    assert committed(live_bench, f"{live_bench.topic}-e") == {}
    assert resolve_start_offsets(live_bench.consume(group=f"{live_bench.topic}-l", from_="latest")) == ends
    assert committed(live_bench, f"{live_bench.topic}-l") == ends


def test_committed_offsets_override_from(live_bench: Bench) -> None:
    """For the partitions that the group has committed."""
    ends, group = fill(live_bench), f"{live_bench.topic}-g"
    config = {"bootstrap.servers": live_bench._common["bootstrap"], "group.id": group}
    with closing(Consumer(config)) as consumer:
        consumer.commit(offsets=[TopicPartition(live_bench.topic, 3, 1)], asynchronous=False)
    assert resolve_start_offsets(live_bench.consume(group=group, from_="latest")) == ends | {3: 1}


def test_two_consumers_start_a_group_at_once(live_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds the group with a member, may not commit, and uses the first one's commit."""
    ends, group = fill(live_bench), f"{live_bench.topic}-two"
    told, others = live_bench.consume(group=group, from_="latest"), []
    commit = Consumer.commit

    class Late(Consumer):
        def commit(self, **arguments: object) -> object:
            if not others:
                others.append(joined(live_bench, group))
                commit(others[0], **arguments)
            return commit(self, **arguments)

    monkeypatch.setattr(receiving, "Consumer", Late)
    assert resolve_start_offsets(told) == ends
    with closing(others[0]):
        assert committed(live_bench, group) == ends


def joined(bench: Bench, group: str) -> Consumer:
    """Return a member of the group that has its partitions."""
    consumer = Consumer({"bootstrap.servers": bench._common["bootstrap"], "group.id": group})
    consumer.subscribe([bench.topic])
    until_s = time.monotonic() + 30
    while not consumer.assignment():
        consumer.poll(0.1)
        assert time.monotonic() < until_s, "not joined"
    return consumer

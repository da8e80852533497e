"""Start positions and foreign records, on librdkafka's mock cluster."""

import json
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
from aftershock.workloads.load.assignment import Drain, Place
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.outcomes import convert
from aftershock.workloads.load.schedule import Mark

if TYPE_CHECKING:
    from aftershock.tests.unit.workloads.conftest import Bench

S = 1_000_000


def test_records_from_before_the_run_are_foreign(bench: "Bench") -> None:
    """An earlier run's mark looks like ours; by its offset the record is foreign and leaves no row. Later records
    count.
    """
    told = bench.consume(begin={bench.topic: {0: 5}})
    receiving = ReceiveRecorder(told, bench.now_us, Events(told, bench.now_us))
    for partition, offset in ((0, 4), (0, 5), (1, 0)):
        receiving.take(
            Mark(producer_id=0, seq=1, intended_us=1), place=(bench.topic, partition), offset=offset, size_bytes=9
        )
    assert (2, 1, 0) == (receiving.tally.done, receiving.foreign, receiving.assignments)
    convert(bench.spool, bench.outcomes)
    rows = pq.read_table(bench.outcomes).to_pylist()
    assert [(0, 5), (1, 0)] == [(row["partition"], row["offset"]) for row in rows]


def test_a_client_that_reports_all_that_it_owns_is_named(bench: "Bench") -> None:
    """The partitions that it had already, and had not given up; others are new."""
    told = bench.consume(group="g", members=2)
    receiving = ReceiveRecorder(told, bench.now_us, Events(told, bench.now_us))
    places = [(bench.topic, number) for number in range(3)]
    receiving.assigned(places[:2], "m")
    receiving.revoked(places[1:2])
    receiving.assigned(places[1:2], "m")
    receiving.assigned(places, "m")
    told_again = [json.loads(line).get("again") for line in bench.events.read_text().splitlines()]
    assert [None, None, None, [[*places[0]], [*places[1]]]] == told_again
    assert set(places) == receiving.owned


@pytest.mark.parametrize(
    ("per_s", "until_s", "end_s", "idle_s"),
    [
        (100, 60, 5, None),  # reads the 500 records in five seconds
        (20, 60, 25, None),  # slow, and longer than the idle limit, but fast enough
        (5, 60, 10, 0),  # too slow to finish before the limit
        (0, 60, 10, 10),  # no progress
        (20, 8, 8, 0),  # the limit is shorter than the idle limit
    ],
)
def test_a_drain_lasts_as_long_as_it_can_succeed(
    bench: "Bench", per_s: int, until_s: int, end_s: int, idle_s: int | None
) -> None:
    """A consumer that gives up records its position and the end of each partition, and whether it read anything."""
    now_s = 0
    told = bench.consume()
    receiving = ReceiveRecorder(told, lambda: now_s * S, Events(told, bench.now_us))
    receiving.reached((bench.topic, 1), 7)
    receiving.obey(Drain(end_offsets={bench.topic: {0: 500, 1: 7}}, until_us=until_s * S, idle_us=10 * S))
    while (answer := receiving.answer()) is None:
        now_s += 1
        receiving.reached((bench.topic, 0), min(500, now_s * per_s))
    position = min(500, end_s * per_s)
    assert (end_s, {bench.topic: {1: 7, 0: position}}) == (now_s, answer["positions"])
    events = [json.loads(line) for line in bench.events.read_text().splitlines()]
    assert [(event["event"], event["op"], event["positions"]) for event in events] == (
        [("drain_incomplete", "consume", [[bench.topic, 0, position, 500], [bench.topic, 1, 7, 7]])]
        if position < 500
        else []
    )
    assert [(event["read"], event["idle_us"], event["t_us"]) for event in events] == (
        [] if idle_s is None else [(position, idle_s * S, end_s * S)]
    )
    assert receiving.answer() is None


@pytest.mark.parametrize(("moves_at_s", "end_s", "idle_s"), [(None, 12, 10), (11, 11, 0)], ids=["stops", "is-slow"])
def test_a_reader_that_stops_is_not_called_slow(
    bench: "Bench", moves_at_s: int | None, end_s: int, idle_s: int
) -> None:
    """At its mean rate it would never finish, but before it is given up it must be seen whether it reads on."""
    now_s = 0
    told = bench.consume()
    receiving = ReceiveRecorder(told, lambda: now_s * S, Events(told, bench.now_us))
    receiving.obey(Drain(end_offsets={bench.topic: {0: 5000}}, until_us=60 * S, idle_us=10 * S))
    while receiving.answer() is None:
        now_s += 1
        receiving.reached((bench.topic, 0), 50 * min(now_s, 2) + (now_s == moves_at_s))
    (event,) = [json.loads(line) for line in bench.events.read_text().splitlines()]
    assert (event["idle_us"], event["t_us"], now_s) == (idle_s * S, end_s * S, end_s)


def fill(bench: Bench) -> dict[Place, int]:
    """Write n records to partition n; return the end offsets."""
    producer = Producer({"bootstrap.servers": bench._common["bootstrap"]})
    for number in range(PARTITIONS):
        for _ in range(number):
            producer.produce(bench.topic, b"x", partition=number)
    assert producer.flush(20) == 0
    return {(bench.topic, number): number for number in range(PARTITIONS)}


def starts(bench: Bench) -> dict[Place, int]:
    return dict.fromkeys([(bench.topic, number) for number in range(PARTITIONS)], 0)


def committed(bench: Bench, group: str) -> dict[Place, int]:
    config = {"bootstrap.servers": bench._common["bootstrap"], "group.id": group}
    with closing(Consumer(config)) as consumer:
        found = consumer.committed([TopicPartition(bench.topic, number) for number in range(PARTITIONS)], timeout=20)
    return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0}


def test_two_topics_are_told_apart(bench: "Bench") -> None:
    """Positions, rows and commits of partitions with the same number; records of a topic that only a pattern matches
    are foreign, without a row.
    """
    told = bench.consume(
        more_topics=[{"name": "returns", "topic_id": "id-2", "partitions": 2}], pattern=".*", members=2
    )
    receiving = ReceiveRecorder(told, bench.now_us, Events(told, bench.now_us))
    first, second, other = (bench.topic, 0), ("returns", 0), ("unplanned", 0)
    receiving.assigned([first, second, other], "me")
    for place, offset in ((first, 0), (second, 0), (second, 1), (other, 0)):
        receiving.take(Mark(producer_id=0, seq=offset, intended_us=1), place=place, offset=offset, size_bytes=9)
    assert (3, 1) == (receiving.tally.done, receiving.foreign)
    receiving.obey(Drain(end_offsets={bench.topic: {0: 1, 1: 9}, "returns": {0: 3}}, until_us=0))
    answer = receiving.answer()
    assert answer
    assert {bench.topic: {0: 1}, "returns": {0: 2}, "unplanned": {0: 1}} == answer["positions"]
    events = [json.loads(line) for line in bench.events.read_text().splitlines()]
    assert [[bench.topic, 0, 1, 1], ["returns", 0, 2, 3]] == events[-1]["positions"], "only of partitions that it owns"
    convert(bench.spool, bench.outcomes)
    rows = pq.read_table(bench.outcomes).to_pylist()
    assert [(bench.topic, f"id-of-{bench.topic}", 0), ("returns", "id-2", 0), ("returns", "id-2", 1)] == [
        (row["topic"], row["topic_id"], row["offset"]) for row in rows
    ]


def test_start_offsets_without_a_group(live_bench: Bench) -> None:
    """The current beginnings or ends; another library's settings are ignored."""
    ends = fill(live_bench)
    assert resolve_start_offsets(live_bench.consume(settings={"no.such.setting": 1})) == starts(live_bench)
    assert resolve_start_offsets(live_bench.consume(from_="latest")) == ends


def test_a_new_group_commits_its_start_at_the_end(live_bench: Bench) -> None:
    """So that it doesn't start at the end at the time of its members' first fetch; at the beginning no commit is
    needed.
    """
    ends = fill(live_bench)
    assert resolve_start_offsets(live_bench.consume(group=f"{live_bench.topic}-e")) == starts(live_bench)
    assert committed(live_bench, f"{live_bench.topic}-e") == {}
    assert resolve_start_offsets(live_bench.consume(group=f"{live_bench.topic}-l", from_="latest")) == ends
    assert committed(live_bench, f"{live_bench.topic}-l") == ends


def test_committed_offsets_override_from(live_bench: Bench) -> None:
    """For the partitions that the group has committed."""
    ends, group = fill(live_bench), f"{live_bench.topic}-g"
    config = {"bootstrap.servers": live_bench._common["bootstrap"], "group.id": group}
    with closing(Consumer(config)) as consumer:
        consumer.commit(offsets=[TopicPartition(live_bench.topic, 3, 1)], asynchronous=False)
    assert resolve_start_offsets(live_bench.consume(group=group, from_="latest")) == ends | {(live_bench.topic, 3): 1}


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

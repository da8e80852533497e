"""Consuming programs as the worker drives them: the example over librdkafka's mock cluster, and scripted programs."""

import json
from typing import Any

import pytest
from confluent_kafka import Producer

from aftershock.errors import WorkloadError
from aftershock.tests.mock_cluster import MockCluster
from aftershock.tests.unit.workloads.adapters.steps import EXAMPLE, answered, program, rows
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.adapters.conformance.bench import PARTITIONS
from aftershock.workloads.adapters.exec import ExecConsumer
from aftershock.workloads.load.assignment import Drain
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.schedule import HEADER, pack

EACH = 25
S = 1_000_000


def fill(bench: Bench, first: int) -> None:
    """Write EACH records to every partition, with seqs from ``first`` on."""
    producer = Producer({"bootstrap.servers": bench._common["bootstrap"]})
    for number in range(EACH * PARTITIONS):
        mark = [(HEADER, pack(5, first + number, 1_000 + number))]
        producer.produce(bench.topic, b"x" * number, partition=number % PARTITIONS, headers=mark)
    assert producer.flush(20) == 0


def started(bench: Bench, command: tuple[str, ...], **changes: Any) -> ExecConsumer:
    told = bench.consume(client="exec", command=command, **changes)
    consumer = ExecConsumer(told, bench.now_us, Events(told, bench.now_us))
    consumer.prepare()
    return consumer


def drained(bench: Bench, consumer: ExecConsumer, each: int) -> dict[str, Any]:
    ends = {topic.name: dict.fromkeys(range(topic.partitions), each) for topic in consumer._assignment.topics}
    consumer.obey(Drain(end_offsets=ends, until_us=bench.now_us() + 20 * S))
    return answered(consumer)


@pytest.mark.parametrize("group", [None, "readers"])
@pytest.mark.parametrize("from_", ["earliest", "latest"])
def test_the_example_reads_from_its_start_position(live_bench: Bench, group: str | None, from_: str) -> None:
    """Records from before the start count for ``earliest`` only; later records are read in both cases."""
    bench = live_bench
    fill(bench, 0)
    consumer = started(bench, EXAMPLE, group=group and f"{group}-{from_}", from_=from_)
    fill(bench, 1_000)
    positions = {bench.topic: dict.fromkeys(range(PARTITIONS), 2 * EACH)}
    assert drained(bench, consumer, 2 * EACH) == {"did": "drain", "positions": positions}
    consumer.close()
    read = rows(bench, "c0")
    old = range(EACH * PARTITIONS) if from_ == "earliest" else range(0)
    new = range(1_000, 1_000 + EACH * PARTITIONS)
    assert sorted(row["seq"] for row in read) == [*old, *new]
    assert {(row["seq"] % 1_000, row["bytes"], row["intended_us"] - 1_000) for row in read} == {
        (number, number, number) for number in range(EACH * PARTITIONS)
    }
    assert {bool(row["member"]) for row in read} == {group is not None}
    events = [json.loads(line) for line in bench.events.read_text().splitlines()]
    (assigned,) = [event["partitions"] for event in events if event["event"] == "assigned"]
    assert sorted(assigned) == [[bench.topic, number] for number in range(PARTITIONS)]


def test_a_program_that_reads_nothing(live_bench: Bench) -> None:
    """At the deadline its positions are those of the start."""
    bench = live_bench
    fill(bench, 0)
    consumer = started(
        bench, program("say(say='assigned', partitions=[0]); say(say='ready')\nfor order in orders: pass")
    )
    consumer.obey(Drain(end_offsets={bench.topic: {0: EACH, 1: EACH}}, until_us=bench.now_us()))
    assert answered(consumer)["positions"] == {bench.topic: dict.fromkeys(range(PARTITIONS), 0)}


def test_times_that_the_program_reports(live_bench: Bench) -> None:
    """They are the times of its records and assignments, however late its reports are read."""
    code = """
import time
before_ns = time.monotonic_ns()
time.sleep(0.3)
say(say='assigned', partitions=[0], at_ns=before_ns)
say(say='ready')
say(say='record', partition=0, offset=0, mark=None, size_bytes=3, at_ns=before_ns + 1_000_000)
say(say='revoked', partitions=[0], at_ns=before_ns + 2_000_000)
say(say='record', partition=0, offset=1, mark=None, size_bytes=3)
for order in orders: pass
"""
    consumer = started(live_bench, program(code))
    consumer.obey(Drain(end_offsets={live_bench.topic: {0: 2}}, until_us=live_bench.now_us() + 20 * S))
    answered(consumer)
    events = [json.loads(line) for line in live_bench.events.read_text().splitlines()]
    at_us = {event["event"]: event["t_us"] for event in events}
    timed, read = (row["done_us"] for row in rows(live_bench, "c0"))
    assert (1_000, 2_000) == (timed - at_us["assigned"], at_us["revoked"] - at_us["assigned"])
    assert read - timed >= 299_000


def test_foreign_records_are_counted_separately(live_bench: Bench) -> None:
    """A record with a null mark or a mark of another shape is foreign; it has a row."""
    code = """
say(say='assigned', partitions=[0])
say(say='ready')
for offset, mark in enumerate([None, "AAEC"]):
    say(say='record', partition=0, offset=offset, mark=mark, size_bytes=3, high_watermark=9)
for order in orders: pass
"""
    consumer = started(live_bench, program(code))
    consumer.obey(Drain(end_offsets={live_bench.topic: {0: 2}}, until_us=live_bench.now_us() + 20 * S))
    assert answered(consumer)["positions"][live_bench.topic][0] == 2
    assert consumer.counters() == {"received": 0, "foreign": 2, "assignments": 1}
    assert [(row["seq"], row["bytes"], row["high_watermark"]) for row in rows(live_bench, "c0")] == [(None, 3, 9)] * 2


@pytest.mark.parametrize(("group", "by_pattern"), [(False, False), (True, False), (True, True)])
def test_the_example_reads_two_topics(
    live_bench: Bench, mock_cluster: MockCluster, group: bool, by_pattern: bool
) -> None:
    """By name, and by a pattern; each record is reported with its topic."""
    bench, second = live_bench, f"{live_bench.topic}-returns"
    mock_cluster.create(second, 2)
    producer = Producer({"bootstrap.servers": bench._common["bootstrap"]})
    for number, topic in enumerate([bench.topic, second, second]):
        producer.produce(topic, b"x", partition=number % 2, headers=[(HEADER, pack(5, number, 1))])
    assert producer.flush(20) == 0
    more = [{"name": second, "topic_id": "id-2", "partitions": 2}]
    pattern = f"{bench.topic}(-.*)?" if by_pattern else None
    consumer = started(bench, EXAMPLE, more_topics=more, group=bench.topic if group else None, pattern=pattern)
    ends = {bench.topic: {0: 1}, second: {0: 1, 1: 1}}
    consumer.obey(Drain(end_offsets=ends, until_us=bench.now_us() + 20 * S))
    read = answered(consumer)["positions"]
    assert ends == {topic: {number: read[topic][number] for number in of} for topic, of in ends.items()}
    consumer.close()
    assert [(bench.topic, 0, 0), (second, 1, 1), (second, 0, 2)] == sorted(
        ((row["topic"], row["partition"], row["seq"]) for row in rows(bench, "c0")), key=lambda place: place[2]
    )


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("say(say='assigned', partitions=[]); say(say='ready')", 'its report ready has no "accepts": ["topics"]'),
        ("say(say='assigned', partitions=[0])", "reported a partition without its topic"),
        ("say(say='assigned', topic='retruns', partitions=[0])", "a partition of retruns, which it does not consume"),
    ],
)
def test_a_program_that_does_not_know_several_topics(
    live_bench: Bench, mock_cluster: MockCluster, code: str, why: str
) -> None:
    """It would read one topic only, or leave open which topic it speaks of."""
    second = f"{live_bench.topic}-returns"
    mock_cluster.create(second, 2)
    live_bench._common["more_topics"] = [{"name": second, "topic_id": "id-2", "partitions": 2}]
    with pytest.raises(WorkloadError) as caught:
        started(live_bench, program(f"{code}\nfor order in orders: pass"), group=live_bench.topic)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("say(say='ready')", "reported ready before its assigned"),
        ("say(say='acked', seq=0)", "reported acked, which no consumer may report"),
        (
            "import time; say(say='assigned', partitions=[0], at_ns=time.monotonic_ns() + 60_000_000_000)",
            "in the future: `at_ns` is the time of CLOCK_MONOTONIC on this host",
        ),
    ],
)
def test_a_program_that_breaks_the_protocol_ends_the_run(live_bench: Bench, code: str, why: str) -> None:
    """The error says what the program did."""
    with pytest.raises(WorkloadError) as caught:
        started(live_bench, program(f"{code}\nfor order in orders: pass"))
    assert why in str(caught.value)

"""Consuming programs as the worker drives them: the example over librdkafka's mock cluster, and scripted programs."""

import json
from typing import Any

import pytest
from confluent_kafka import Producer

from aftershock.errors import WorkloadError
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
    consumer.obey(Drain(end_offsets=dict.fromkeys(range(PARTITIONS), each), until_us=bench.now_us() + 20 * S))
    return answered(consumer)


@pytest.mark.parametrize("group", [None, "readers"])
@pytest.mark.parametrize("from_", ["earliest", "latest"])
def test_the_example_reads_from_its_start_position(live_bench: Bench, group: str | None, from_: str) -> None:
    """Records from before the start count for ``earliest`` only; later records are read in both cases."""
    bench = live_bench
    fill(bench, 0)
    consumer = started(bench, EXAMPLE, group=group and f"{group}-{from_}", from_=from_)
    fill(bench, 1_000)
    positions = dict.fromkeys(range(PARTITIONS), 2 * EACH)
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
    consumer.obey(Drain(end_offsets={0: EACH, 1: EACH}, until_us=bench.now_us()))
    assert answered(consumer)["positions"] == dict.fromkeys(range(PARTITIONS), 0)


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
    consumer.obey(Drain(end_offsets={0: 2}, until_us=live_bench.now_us() + 20 * S))
    assert answered(consumer)["positions"][0] == 2
    assert consumer.counters() == {"received": 0, "foreign": 2, "assignments": 1}
    assert [(row["seq"], row["bytes"], row["high_watermark"]) for row in rows(live_bench, "c0")] == [(None, 3, 9)] * 2


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("say(say='ready')", "reported ready before its assigned"),
        ("say(say='acked', seq=0)", "reported acked, which no consumer may report"),
    ],
)
def test_a_program_that_breaks_the_protocol_ends_the_run(live_bench: Bench, code: str, why: str) -> None:
    """The error says what the program did."""
    with pytest.raises(WorkloadError) as caught:
        started(live_bench, program(f"{code}\nfor order in orders: pass"))
    assert why in str(caught.value)

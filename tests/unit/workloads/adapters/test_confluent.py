"""librdkafka's consumer against its own mock cluster: committed offsets and corrupt values."""

import json
import time
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from aftershock.tests.unit.workloads.adapters.steps import answered, rows
from aftershock.workloads.adapters.confluent import ConfluentConsumer, ConfluentProducer
from aftershock.workloads.load.assignment import Go, Stop
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.outcomes import convert
from aftershock.workloads.load.schedule import HEADER, Filler, pack
from aftershock.workloads.load.spool import VALUE_CORRUPT

if TYPE_CHECKING:
    from aftershock.tests.mock_cluster import MockCluster
    from aftershock.tests.unit.workloads.conftest import Bench


RECORDS, SPOILT, DEADLINE_S = 20, 7, 30.0


def test_commits_are_reported_and_values_are_validated(live_bench: "Bench") -> None:
    """Every acknowledged commit, never beyond the delivered records; the one record with another record's value is
    reported.
    """
    bench, filler = live_bench, Filler()
    producer = Producer({"bootstrap.servers": bench.consume().bootstrap})
    for seq in range(RECORDS):
        value = filler.value(seq + (seq == SPOILT), 50)
        producer.produce(bench.topic, value, partition=0, headers=[(HEADER, pack(0, seq, 1))])
    assert 0 == producer.flush(20)

    told = bench.consume(group=bench.topic, settings={"auto.commit.interval.ms": "50"})
    consumer = ConfluentConsumer(told, bench.now_us, Events(told, bench.now_us))
    consumer.prepare()
    until_s = time.monotonic() + DEADLINE_S
    while not (offsets := committed(bench)) or offsets[-1] < RECORDS:
        consumer.step(50_000)
        assert time.monotonic() < until_s, f"committed {offsets} of {RECORDS}"
    consumer.close()
    assert sorted(offsets) == offsets
    assert RECORDS == offsets[-1]
    convert(bench.spool, bench.outcomes)
    delivered = pq.read_table(bench.outcomes).to_pylist()
    assert {SPOILT: VALUE_CORRUPT} == {row["seq"]: row["error"] for row in delivered if row["error"]}


@pytest.mark.parametrize("reader", [{}, {"group": "g"}, {"group": "g", "pattern": "(.*)"}])
def test_two_topics_are_read_at_their_places(
    live_bench: "Bench", mock_cluster: "MockCluster", reader: dict[str, str]
) -> None:
    """Without a group, by name, and by a pattern, which must match whole names as it does for other clients."""
    bench, second = live_bench, f"{live_bench.topic}-returns"
    for name, partitions in ((second, 2), (f"not-{second}", 1), (f"{second}-not", 1)):
        mock_cluster.create(name, partitions)
    more = [{"name": second, "topic_id": "id-2", "partitions": 2}]
    group = {"group": f"{bench.topic}-group"} if reader else {}
    pattern = {"pattern": f"{bench.topic}|{bench.topic}-(returns)+"} if "pattern" in reader else {}
    sent = send_in_turn(bench, more)

    told = bench.consume(more_topics=more, commit={"every_records": 5} if group else None, **group, **pattern)
    consumer = ConfluentConsumer(told, bench.now_us, Events(told, bench.now_us))
    consumer.prepare()
    until_s = time.monotonic() + DEADLINE_S
    while consumer.counters()["received"] < len(sent):
        consumer.step(50_000)
        assert time.monotonic() < until_s, f"read {consumer.counters()}"
    consumer.close()
    names = ("topic", "topic_id", "partition", "offset", "seq")
    read = rows(bench, "c0")
    assert sorted([row[name] for name in names] for row in sent) == sorted(
        [row[name] for name in names] for row in read
    )
    assert {(bench.topic, 0), (second, 1)} == {(row["topic"], row["seq"] % 2) for row in read}
    assert 0 == consumer.counters()["foreign"]
    emitted = [json.loads(line) for line in bench.events.read_text().splitlines()]
    assigned = [place for event in emitted if event["event"] == "assigned" for place in event["partitions"]]
    assert sorted([*place] for place in told.places) == sorted(assigned)
    if group:
        offsets = [place for event in emitted if event["event"] == "committed" for place in event["offsets"]]
        assert {bench.topic, second} == {topic for topic, *_ in offsets}


def send_in_turn(bench: "Bench", more: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send for a quarter of a second to all topics in turn; return the rows."""
    told = bench.produce(more_topics=more)
    producer = ConfluentProducer(told, bench.now_us, Events(told, bench.now_us))
    producer.prepare()
    now_us = bench.now_us()
    producer.obey(Go(start_us=now_us))
    producer.obey(Stop(at_us=now_us + 250_000))
    answered(producer)
    producer.close()
    return rows(bench, "p0")


def committed(bench: "Bench") -> list[int]:
    lines = [json.loads(line) for line in bench.events.read_text().splitlines()]
    told = [offset for line in lines if line["event"] == "committed" for offset in line["offsets"]]
    return [offset for _, partition, offset in told if partition == 0]

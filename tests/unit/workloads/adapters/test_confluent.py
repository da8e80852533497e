"""librdkafka's consumer against its own mock cluster: committed offsets and corrupt values."""

import json
import time
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from confluent_kafka import Producer

from aftershock.workloads.adapters.confluent import ConfluentConsumer
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.outcomes import convert
from aftershock.workloads.load.schedule import HEADER, Filler, pack
from aftershock.workloads.load.spool import VALUE_CORRUPT

if TYPE_CHECKING:
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
    rows = pq.read_table(bench.outcomes).to_pylist()
    assert {SPOILT: VALUE_CORRUPT} == {row["seq"]: row["error"] for row in rows if row["error"]}


def committed(bench: "Bench") -> list[int]:
    lines = [json.loads(line) for line in bench.events.read_text().splitlines()]
    told = [offset for line in lines if line["event"] == "committed" for offset in line["offsets"]]
    return [offset for _, partition, offset in told if partition == 0]

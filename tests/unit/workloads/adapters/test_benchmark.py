"""A program that drives its own load, as the worker drives Kafka's ProducerPerformance: rows follow its reports."""

import json
from base64 import b64decode
from typing import Any

import pytest

from aftershock.errors import WorkloadError
from aftershock.tests.unit.workloads.adapters.steps import answered, program, rows
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.adapters.benchmark import BenchmarkProducer
from aftershock.workloads.adapters.exec_orders import start_order
from aftershock.workloads.load.assignment import Go, Stop
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.schedule import Filler
from aftershock.workloads.load.worker import make_client

TOOL = """
load = told["load"]
say(say="ready")
go = next(orders)
at_ns = [go["start_ns"] + 5_000_000 * n + 1_000_000 for n in range(load["records"])]
say(say="sent", seq=0, at_ns=at_ns)
say(say="acked_all", rows=[[n, at_ns[n] + 2_500_000 * n, n % 4, 7 + n] for n in range(load["records"] - 1)])
say(say="failed", seq=load["records"] - 1, error="MESSAGE_TOO_LARGE")
say(say="summary", text="4 records sent")
next(orders)
"""


def settings(records: int = 5) -> dict[str, Any]:
    return {"client": "java", "settings": {"num-records": records}, "record_size_min": 50, "record_size_max": 50}


def started(bench: Bench, code: str) -> BenchmarkProducer:
    told = bench.produce(command=program(code), **settings())
    producer = make_client(told, bench.now_us, Events(told, bench.now_us))
    assert isinstance(producer, BenchmarkProducer)
    producer.prepare()
    return producer


def go(bench: Bench, producer: BenchmarkProducer) -> int:
    start_us = bench.now_us()
    producer.obey(Go(start_us=start_us))
    producer.obey(Stop(at_us=start_us + 1))
    return start_us


def test_rows_have_the_times_of_the_tool(bench: Bench) -> None:
    """All records are sent although the load ends before them; their intended times are those of the schedule."""
    producer = started(bench, TOOL)
    start_us = go(bench, producer)
    assert answered(producer) == {"did": "stop", "unreported": 0}
    while not bench.events.exists() or "summary" not in bench.events.read_text():
        producer.step(20_000)
    producer.close()
    found = rows(bench, "p0")
    assert [start_us + 5_000 * seq for seq in range(5)] == [row["intended_us"] for row in found]
    assert [start_us + 5_000 * seq + 1_000 for seq in range(5)] == [row["sent_us"] for row in found]
    assert [2_500 * seq for seq in range(4)] == [row["done_us"] - row["sent_us"] for row in found[:4]]
    assert [(0, 7), (1, 8), (2, 9), (3, 10)] == [(row["partition"], row["offset"]) for row in found[:4]]
    assert ["ok"] * 4 + ["failed"] == [row["status"] for row in found]
    assert {"sent": 5, "ok": 4, "failed": 1, "in_doubt": 0} == producer.counters()
    events = [json.loads(line) for line in bench.events.read_text().splitlines()]
    assert ["4 records sent"] == [event["text"] for event in events if event["event"] == "summary"]


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ('say(say="sent", seq=1, at_ns=[1])', "that it sent record 1, not 0, next"),
        ('say(say="acked_all", rows=[[0, 1, 0, 0]])', "record 0, which was not sent, or has one already"),
        ('say(say="sent", seq=0, at_ns=[1]); say(say="acked_all", rows=[[0, 1, 0, 0]] * 2)', "or has one already"),
        ('say(say="assigned", partitions=[0])', "which a benchmark does not report"),
    ],
)
def test_reports_that_contradict_each_other_end_the_run(bench: Bench, reports: str, why: str) -> None:
    producer = started(bench, f'say(say="ready"); next(orders); {reports}; next(orders)')
    go(bench, producer)
    with pytest.raises(WorkloadError, match=why):
        answered(producer)


def test_the_load_of_the_start_order(bench: Bench) -> None:
    """It has what a program needs to send the records that the harness expects in the log; other producers get none."""
    load = json.loads(start_order(bench.produce(**settings(), rate_per_s=3_000, producer_id=3)))["load"]
    assert (5, 0, 3, 50) == tuple(load[name] for name in ("records", "warmup_records", "producer_id", "size_bytes"))
    assert [1_000_000, 3_000] == load["period_us"]
    block = b64decode(load["filler"])
    values = [block[seq % (len(block) - 50) :][:50] for seq in range(600)]
    assert [Filler(50).value(seq, 50) for seq in range(600)] == values
    assert json.loads(start_order(bench.produce(client="java")))["load"] is None


def test_a_tool_can_not_be_restarted(bench: Bench) -> None:
    told = bench.produce(command=program(TOOL), life=1, **settings())
    with pytest.raises(WorkloadError, match="can't continue after a restart"):
        BenchmarkProducer(told, bench.now_us, Events(told, bench.now_us))

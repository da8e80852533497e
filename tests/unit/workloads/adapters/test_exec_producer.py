"""Producing programs as the worker drives them: real programs, some over librdkafka's mock cluster."""

import json
from typing import Any

import pyarrow.parquet as pq
import pytest

from aftershock.errors import WorkloadError
from aftershock.tests.unit.workloads.adapters.steps import EXAMPLE, answered, program, rows
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.adapters import exec as exec_link
from aftershock.workloads.adapters.exec import ExecProducer
from aftershock.workloads.load.assignment import Go, Stop
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.logread import ReadLimit, Topic, end_offsets, read_log

S = 1_000_000


def started(bench: Bench, command: tuple[str, ...], **changes: Any) -> ExecProducer:
    told = bench.produce(client="exec", command=command, **changes)
    producer = ExecProducer(told, bench.now_us, Events(told, bench.now_us))
    producer.prepare()
    return producer


def sends(bench: Bench, producer: ExecProducer, for_us: int = S // 10) -> dict[str, Any]:
    """Go for ``for_us`` (20 records in a tenth of a second), then stop; return the answer to the stop."""
    now_us = bench.now_us()
    producer.obey(Go(start_us=now_us))
    producer.obey(Stop(at_us=now_us + for_us))
    return answered(producer)


def test_the_example_sends_every_record(live_bench: Bench) -> None:
    """Every record of the schedule is acked, and is in the log at its row's offset with its mark."""
    bench = live_bench
    producer = started(bench, EXAMPLE, keys=5)
    assert sends(bench, producer, S) == {"did": "stop", "unreported": 0}
    producer.close()
    sent = rows(bench, "p0")
    bootstrap, topics = bench._common["bootstrap"], [Topic(bench.topic, f"id-of-{bench.topic}", 4)]
    read_log(bootstrap, topics, end_offsets(bootstrap, topics, 20), bench.log, ReadLimit(20))
    place = ("producer_id", "seq", "partition", "offset")
    log = pq.read_table(bench.log / f"part-{bench.topic}.parquet").to_pylist()
    assert sorted(tuple(row[name] for name in place) for row in sent) == sorted(
        tuple(row[name] for name in place) for row in log
    )
    assert [row["seq"] for row in sent] == list(range(200))
    assert {(row["status"], row["error"], row["client"]) for row in sent} == {("ok", None, "exec")}
    assert producer.counters() == {"sent": 200, "ok": 200, "failed": 0, "in_doubt": 0}


@pytest.mark.parametrize(
    ("report", "status", "error", "offset"),
    [
        ({"say": "acked", "partition": 2, "offset": 9}, "ok", None, 9),
        ({"say": "acked"}, "ok", None, None),
        ({"say": "failed", "error": "REQUEST_TIMED_OUT", "in_doubt": False}, "failed", "REQUEST_TIMED_OUT", None),
        ({"say": "failed", "error": "MESSAGE_TOO_LARGE", "in_doubt": True}, "in_doubt", "MSG_SIZE_TOO_LARGE", None),
        ({"say": "failed", "error": "MESSAGE_TOO_LARGE"}, "failed", "MSG_SIZE_TOO_LARGE", None),
        ({"say": "failed", "error": "REQUEST_TIMED_OUT"}, "in_doubt", "REQUEST_TIMED_OUT", None),
        ({"say": "failed", "error": "_MSG_TIMED_OUT"}, "in_doubt", "_MSG_TIMED_OUT", None),
        ({"say": "failed", "error": "whatever"}, "in_doubt", "UNKNOWN", None),
        ({"say": "failed", "error": "NONE"}, "in_doubt", None, None),
    ],
)
def test_the_row_of_a_report(
    bench: Bench, report: dict[str, Any], status: str, error: str | None, offset: int | None
) -> None:
    """The program's own doubt overrides the error's; an error without it is classified like any client's."""
    producer = started(bench, program(f"say(say='ready')\nfor order in orders: say(seq=order['seq'], **{report})"))
    assert sends(bench, producer)["unreported"] == 0
    assert {(row["status"], row["error"], row["offset"]) for row in rows(bench, "p0")} == {(status, error, offset)}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("say(say='acked', seq=order['seq']); say(say='acked', seq=order['seq'])", "reported twice"),
        ("say(say='acked', seq=order['seq'] + 1_000_000)", "reported record 1000000, which"),
        ("print('debugging', flush=True)", "debugging"),
        (
            "say(say='record', partition=0, offset=0, mark=None, size_bytes=0)",
            "reported record, which only a consumer may report",
        ),
        (
            "say(say='died', why='no such topic'); sys.exit('asked broker 3')",
            "gave up: no such topic; the last lines of its standard error:\n    asked broker 3",
        ),
        (
            "sys.exit('out of file descriptors')",
            "status 1; the last lines of its standard error:\n    out of file descriptors",
        ),
    ],
)
def test_a_program_that_breaks_the_protocol_ends_the_run(bench: Bench, code: str, why: str) -> None:
    """The error says what the program did; records that it was given stay in doubt."""
    producer = started(bench, program(f"say(say='ready')\nfor order in orders:\n    {code}"))
    with pytest.raises(WorkloadError, match=r"(?s)client") as caught:
        sends(bench, producer)
    assert why in str(caught.value)
    assert {row["status"] for row in rows(bench, "p0")} <= {"in_doubt", "ok"}


def test_a_program_that_falls_behind_does_not_delay_the_schedule(bench: Bench) -> None:
    """Given 30 MB that it doesn't read: records beyond the limit fail unsent, and the schedule continues to its end."""
    producer = started(
        bench, program("say(say='ready')\nimport time; time.sleep(600)"), record_size_min=10**6, record_size_max=10**6
    )
    now_us = bench.now_us()
    producer.obey(Go(start_us=now_us))
    producer.obey(Stop(at_us=now_us + S // 8))
    while producer.counters()["sent"] < 25:
        producer.step(20_000)
    failed = [row for row in rows(bench, "p0") if row["status"] == "failed"]
    assert {row["error"] for row in failed} == {"_QUEUE_FULL"}
    assert 5 <= len(failed) <= 20


def test_traffic_and_errors_of_a_program_are_recorded(bench: Bench) -> None:
    """Traffic is in the progress, an error in the run's events."""
    code = "say(say='traffic', brokers={1: [5, 6]}); say(say='error', error='X', detail='d'); say(say='ready')"
    producer = started(bench, program(f"{code}\nfor order in orders: pass"))
    assert producer.progress()["traffic"] == {1: (5, 6)}
    (event,) = [json.loads(line) for line in bench.events.read_text().splitlines()]
    assert (event["event"], event["error"], event["detail"]) == ("client_error", "X", "d")


def test_what_a_program_tells_of_its_connections_is_recorded(bench: Bench) -> None:
    """Events have the time of the report, and rows the number of attempts; ready names what is always reported."""
    code = f"""say(say='ready', reports=['attempts', 'node_disconnected', 'something_new'])
say(say='node_disconnected', broker=2, at_ns={bench.origin_ns + 7_000_000})
say(say='request_timed_out', broker=3)
for order in orders: say(say='acked' if order['seq'] else 'failed', seq=order['seq'], attempts=2,
                         **({{}} if order['seq'] else {{'error': 'X'}}))"""
    before_us = bench.now_us()
    producer = started(bench, program(code))
    sends(bench, producer)
    assert {"attempts", "node_disconnected"} == {*producer.reports()}
    ended, late = [json.loads(line) for line in bench.events.read_text().splitlines()]
    assert ("node_disconnected", 2, 7_000) == (ended["event"], ended["node_id"], ended["t_us"])
    assert ("request_timed_out", 3) == (late["event"], late["node_id"])
    assert late["t_us"] >= before_us
    assert {("ok", 2), ("in_doubt", 2)} == {(row["status"], row["attempts"]) for row in rows(bench, "p0")}


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("for order in orders: pass", None),
        ("import time; time.sleep(600)", "ended with status -9"),
        ("orders.close(); sys.stdin.readline(); sys.exit(3)", "ended without the report bye"),
    ],
)
def test_closing_is_bounded_and_failures_are_logged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: str, what: str | None
) -> None:
    """A program that closes correctly leaves no warning; any other is killed."""
    monkeypatch.setattr(exec_link, "CLOSE_S", 2.0)
    producer = started(bench, program(f"say(say='ready')\n{code}"))
    producer.close()
    assert (what is None) == (caplog.text == "")
    assert (what or "") in caplog.text
    told = [json.loads(line) for line in bench.events.read_text().splitlines()]
    crashes = [event["why"] for event in told if event["event"] == "client_died" and event["closing"]]
    assert ("sys.exit(3)" in code) == bool(crashes)
    assert not crashes or "ended with exit status 3 while it closed" in crashes[0]

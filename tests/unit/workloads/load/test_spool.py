from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaError

from aftershock.workloads.load.outcomes import convert
from aftershock.workloads.load.spool import (
    CERTAINLY_NOT_WRITTEN,
    ROWS,
    TMPFS,
    ConsumeSpool,
    ProduceSpool,
    Status,
    error_name,
    spool_home,
    status_of_code,
)

if TYPE_CHECKING:
    from pathlib import Path

    from aftershock.tests.unit.workloads.conftest import Bench


RECORDS_FOR_EVER = """
import sys
from pathlib import Path
from aftershock.workloads.load.assignment import parse_assignment
from aftershock.workloads.load.spool import ProduceSpool
from aftershock.workloads.load.spool import Status
told = parse_assignment(sys.stdin.readline())
spool = ProduceSpool(told.spool, told)
for seq in range(10**9):
    spool.begin(seq, intended_us=seq, deadline_us=seq + 9, sent_us=seq + 1, size_bytes=5)
    print(seq, flush=True)
    if seq % 3:
        spool.end(seq, done_us=seq + 2, status=Status.OK, code=0, partition=1, offset=seq)
"""


def test_a_kill_loses_nothing_that_was_recorded(bench: Bench) -> None:
    """Really kill -9 a process that records as fast as it can: every record it told of is in the evidence, whole."""
    with subprocess.Popen(
        [sys.executable, "-c", RECORDS_FOR_EVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as recorder:
        assert recorder.stdin
        assert recorder.stdout
        recorder.stdin.write(bench.produce().model_dump_json() + "\n")
        recorder.stdin.flush()
        while (told := int(recorder.stdout.readline())) < 20_000:
            pass
        os.kill(recorder.pid, signal.SIGKILL)
        told = int((recorder.stdout.read().splitlines() or [str(told)])[-1])
    (part,) = convert(bench.spool, bench.outcomes)
    rows = pq.read_table(part).to_pylist()
    assert len(rows) in {told + 1, told + 2}
    for seq, row in enumerate(rows):
        assert (row["seq"], row["intended_us"], row["sent_us"]) == (seq, seq, seq + 1)
        unended = (None, "in_doubt", None, None, None)
        ended = (seq + 2, "ok", None, 1, seq)
        found = (row["done_us"], row["status"], row["error"], row["partition"], row["offset"])
        assert found == ended or (found == unended and (seq % 3 == 0 or seq >= told))


def test_segments_grow_ahead_when_idle_and_on_demand(bench: Bench) -> None:
    """Growing is done in quiet moments; a client that has none still loses nothing."""
    spool = ProduceSpool(bench.spool, bench.produce())
    home = bench.spool / "p0"
    for seq in range(ROWS // 2 + 1):
        spool.begin(seq, intended_us=0, deadline_us=0, sent_us=0, size_bytes=0)
    assert len(list(home.glob("*.rows"))) == 1
    spool.idle()
    spool.idle()
    assert len(list(home.glob("*.rows"))) == 2
    for seq in range(ROWS // 2 + 1, 2 * ROWS + 1):
        spool.begin(seq, intended_us=0, deadline_us=0, sent_us=0, size_bytes=0)
    assert len(list(home.glob("*.rows"))) == 3
    (part,) = convert(bench.spool, bench.outcomes)
    assert pq.read_table(part)["seq"].to_pylist() == list(range(2 * ROWS + 1))


def test_reports_may_come_in_any_order(bench: Bench) -> None:
    """A delivery report finds its record's slot, across segments."""
    spool = ProduceSpool(bench.spool, bench.produce())
    count = ROWS + 10
    for seq in range(count):
        spool.begin(seq, intended_us=seq, deadline_us=seq, sent_us=seq, size_bytes=1)
    for seq in reversed(range(count)):
        spool.end(seq, done_us=seq * 2, status=Status.OK, code=0, partition=seq % 7, offset=seq)
    (part,) = convert(bench.spool, bench.outcomes)
    table = pq.read_table(part)
    assert table["done_us"].to_pylist() == [seq * 2 for seq in range(count)]
    assert table["partition"].to_pylist() == [seq % 7 for seq in range(count)]


def test_consumed_rows_keep_the_order_of_delivery_across_segments(bench: Bench) -> None:
    """Delivered twice is two rows, in the order of delivery."""
    spool = ConsumeSpool(bench.spool, bench.consume())
    offsets = [*range(ROWS), 5, 6, 7]
    for done_us, offset in enumerate(offsets):
        spool.append(
            producer_id=0,
            seq=offset,
            intended_us=0,
            done_us=done_us,
            partition=0,
            offset=offset,
            high_watermark=-1,
            leader_epoch=0,
            size_bytes=1,
        )
    (part,) = convert(bench.spool, bench.outcomes)
    assert pq.read_table(part)["offset"].to_pylist() == offsets


def test_a_worker_has_one_spool_in_a_run(bench: Bench) -> None:
    """Two workers of one name would overwrite each other's evidence."""
    ProduceSpool(bench.spool, bench.produce())
    with pytest.raises(FileExistsError):
        ProduceSpool(bench.spool, bench.produce())


def test_the_spool_is_in_memory_where_there_is_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tmpfs no write-back can stall a client; without one the run directory must do."""
    monkeypatch.setattr("aftershock.workloads.load.spool.TMPFS", tmp_path)
    assert spool_home("r1", tmp_path / "run") == tmp_path / "aftershock-r1"
    monkeypatch.setattr("aftershock.workloads.load.spool.TMPFS", tmp_path / "absent")
    assert spool_home("r1", tmp_path / "run") == tmp_path / "run" / "spool"
    assert TMPFS.is_absolute()


CASES = [
    ("NO_ERROR", Status.OK),
    ("MSG_SIZE_TOO_LARGE", Status.FAILED),
    ("TOPIC_AUTHORIZATION_FAILED", Status.FAILED),
    ("RECORD_LIST_TOO_LARGE", Status.FAILED),
    ("_MSG_TIMED_OUT", Status.IN_DOUBT),
    ("_TIMED_OUT", Status.IN_DOUBT),
    ("REQUEST_TIMED_OUT", Status.IN_DOUBT),
    ("_TRANSPORT", Status.IN_DOUBT),
    ("_PURGE_QUEUE", Status.IN_DOUBT),
    ("_FATAL", Status.IN_DOUBT),
    ("NETWORK_EXCEPTION", Status.IN_DOUBT),
    ("NOT_LEADER_FOR_PARTITION", Status.IN_DOUBT),
    ("NOT_ENOUGH_REPLICAS", Status.IN_DOUBT),
    ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", Status.IN_DOUBT),
    ("OUT_OF_ORDER_SEQUENCE_NUMBER", Status.IN_DOUBT),
]


@pytest.mark.parametrize(("name", "status"), CASES)
def test_errors_of_delivery_reports(name: str, status: Status) -> None:
    """Only errors that every attempt meets alike promise that a record is nowhere."""
    assert status_of_code(getattr(KafkaError, name)) is status


def test_an_error_nobody_has_heard_of_leaves_doubt() -> None:
    """An unknown error of a newer broker must not be read as a promise."""
    assert status_of_code(9999) is Status.IN_DOUBT


def test_no_certain_error_is_retriable() -> None:
    """librdkafka's own flag: a retriable error may follow an attempt that was written."""
    assert not [error_name(code) for code in CERTAINLY_NOT_WRITTEN if KafkaError(code).retriable()]


def test_names_are_kafkas() -> None:
    """The evidence uses Kafka's error names; librdkafka's own errors keep their underscore."""
    assert error_name(KafkaError.NOT_ENOUGH_REPLICAS) == "NOT_ENOUGH_REPLICAS"
    assert error_name(KafkaError._MSG_TIMED_OUT) == "_MSG_TIMED_OUT"
    assert error_name(KafkaError.NO_ERROR) is None
    assert [status.text for status in (Status.OK, Status.FAILED, Status.IN_DOUBT)] == ["ok", "failed", "in_doubt"]

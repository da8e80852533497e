"""Moves of outcome rows from memory to the disk: no row is lost or stored twice, whatever dies and whenever."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from aftershock.errors import WorkloadError
from aftershock.results.evidence.files import current_parts
from aftershock.workloads.load import outcomes, spool
from aftershock.workloads.load.outcomes import SEGMENTS_A_GROUP, convert, move
from aftershock.workloads.load.spool import MAPPED_MAX, OVERDUE_US, ConsumeSpool, ProduceSpool, Status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from aftershock.tests.unit.workloads.conftest import Bench

SMALL = 64


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 64 rows instead of 16,384."""
    monkeypatch.setattr(spool, "_SHIFT", 6)
    monkeypatch.setattr(spool, "_MASK", SMALL - 1)
    monkeypatch.setattr(spool, "ROWS", SMALL)
    monkeypatch.setattr(outcomes, "ROWS", SMALL)


def send(spooled: ProduceSpool, upto: int, *, open_rows: frozenset[int] = frozenset(), step_us: int = 1) -> None:
    for seq in range(spooled.next, upto):
        spooled.begin(seq, intended_us=seq * step_us, deadline_us=seq * step_us, sent_us=seq * step_us, size_bytes=1)
        if seq not in open_rows:
            end(spooled, seq)
        if step_us > 1:
            spooled.idle()


def end(spooled: ProduceSpool, seq: int) -> None:
    spooled.end(seq, done_us=seq * 2, status=Status.OK, code=0, partition=1, offset=seq)


def on_disk(bench: Bench) -> list[dict[str, Any]]:
    """The rows that a reader of the run directory sees."""
    names = [f"outcomes/{path.name}" for path in bench.outcomes.glob("[!.]*.parquet")]
    return [row for name in sorted(current_parts(names)) for row in read(bench.outcomes.parent / name)]


def read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    return rows


def statuses(rows: list[dict[str, Any]]) -> dict[int, str]:
    """Status by record, after a check that no record has two rows."""
    assert [] == [seq for seq, count in Counter(row["seq"] for row in rows).items() if count > 1]
    return {row["seq"]: row["status"] for row in rows}


def segments(bench: Bench) -> list[str]:
    return sorted(path.name for path in (bench.spool / "p0").glob("*.rows"))


@pytest.mark.usefixtures("small")
def test_final_segments_leave_the_memory_and_the_rest_is_on_the_disk(bench: Bench) -> None:
    """Segment 2 has an open record, so it and its successors stay; the file of other rows has them meanwhile."""
    bench.outcomes.mkdir()
    producer = ProduceSpool(bench.spool, bench.produce())
    send(producer, 5 * SMALL + 7, open_rows=frozenset({2 * SMALL + 3}))
    move(bench.spool, bench.outcomes)
    assert ["00002.rows", "00003.rows", "00004.rows", "00005.rows"] == segments(bench)
    assert ["part-p0~00000-00001.parquet", "part-p0~00002.parquet"] == sorted(p.name for p in bench.outcomes.iterdir())
    assert {2 * SMALL + 3} == {seq for seq, status in statuses(on_disk(bench)).items() if status == "in_doubt"}
    end(producer, 2 * SMALL + 3)
    move(bench.spool, bench.outcomes)
    assert ["00005.rows"] == segments(bench)
    assert ["part-p0~00000-00004.parquet", "part-p0~00005.parquet"] == sorted(p.name for p in bench.outcomes.iterdir())
    assert dict.fromkeys(range(5 * SMALL + 7), "ok") == statuses(on_disk(bench))
    last = bench.outcomes / "part-p0~00005.parquet"
    assert [last] == convert(bench.spool, bench.outcomes)
    assert dict.fromkeys(range(5 * SMALL + 7), "ok") == statuses(on_disk(bench))


class Died(BaseException):
    """Stands for a SIGKILL: nothing may handle it."""


@contextmanager
def dying_at(call: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Die at the given change to the file system; yield the names of the changes before it."""
    done: list[str] = []

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def change(*args: Any, **options: Any) -> Any:
            if ".draft" in str(args[0]) and name == "unlink":
                return real(*args, **options)  # a killed process cleans nothing up, but this cleans nothing that counts
            if len(done) == call:
                raise Died
            done.append(name)
            return real(*args, **options)

        monkeypatch.setattr(owner, name, change)

    with monkeypatch.context() as patched:
        monkeypatch = patched
        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "write_text")):
            counted(owner, name)
        yield done


@pytest.mark.usefixtures("small")
def test_a_death_at_any_step_of_a_move_loses_and_doubles_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each change to the file system: what was readable before stays so, and salvage finds every row."""
    died, call = True, -1
    while died:
        died, call = False, call + 1
        home = bench.outcomes.parent / f"run-{call}"
        bench.spool, bench.outcomes = home / "spool", home / "outcomes"
        bench.outcomes.mkdir(parents=True)
        producer = ProduceSpool(bench.spool, bench.produce(spool=bench.spool))
        send(producer, 2 * SMALL + 9, open_rows=frozenset({40, 2 * SMALL + 5}))
        move(bench.spool, bench.outcomes)  # nothing is final
        end(producer, 40)
        send(producer, 4 * SMALL + 9, open_rows=frozenset({4 * SMALL + 5}))
        move(bench.spool, bench.outcomes)  # 2 segments are final
        before = statuses(on_disk(bench))
        end(producer, 2 * SMALL + 5)
        send(producer, 7 * SMALL + 9, open_rows=frozenset({6 * SMALL + 5}))
        try:
            with dying_at(call, monkeypatch) as done:
                move(bench.spool, bench.outcomes)  # extends the closed file
        except Died:
            died = True
            after = statuses(on_disk(bench))
            assert before.keys() <= after.keys()
            assert not [seq for seq in before if before[seq] == "ok" != after[seq]]
        truth = {seq: "in_doubt" if seq in (4 * SMALL + 5, 6 * SMALL + 5) else "ok" for seq in range(7 * SMALL + 9)}
        convert(bench.spool, bench.outcomes)
        assert truth == statuses(on_disk(bench))
        parts = {f"outcomes/{path.name}" for path in bench.outcomes.iterdir()}
        assert parts == set(current_parts(parts))
    assert {"fsync", "replace", "unlink"} <= set(done)
    assert call > 8


@pytest.mark.usefixtures("small")
def test_the_status_of_an_overdue_record_is_kept(bench: Bench) -> None:
    """Records open 20 s after their deadline don't hold their segment; a status that still comes is the record's."""
    bench.outcomes.mkdir()
    producer = ProduceSpool(bench.spool, bench.produce())
    overdue = frozenset({3, 5, SMALL + 1})
    send(producer, 5 * SMALL, open_rows=overdue, step_us=OVERDUE_US)
    move(bench.spool, bench.outcomes)
    assert ["00005.rows"] == segments(bench)
    assert overdue == {seq for seq, status in statuses(on_disk(bench)).items() if status == "in_doubt"}
    end(producer, 5)
    move(bench.spool, bench.outcomes)
    assert overdue - {5} == {seq for seq, status in statuses(on_disk(bench)).items() if status == "in_doubt"}
    with pytest.raises(WorkloadError, match="reported record 7, which already had its final status"):
        end(producer, 7)
    producer = ProduceSpool(bench.spool, bench.produce(life=1))
    assert 5 * SMALL == producer.next
    send(producer, 9 * SMALL, open_rows=frozenset({6 * SMALL}), step_us=OVERDUE_US)
    convert(bench.spool, bench.outcomes)
    found = statuses(on_disk(bench))
    assert set(range(9 * SMALL)) == found.keys()
    assert {3, SMALL + 1, 6 * SMALL} == {seq for seq, status in found.items() if status == "in_doubt"}


@pytest.mark.usefixtures("small")
def test_a_death_between_copy_and_mark_doubles_no_row(bench: Bench) -> None:
    """An overdue row is in its segment and in the late file; a restarted worker doesn't copy it again."""
    bench.outcomes.mkdir()
    producer = ProduceSpool(bench.spool, bench.produce())
    send(producer, 5 * SMALL, open_rows=frozenset({3, 4}), step_us=OVERDUE_US)
    path = bench.spool / "p0" / "00000.rows"
    raw = bytearray(path.read_bytes())
    for row in (3, 4):
        assert spool.CARRIED == raw[(row + 1) * spool.PRODUCE_ROW - 1]
    raw[(4 + 1) * spool.PRODUCE_ROW - 1] = 0  # row 4 has its copy, but no mark
    path.write_bytes(raw)
    move(bench.spool, bench.outcomes)
    assert set(range(5 * SMALL)) == statuses(on_disk(bench)).keys()
    producer = ProduceSpool(bench.spool, bench.produce(life=1))
    send(producer, 7 * SMALL, step_us=OVERDUE_US)
    move(bench.spool, bench.outcomes)
    assert ["00007.rows"] == segments(bench)
    found = statuses(on_disk(bench))
    assert {3, 4} == {seq for seq, status in found.items() if status == "in_doubt"}
    assert set(range(7 * SMALL)) == found.keys()


@pytest.mark.usefixtures("small")
def test_moves_of_a_worker_that_goes_on_recording(bench: Bench) -> None:
    """Rows begin, end in another order and become overdue while they are moved; no reader ever sees a row twice."""
    bench.outcomes.mkdir()
    producer = ProduceSpool(bench.spool, bench.produce())
    total, lost = 200 * SMALL, frozenset(range(0, 200 * SMALL, 1000))
    over = threading.Event()

    def record() -> None:
        for seq in range(total):
            producer.begin(seq, intended_us=seq * 400_000, deadline_us=seq * 400_000, sent_us=0, size_bytes=1)
            if seq >= 40 and seq - 40 not in lost:
                end(producer, seq - 40)
        for seq in range(total - 40, total):
            end(producer, seq)
        over.set()

    thread = threading.Thread(target=record)
    thread.start()
    while not over.is_set():
        move(bench.spool, bench.outcomes)
        statuses(on_disk(bench))
    thread.join()
    convert(bench.spool, bench.outcomes)
    assert {seq: "in_doubt" if seq in lost else "ok" for seq in range(total)} == statuses(on_disk(bench))


def test_a_million_rows_pass_through_little_memory(bench: Bench) -> None:
    """The spool and the worker's mappings hold a few segments; files reach the size that Spark reads best."""
    bench.outcomes.mkdir()
    producer = ProduceSpool(bench.spool, bench.produce())
    for upto in range(100_000, 1_000_001, 100_000):
        send(producer, upto)
        move(bench.spool, bench.outcomes)
        assert sum(not mapped.closed for mapped in producer._maps) <= MAPPED_MAX
        assert len(segments(bench)) <= SEGMENTS_A_GROUP + 1
    convert(bench.spool, bench.outcomes)
    names = current_parts([f"outcomes/{path.name}" for path in bench.outcomes.iterdir()])
    rows = sorted(pq.ParquetFile(bench.outcomes.parent / name).metadata.num_rows for name in names)
    assert 1_000_000 == sum(rows)
    assert len(rows) <= 9
    tables = [pq.read_table(bench.outcomes.parent / name, columns=["seq"]) for name in names]
    assert 1_000_000 == len({seq for table in tables for seq in table["seq"].to_numpy()})


def deliver(consumer: ConsumeSpool, offsets: range, topic_number: int = 0) -> None:
    common = {
        "topic_number": topic_number,
        "producer_id": 0,
        "intended_us": 0,
        "done_us": 1,
        "high_watermark": -1,
        "leader_epoch": 0,
        "size_bytes": 1,
    }
    for offset in offsets:
        consumer.append(seq=offset, partition=offset % 3, offset=offset, **common)


@pytest.mark.usefixtures("small")
def test_a_consumer_without_a_group_continues_after_its_moved_rows(bench: Bench) -> None:
    """Its positions outlive the rows that they were read from."""
    bench.outcomes.mkdir()
    consumer = ConsumeSpool(bench.spool, bench.consume())
    deliver(consumer, range(SMALL * 4))
    move(bench.spool, bench.outcomes)
    assert 1 == len(list((bench.spool / "c0").glob("*.rows")))
    consumer = ConsumeSpool(bench.spool, bench.consume(life=1))
    assert {(bench.topic, 0): 256, (bench.topic, 1): 254, (bench.topic, 2): 255} == consumer.positions()
    deliver(consumer, range(SMALL * 4, SMALL * 6))
    move(bench.spool, bench.outcomes)
    reached = ConsumeSpool(bench.spool, bench.consume(life=2)).positions()
    assert {(bench.topic, 0): 382, (bench.topic, 1): 383, (bench.topic, 2): 384} == reached
    convert(bench.spool, bench.outcomes)
    assert list(range(SMALL * 6)) == [row["offset"] for row in on_disk(bench)]


@pytest.mark.usefixtures("small")
def test_the_positions_of_two_topics_outlive_their_rows(bench: Bench) -> None:
    """Partitions with the same number are told apart, also in moved files."""
    more = {"more_topics": [{"name": "returns", "topic_id": "id-2", "partitions": 3}]}
    bench.outcomes.mkdir()
    consumer = ConsumeSpool(bench.spool, bench.consume(**more))
    deliver(consumer, range(SMALL * 2))
    deliver(consumer, range(SMALL), topic_number=1)
    move(bench.spool, bench.outcomes)
    deliver(consumer, range(SMALL, SMALL + 3), topic_number=1)
    move(bench.spool, bench.outcomes)
    expected = {(bench.topic, 0): 127, (bench.topic, 1): 128, (bench.topic, 2): 126}
    expected |= {("returns", 1): SMALL + 1, ("returns", 2): SMALL + 2, ("returns", 0): SMALL + 3}
    assert expected == ConsumeSpool(bench.spool, bench.consume(life=1, **more)).positions()
    convert(bench.spool, bench.outcomes)
    assert {bench.topic: 2 * SMALL, "returns": SMALL + 3} == Counter(row["topic"] for row in on_disk(bench))


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A memory file system of 3 MiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder]
    if os.getuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_memory_is_an_error_that_says_what_to_do(bench: Bench, tiny: Path) -> None:
    """No SIGBUS; the rows so far are kept, and after a move there is room again."""
    bench.outcomes.mkdir()
    producer = ProduceSpool(tiny, bench.produce(spool=tiny))
    with pytest.raises(WorkloadError, match=r"tiny.* \(3 MiB\) is full.*the rows so far are kept.*--shm-size"):
        send(producer, 10 * spool.ROWS)
    reached = producer.next
    assert reached >= 2 * spool.ROWS
    producer.idle()  # room is wanted in advance, which is no reason to fail
    move(tiny, bench.outcomes)
    send(producer, reached + spool.ROWS)
    convert(tiny, bench.outcomes)
    assert dict.fromkeys(range(reached + spool.ROWS), "ok") == statuses(on_disk(bench))

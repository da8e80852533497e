from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaError

from aftershock.workloads.load.outcomes import SCHEMA, convert, write_whole
from aftershock.workloads.load.spool import UNKNOWN, ConsumeSpool, ProduceSpool, Status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from aftershock.tests.unit.workloads.conftest import Bench


def test_the_columns_are_the_public_contract() -> None:
    """Names, order and types of design.md 5.3; nobody renames a column by accident."""
    assert " ".join(SCHEMA.names) == (
        "workload arm client op producer_id seq topic topic_id partition offset group member leader_epoch broker_id "
        "broker_rack client_rack high_watermark intended_us deadline_us sent_us done_us attempts bytes status error "
        "worker"
    )
    ints = {field.name for field in SCHEMA if field.type == pa.int32()}
    assert ints == {"producer_id", "partition", "leader_epoch", "broker_id", "attempts", "bytes"}


def test_a_produce_row_says_everything_that_is_known(bench: Bench) -> None:
    """Success, failure and doubt, each with its error's name, and null for what isn't known."""
    spool = ProduceSpool(bench.spool, bench.produce(producer_id=4, client_rack="b"))
    for seq in range(3):
        spool.begin(seq, intended_us=100 * seq, deadline_us=900, sent_us=100 * seq + 1, size_bytes=60)
    spool.end(0, done_us=50, status=Status.OK, code=0, partition=3, offset=17)
    size = KafkaError.MSG_SIZE_TOO_LARGE
    spool.end(1, done_us=150, status=Status.FAILED, code=size, partition=UNKNOWN, offset=UNKNOWN)
    timeout = KafkaError._MSG_TIMED_OUT
    spool.end(2, done_us=901, status=Status.IN_DOUBT, code=timeout, partition=2, offset=UNKNOWN)
    (part,) = convert(bench.spool, bench.outcomes)
    first, second, third = pq.read_table(part).to_pylist()
    assert first == dict.fromkeys(SCHEMA.names) | {
        "workload": "orders",
        "arm": "baseline",
        "client": "confluent",
        "worker": "p0",
        "op": "produce",
        "producer_id": 4,
        "seq": 0,
        "topic": bench.topic,
        "topic_id": f"id-of-{bench.topic}",
        "partition": 3,
        "offset": 17,
        "client_rack": "a",
        "intended_us": 0,
        "deadline_us": 900,
        "sent_us": 1,
        "done_us": 50,
        "bytes": 60,
        "status": "ok",
    }
    told = [(row["status"], row["error"], row["partition"], row["offset"]) for row in (second, third)]
    assert told == [("failed", "MSG_SIZE_TOO_LARGE", None, None), ("in_doubt", "_MSG_TIMED_OUT", 2, None)]


def test_a_consume_row_names_the_member_that_held_the_partition(bench: Bench) -> None:
    """A foreign record has no sender; the member changes with the assignment; what is spoilt is told."""
    spool = ConsumeSpool(bench.spool, bench.consume(group="g-baseline"))
    same = {"done_us": 9, "partition": 1, "high_watermark": 12, "leader_epoch": 3, "size_bytes": 60}
    spool.member("member-1")
    spool.append(producer_id=4, seq=8, intended_us=5, offset=10, **same, corrupt=True)
    spool.member("member-2")
    spool.append(producer_id=UNKNOWN, seq=UNKNOWN, intended_us=UNKNOWN, offset=11, **same)
    (part,) = convert(bench.spool, bench.outcomes)
    ours, foreign = pq.read_table(part).to_pylist()
    facts = ("producer_id", "seq", "intended_us", "offset", "group", "member", "high_watermark", "leader_epoch")
    assert [ours[fact] for fact in facts] == [4, 8, 5, 10, "g-baseline", "member-1", 12, 3]
    assert [foreign[fact] for fact in facts] == [None, None, None, 11, "g-baseline", "member-2", 12, 3]
    assert ("VALUE_CORRUPT", None) == (ours["error"], foreign["error"])
    assert (ours["status"], ours["deadline_us"], ours["sent_us"], ours["op"]) == ("ok", None, None, "consume")


def test_converting_again_gives_the_same(bench: Bench) -> None:
    """A runner that died in the middle may begin again; a worker that sent nothing has an empty file."""
    ProduceSpool(bench.spool, bench.produce())
    (bench.spool / "died-at-birth").mkdir()
    (first,) = convert(bench.spool, bench.outcomes)
    before = first.read_bytes()
    assert convert(bench.spool, bench.outcomes) == [first]
    assert first.read_bytes() == before
    assert pq.read_table(first).num_rows == 0
    assert pq.read_schema(first).equals(SCHEMA)


def test_integers_are_delta_packed_and_strings_dictionary_coded(bench: Bench) -> None:
    """The encodings are what makes the evidence small; a dictionary on integers would undo it."""
    spool = ProduceSpool(bench.spool, bench.produce())
    spool.begin(0, intended_us=1, deadline_us=2, sent_us=3, size_bytes=4)
    (part,) = convert(bench.spool, bench.outcomes)
    group = pq.ParquetFile(part).metadata.row_group(0)
    columns = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
    assert "DELTA_BINARY_PACKED" in columns["intended_us"].encodings
    assert "RLE_DICTIONARY" in columns["arm"].encodings
    assert {column.compression for column in columns.values()} == {"ZSTD"}


def test_half_a_file_is_no_file(tmp_path: Path) -> None:
    """When writing fails in the middle (the disk is full, say), nothing is left under any name."""

    def groups() -> Iterator[dict[str, Any]]:
        yield {"topic": ["t"], "offset": [1]}
        raise OSError(28, "No space left on device")

    schema = pa.schema([("topic", pa.string()), ("offset", pa.int64())])
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "part-t.parquet", schema, groups())
    assert list(tmp_path.iterdir()) == []

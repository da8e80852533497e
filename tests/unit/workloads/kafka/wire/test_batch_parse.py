"""Parsing of record batches: refused, skipped and accepted input."""

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.errors import ProtocolError, UnsupportedError
from aftershock.tests.unit.workloads.kafka.wire.record_shapes import Shape, alike, any_shapes, shapes_in_runs, unlike
from aftershock.workloads.kafka.wire import compression, schema
from aftershock.workloads.kafka.wire.batch import (
    AFTER_CRC,
    BATCH_OVERHEAD,
    CONTROL,
    UNTIL_CRC,
    BatchHeader,
    Record,
    parse,
)
from aftershock.workloads.kafka.wire.batch_builder import seal


def resealed(batch: bytes, records: bytes | None = None, **changes: int) -> bytes:
    """The batch with other header fields or other records, its CRC right again."""
    header = BatchHeader(*UNTIL_CRC.unpack_from(batch), *AFTER_CRC.unpack_from(batch, UNTIL_CRC.size))
    changed = header._replace(**changes)
    return seal(
        changed.base_offset,
        AFTER_CRC.pack(*changed[5:]),
        batch[BATCH_OVERHEAD:] if records is None else records,
        changed.leader_epoch,
    )


@given(any_shapes() | shapes_in_runs(), st.sampled_from(compression.NAMES))
@settings(max_examples=80)
def test_built_batches_are_read(shape: Shape, codec: str) -> None:
    """Any records, by any codec: all of them are read, in order."""
    (batch,) = parse(shape.build(compression=codec))
    assert shape.records() == batch.records


@given(any_shapes() | shapes_in_runs())
@settings(max_examples=40)
def test_kafka_pythons_batches_are_read(shape: Shape) -> None:
    (batch,) = parse(shape.built_by_kafka_python())
    assert shape.records() == batch.records


def test_batches_follow_one_another() -> None:
    """Each with offsets of its own."""
    buffer = b"".join(shape.build(base_offset=base) for base, shape in ((0, alike(5)), (5, unlike(7)), (90, alike(2))))
    batches = list(parse(buffer))
    assert [(0, 4), (5, 11), (90, 91)] == [(batch.base_offset, batch.last_offset) for batch in batches]
    assert [90, 91] == [record.offset for record in batches[2].records]
    assert len(buffer) == sum(batch.size_bytes for batch in batches)


@pytest.mark.parametrize("kept", [0, 1, 11, 12, 16, 17, 60, 61, 200])
def test_a_truncated_batch_is_left_out(kept: int) -> None:
    """A broker fills its response up to the fetch's limit: whole batches are read, the rest is fetched again."""
    whole = alike(5).build()
    assert 1 == len(list(parse(whole + whole[:kept])))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_unsupported(magic: int) -> None:
    """They have their own layout, and the sentence says which one is read."""
    old = bytearray(alike(1).build())
    old[16] = magic
    with pytest.raises(UnsupportedError, match=f"old format {magic}.*reads only format 2"):
        list(parse(bytes(old)))


def test_a_format_of_the_future_is_a_protocol_error() -> None:
    """No broker sends one unasked."""
    new = bytearray(alike(1).build())
    new[16] = 3
    with pytest.raises(ProtocolError, match="format 3"):
        list(parse(bytes(new)))


def test_a_wrong_crc_is_an_error_that_names_the_batch() -> None:
    """One flipped bit in a value; without the check the batch is read."""
    batch = bytearray(alike(5, 50).build(base_offset=4711))
    batch[100] ^= 1
    with pytest.raises(ProtocolError, match="offset 4711 is corrupt: its CRC"):
        list(parse(bytes(batch)))
    assert 5 == len(next(parse(bytes(batch), check_crc=False)).records)


@pytest.mark.parametrize("length", [-1, 0, 48, 2**31 - 1])
def test_impossible_lengths_are_refused(length: int) -> None:
    """Less than a header, or more than the limit: an error, not a wait for more data."""
    batch = alike(3).build()
    with pytest.raises(ProtocolError, match="a record batch has"):
        list(parse(batch[:8] + struct.pack(">i", length) + batch[12:]))


def test_a_batch_beyond_the_limit() -> None:
    """The limit holds on the wire and after decompression alike."""
    large = alike(10, 2000)
    for codec in compression.NAMES:
        with pytest.raises(ProtocolError, match="10000"):
            list(parse(large.build(compression=codec), batch_bytes_max=10_000))
        assert 10 == next(parse(large.build(compression=codec), batch_bytes_max=30_000)).header.record_count


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"record_count": -1}, "-1 records"),
        ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 1}, "2147483647 records can't fit in"),
        ({"record_count": 6, "last_offset_delta": 5}, "cut off"),
        ({"record_count": 4}, "follow the last of 4 records"),
        ({"record_count": 0}, "follow the last of 0 records"),
        ({"last_offset_delta": 3}, "offset delta 4 exceeds the batch's last offset delta, 3"),
        ({"attributes": 5}, "codec 5, which does not exist"),
        ({"attributes": 1}, "invalid gzip data"),
    ],
)
def test_headers_that_contradict_their_records(changes: dict[str, Any], complaint: str) -> None:
    """A valid CRC doesn't make a wrong header valid, and a count allocates no memory beyond the bytes."""
    with pytest.raises(ProtocolError, match=f"offset 7 is corrupt: .*{complaint}"):
        list(parse(resealed(alike(5).build(base_offset=7), **changes)))


def test_offsets_that_end_before_the_last_one() -> None:
    """Compaction keeps the header's last offset and takes records away: the next fetch starts behind it."""
    (batch,) = parse(resealed(alike(5).build(), last_offset_delta=20))
    assert 20 == batch.last_offset
    assert [0, 1, 2, 3, 4] == [record.offset for record in batch.records]


def test_a_batch_that_compaction_emptied() -> None:
    """Kafka keeps the header of a producer's last batch: no records, and an end to go on from."""
    (batch,) = parse(resealed(alike(5).build(base_offset=30), b"", record_count=0))
    assert 34 == batch.last_offset
    assert [] == batch.records


def record(*fields: bytes | int, length: int | None = None) -> bytes:
    body = b"\0" + b"".join(field if isinstance(field, bytes) else schema.varint(field) for field in fields)
    return schema.varint(len(body) if length is None else length) + body


def read(*records: bytes) -> Sequence[Record]:
    """Return the records of a batch with these encoded records."""
    count = len(records)
    changes = {"record_count": count, "last_offset_delta": 2**31 - 1, "base_timestamp_ms": 100}
    (batch,) = parse(resealed(alike(1).build(), b"".join(records), **changes))
    return batch.records


def test_a_record_is_read_field_by_field() -> None:
    """Deltas, key, value and two headers, one of them null; any negative size is null, as in Kafka."""
    first = record(-3, 5, 2, b"ky", 3, b"val", 2, 1, b"h", 2, b"xy", 1, b"i", -1)
    assert [
        Record(5, 97, b"ky", b"val", (("h", b"xy"), ("i", None))),
        Record(6, 100, None, None, ()),
    ] == read(first, record(0, 6, -1, -2, 0))


@pytest.mark.parametrize(("delta", "complaint"), [(0, "delta 0 follows the offset delta 0"), (-2, "offset delta -2")])
def test_offset_deltas_must_ascend(delta: int, complaint: str) -> None:
    """A batch that says the same offset twice, goes back, or begins before its base offset is corrupt."""
    with pytest.raises(ProtocolError, match=complaint):
        read(*[record(0, 0, -1, -1, 0)] * (delta == 0), record(0, delta, -1, -1, 0))


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (record(0, 0, -1, -1, 0, b"x"), "has length 7, but its fields end"),
        (record(0, 0, -1, -1, 0, length=5), "-1 bytes|fields end"),
        (record(0, 0, 100, b"k"), "the field at byte 6 of the records has 100 bytes, its record only 1 more"),
        (record(0, 0, -1, 2**31, b"v"), "2147483648 bytes"),
        (record(0, 0, -1, -1, -1), "-1 headers"),
        (record(0, 0, -1, -1, 50, b"h"), "50 headers in 1 bytes"),
        (record(0, 0, -1, -1, 1, -1, -1), "name at byte .* is null"),
        (record(0, 0, -1, -1, 1, 1, b"h", 9, b"x"), "9 bytes"),
        (record(0, 0, -1, -1, 0, length=-4), "has length -4"),
        (record(0, 0, -1, -1, 0, length=10**9), "has length 1000000000, but 6 bytes remain"),
        (b"\x80" * 7, "cut off"),
    ],
)
def test_what_is_no_record(bad: bytes, complaint: str) -> None:
    """Every size and count is held against what is there before it is used."""
    with pytest.raises(ProtocolError, match=complaint):
        read(bad)


def test_control_batches_are_marked() -> None:
    """The coordinator's markers are parsed; the consumer leaves them out."""
    (batch,) = parse(resealed(alike(1).build(), attributes=CONTROL))
    assert batch.is_control


def test_the_brokers_timestamp_replaces_the_producers() -> None:
    """With LogAppendTime all records of a batch have the header's maximum."""
    (batch,) = parse(resealed(alike(3, ms_apart=7).build(), attributes=1 << 3, max_timestamp_ms=55))
    assert [55, 55, 55] == [record.timestamp_ms for record in batch.records]


@given(
    st.sampled_from([alike(20, 40, ms_apart=2), unlike(12)]),
    st.sampled_from(compression.NAMES),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=6),
    st.booleans(),
)
@settings(max_examples=300)
def test_mutated_batches_are_read_or_refused(
    shape: Shape, codec: str, mutations: list[tuple[int, int]], repair: bool
) -> None:
    """No mutation, with the CRC left wrong or put right, gives anything but records or one of our two errors."""
    batch = bytearray(shape.build(compression=codec))
    for at, byte in mutations:
        batch[at % len(batch)] = byte
    mutated = resealed(bytes(batch)) if repair else bytes(batch)
    try:
        for parsed in parse(mutated, check_crc=repair, batch_bytes_max=1 << 20):
            assert len(parsed.records) == parsed.header.record_count
    except (ProtocolError, UnsupportedError):
        return

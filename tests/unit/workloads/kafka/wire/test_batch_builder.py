"""Built batches, compared with kafka-python's builder and with our own generic path."""

from typing import Any

import pytest
from hypothesis import given, settings

from aftershock.tests.unit.workloads.kafka.wire.record_shapes import NOW_MS, Shape, alike, any_shapes, unlike
from aftershock.workloads.kafka.wire import batch_builder
from aftershock.workloads.kafka.wire.batch import TRANSACTIONAL, parse
from aftershock.workloads.kafka.wire.batch_builder import build

#: shapes that have a fast path, around the places where varints grow
FAST = {
    "one": alike(1),
    "marks": alike(16, 1000),
    "no headers": alike(16, 1000, marks=False),
    "keys": alike(100, 10, key_size=8),
    "empty values": alike(16, 0),
    "later and later": alike(200, 50, ms_apart=1),
    "much later": alike(70, 300, ms_apart=5000),
    "earlier and earlier": alike(70, 20, ms_apart=-2),
    "offsets of three bytes": alike(8200, 3),
    "a length of two bytes by a header": alike(8, 28),
}


@pytest.mark.parametrize("shape", FAST.values(), ids=FAST)
def test_the_fast_way_equals_kafka_python(shape: Shape) -> None:
    """Every shape that is joined by columns has the bytes that an independent builder gives it."""
    assert batch_builder._same_shape_columns(shape.values, shape.keys, shape.headers) is not None
    assert shape.built_by_kafka_python() == shape.build()


@pytest.mark.parametrize("shape", FAST.values(), ids=FAST)
def test_the_fast_way_equals_the_slow_way(shape: Shape) -> None:
    """The two ways through our own code."""
    deltas = [time_ms - shape.timestamps_ms[0] for time_ms in shape.timestamps_ms]
    columns = shape.values, deltas, shape.keys, shape.headers
    assert batch_builder.one_by_one(*columns) == batch_builder.records_bytes(*columns)


@given(any_shapes())
@settings(max_examples=60)
def test_any_records_equal_kafka_python(shape: Shape) -> None:
    """Nulls, several headers, times that go back: the same bytes, whichever way they are made."""
    assert shape.built_by_kafka_python() == shape.build()


def test_gzip_equals_kafka_python_when_decompressed() -> None:
    """The compressor's bytes are its own; the header around them and what comes out are the same."""
    (ours,), (theirs,) = (
        list(parse(batch)) for batch in (unlike(40).build(compression="gzip"), unlike(40).built_by_kafka_python(1))
    )
    assert theirs.records == ours.records
    assert theirs.header.attributes == ours.header.attributes


def test_the_header_has_the_given_fields() -> None:
    """Producer, sequence, offsets, times and the transactional bit."""
    (batch,) = parse(
        alike(3, ms_apart=5).build(
            base_offset=70, producer_id=9, producer_epoch=2, base_sequence=40, compression="zstd", transactional=True
        )
    )
    assert (70, 72, 3) == (batch.base_offset, batch.last_offset, len(batch.records))
    assert (9, 2, 40) == (batch.header.producer_id, batch.header.producer_epoch, batch.header.base_sequence)
    assert (NOW_MS, NOW_MS + 10) == (batch.header.base_timestamp_ms, batch.header.max_timestamp_ms)
    assert batch.header.attributes & TRANSACTIONAL
    assert not batch.is_control


def test_the_largest_timestamp_need_not_be_the_last() -> None:
    """Kafka indexes by the header's maximum."""
    (batch,) = parse(build([b"a", b"b", b"c"], timestamps_ms=[NOW_MS, NOW_MS + 9, NOW_MS + 1]))
    assert NOW_MS + 9 == batch.header.max_timestamp_ms
    assert [NOW_MS, NOW_MS + 9, NOW_MS + 1] == [record.timestamp_ms for record in batch.records]


@pytest.mark.parametrize(
    "told",
    [
        {"values": [], "timestamps_ms": []},
        {"values": [b""], "timestamps_ms": []},
        {"values": [b""], "timestamps_ms": [0], "keys": []},
        {"values": [b""], "timestamps_ms": [0], "headers": [(), ()]},
    ],
)
def test_columns_must_have_equal_lengths(told: dict[str, Any]) -> None:
    """A caller's error must not give a batch with fewer records."""
    with pytest.raises(ValueError, match="as many timestamps, keys and headers"):
        build(**told)

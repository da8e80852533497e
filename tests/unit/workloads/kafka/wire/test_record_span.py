"""Single records that are none: each of Kafka's own checks, and the ends of the buffer."""

import pytest

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.wire import schema
from aftershock.workloads.kafka.wire.record_columns import read


def record(*fields: bytes | int, length: int | None = None) -> memoryview:
    body = b"\0" + b"".join(field if isinstance(field, bytes) else schema.varint(field) for field in fields)
    return memoryview(schema.varint(len(body) if length is None else length) + body)


def test_a_record_is_read_field_by_field() -> None:
    """Deltas, key, value and two headers, one of them null, each where it is."""
    span = read(record(-3, 5, 2, b"ky", 3, b"val", 2, 1, b"h", 2, b"xy", 1, b"i", -1), 0)
    assert (-3, 5) == (span.time_delta_ms, span.offset_delta)
    assert (5, 2) == (span.key_at, span.key_size)
    assert (8, 3) == (span.value_at, span.value_size)
    assert 11 == span.headers_at
    assert ((15, 17), (20, 20)) == span.header_values


def test_negative_sizes_are_nulls() -> None:
    """As in Kafka, any negative size of a key or value."""
    span = read(record(0, 0, -1, -2, 0), 0)
    assert (-1, -1) == (span.key_size, span.value_size)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (record(0, 0, -1, -1, 0, b"x"), "has length 7, but its fields end"),
        (record(0, 0, -1, -1, 0, length=5), "-1 bytes|fields end"),
        (record(0, 0, 100, b"k"), "a field of 100 bytes at byte 6 of the records, but its record has only 1"),
        (record(0, 0, -1, 2**31, b"v"), "2147483648 bytes"),
        (record(0, 0, -1, -1, -1), "-1 headers"),
        (record(0, 0, -1, -1, 50, b"h"), "50 headers in 1 bytes"),
        (record(0, 0, -1, -1, 1, -1, -1), "name at byte .* is null"),
        (record(0, 0, -1, -1, 1, 1, b"h", 9, b"x"), "9 bytes"),
        (record(0, 0, -1, -1, 0, length=-4), "has length -4"),
        (record(0, 0, -1, -1, 0, length=10**9), "has length 1000000000, but 6 bytes remain"),
        (memoryview(b"\x80"), "cut off"),
        (memoryview(b""), "cut off"),
    ],
)
def test_what_is_no_record(bad: memoryview, complaint: str) -> None:
    """Every size and count is held against what is there before it is used."""
    with pytest.raises(ProtocolError, match=complaint):
        read(bad, 0)

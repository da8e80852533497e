"""Varints at the edges of their sizes, and the values that mean none."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.workloads.kafka.wire.schema import FIXED, read_uvarint, uvarint


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, b"\x00"),
        (1, b"\x01"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (16383, b"\xff\x7f"),
        (16384, b"\x80\x80\x01"),
        (2**31 - 1, b"\xff\xff\xff\xff\x07"),
    ],
)
def test_varint_vectors(number: int, encoded: bytes) -> None:
    """Protocol buffers' own examples and the ends of each length, both ways, with a byte on either side."""
    assert encoded == uvarint(number)
    assert (number, 1 + len(encoded)) == read_uvarint(b"\xff" + encoded + b"\xff", 1)


@given(st.integers(0, 2**31 - 1))
def test_varints_come_back(number: int) -> None:
    """Every length that a message can have is read as it was written, from bytes and from views."""
    encoded = uvarint(number)
    assert (number, len(encoded)) == read_uvarint(memoryview(encoded), 0)


@pytest.mark.parametrize(("kind", "raw"), [("uuid", bytes(16)), ("datetime_i64", -1)])
def test_what_means_none_is_none(kind: str, raw: Any) -> None:
    """The zero uuid and the timestamp -1 are None, both ways."""
    fixed = FIXED[kind]
    assert fixed.from_wire is not None
    assert fixed.to_wire is not None
    assert fixed.from_wire(raw) is None
    assert raw == fixed.to_wire(None)


def test_a_timestamp_keeps_its_milliseconds() -> None:
    """Exactly, where arithmetic in float seconds would lose some."""
    fixed = FIXED["datetime_i64"]
    assert fixed.from_wire is not None
    assert fixed.to_wire is not None
    moment = fixed.from_wire(1_700_000_000_123)
    assert datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC) == moment
    assert 1_700_000_000_123 == fixed.to_wire(moment)

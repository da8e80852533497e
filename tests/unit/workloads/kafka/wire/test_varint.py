"""Varints against kafka-python's, and the limits of reading one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.errors import ProtocolError
from aftershock.tests.unit.workloads.kafka.wire.kafka_python_records import decode_varint, encode_varint
from aftershock.workloads.kafka.wire import schema

numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-70_000, 70_000)


@given(numbers)
def test_equals_kafka_python(number: int) -> None:
    """Every 64-bit number has the bytes that an independent encoder gives it."""
    theirs = bytearray()
    encode_varint(number, theirs.append)
    assert bytes(theirs) == schema.varint(number)


@given(numbers, st.binary(max_size=3), st.binary(max_size=3))
def test_reads_what_it_wrote_wherever_it_lies(number: int, before: bytes, after: bytes) -> None:
    """Reading gives the number and the place behind it, as kafka-python's reader does."""
    buffer = before + schema.varint(number) + after
    assert (number, len(buffer) - len(after)) == schema.read_varint(memoryview(buffer), len(before))
    assert decode_varint(buffer, len(before)) == schema.read_varint(memoryview(buffer), len(before))


@pytest.mark.parametrize("endless", [b"\x80" * 10 + b"\x01", b"\xff" * 9 + b"\x02", b"\xff" * 40])
def test_more_than_64_bits_are_no_varint(endless: bytes) -> None:
    """An eleventh byte, or a tenth that says more than one bit, is refused however much data there is."""
    with pytest.raises(ProtocolError, match="64 bits"):
        schema.read_varint(memoryview(endless), 0)


def test_a_buffer_that_ends_within_a_varint() -> None:
    """The caller, who knows what was being read, is told by an IndexError."""
    with pytest.raises(IndexError):
        schema.read_varint(memoryview(b"\x80\x80"), 0)

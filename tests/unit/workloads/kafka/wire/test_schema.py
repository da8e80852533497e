"""What is read off kio's dataclasses: order, runs, tags, and the one field that breaks the rule."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.fetch.v16.request import FetchRequest
from kio.schema.produce.v11.response import PartitionProduceResponse
from kio.schema.request_header.v2.header import RequestHeader

from aftershock.errors import ProtocolError
from aftershock.tests.unit.workloads.kafka.wire.kafka_python_records import decode_varint, encode_varint
from aftershock.workloads.kafka.wire import schema
from aftershock.workloads.kafka.wire.schema import (
    FIXED,
    Function,
    plain_fields,
    read_uvarint,
    runs,
    tagged_fields,
    uvarint,
)


def test_neighbours_of_fixed_size_are_one_run() -> None:
    """A produced partition: thirty bytes that are always there are one piece, array and string one each."""
    assert [
        ("index", "error_code", "base_offset", "log_append_time", "log_start_offset"),
        ("record_errors",),
        ("error_message",),
    ] == [tuple(field.name for field in run) for run in runs(PartitionProduceResponse)]


def test_tagged_fields_come_by_rising_tag() -> None:
    """KIP-482 wants them in that order, whatever the order of the definition."""
    tags = [field.tag for field in tagged_fields(FetchRequest)]
    assert sorted(tags) == tags
    assert {"cluster_id", "replica_state"} == {field.name for field in tagged_fields(FetchRequest)}
    assert not {"cluster_id", "replica_state"} & {field.name for field in plain_fields(FetchRequest)}


def test_the_client_id_keeps_its_old_form() -> None:
    """A broker must be able to read a request's header whatever its version, so its string isn't compact."""
    assert [("client_id", False)] == [(f.name, f.compact) for f in plain_fields(RequestHeader) if not f.fixed]
    assert all(field.compact for field in plain_fields(FetchRequest))


def test_lines_speak_of_bound_things() -> None:
    """A function gets its parameters, and by a name of its own each object that was bound, equal ones included."""
    function = Function("(number)")
    first, second = function.bind([1]), function.bind([1])
    assert first != second
    function.add(f"{first}.append(number)", "if number > 2:", f"    return {first}", f"return {second}")
    made = function.compile()
    assert [1] == made(2)
    assert [1, 2, 3] == made(3)


def test_functions_share_no_names() -> None:
    """What one binds is not seen by another."""
    one, other = Function("()"), Function("()")
    one.add(f"return {one.bind('one')}")
    other.add(f"return {other.bind('other')}")
    assert ("one", "other") == (one.compile()(), other.compile()())


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


def test_a_varint_of_more_than_five_bytes_is_a_protocol_error() -> None:
    """The wire proxy reads request headers outside the decoder, and closes the connection on ProtocolError only."""
    with pytest.raises(ProtocolError, match="the unsigned varint at byte 1 is longer than 5 bytes"):
        read_uvarint(bytes([0, 255, 255, 255, 255, 255, 1]), 1)


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

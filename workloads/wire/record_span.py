"""Reads one record of a block, field by field.

::

    length │ attributes 1 · time delta · offset delta · key size · key · value size · value · header count · headers

Lengths, sizes, counts and deltas are varints; a header is a name and a value, each behind its size. Source:
``DefaultRecord.readFrom`` of Kafka 4.3, with its checks.
"""

from collections.abc import Iterator
from typing import NamedTuple

from aftershock.errors import ProtocolError
from aftershock.workloads.wire import varint

RECORD_BYTES_MIN = 7  # each of the seven fixed fields in one byte


class Span(NamedTuple):
    """One record in a block: where its parts begin, and what its deltas are. A null has size -1."""

    start: int
    time_at: int
    time_delta_ms: int
    offset_delta_at: int
    offset_delta: int
    deltas_end: int
    key_at: int
    key_size: int
    value_at: int
    value_size: int
    headers_at: int
    header_values: tuple[tuple[int, int], ...]
    """From where to where the contents of headers are."""
    end: int

    @property
    def stride(self) -> int:
        """How far away the next record is."""
        return self.end - self.start

    @property
    def row(self) -> tuple[int, ...]:
        """What ``Columns`` says of a record."""
        return (
            self.time_delta_ms,
            self.offset_delta,
            self.key_at,
            self.key_size,
            self.value_at,
            self.value_size,
            self.headers_at,
        )

    def repeating(self) -> Iterator[tuple[int, int]]:
        """The bytes, counted from the record's start, that are the same in every record of a run."""
        key, value = (self.key_at, self.key_at + self.key_size), (self.value_at, self.value_at + self.value_size)
        yield 0, self.time_at - self.start
        at = self.deltas_end
        for start, end in (key, value, *self.header_values):
            if start < end:
                yield at - self.start, start - self.start
                at = end
        if at < self.end:
            yield at - self.start, self.stride


def read(payload: memoryview, start: int) -> Span:
    """The record at ``start``; ProtocolError when it isn't one, or not all of it is in ``payload``."""
    try:
        return _read_fields(payload, start)
    except IndexError:
        raise ProtocolError(f"the record at byte {start} of {len(payload)} breaks off") from None


def _read_fields(payload: memoryview, start: int) -> Span:
    length, at = varint.read(payload, start)
    end = at + length
    if not at < end <= len(payload):
        raise ProtocolError(f"the record at byte {start} says {length} bytes, and {len(payload) - at} are left")
    time_at = at + 1  # behind the attributes, of which no bit means anything yet
    time_delta_ms, offset_delta_at = varint.read(payload, time_at)
    offset_delta, deltas_end = varint.read(payload, offset_delta_at)
    key_at, key_size, at = _read_field(payload, deltas_end, end)
    value_at, value_size, headers_at = _read_field(payload, at, end)
    header_values, at = _read_headers(payload, headers_at, end)
    if at != end:
        raise ProtocolError(f"the record at byte {start} says {length} bytes, and its fields don't")
    return Span(
        start,
        time_at,
        time_delta_ms,
        offset_delta_at,
        offset_delta,
        deltas_end,
        key_at,
        key_size,
        value_at,
        value_size,
        headers_at,
        header_values,
        end,
    )


def _read_field(payload: memoryview, at: int, end: int) -> tuple[int, int, int]:
    """Where a key or value begins, its size, and where the next field is."""
    size, at = varint.read(payload, at)
    if size < 0:
        return at, -1, at
    behind = at + size
    if behind > end:
        raise ProtocolError(f"{size} bytes at byte {at} of the records, of which {end - at} are in the record")
    return at, size, behind


def _read_headers(payload: memoryview, at: int, end: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Where the contents of the headers are, and where they all end."""
    count, at = varint.read(payload, at)
    if not 0 <= count <= end - at:
        raise ProtocolError(f"{count} headers are said to be in {end - at} bytes")
    contents = []
    for _ in range(count):
        name_at, name_size, at = _read_field(payload, at, end)
        if name_size < 0:
            raise ProtocolError(f"a header's name at byte {name_at} of the records is null")
        content_at, _, at = _read_field(payload, at, end)
        contents.append((content_at, at))
    return tuple(contents), at

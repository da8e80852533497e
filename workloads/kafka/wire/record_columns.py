"""Reads one record of a block, field by field.

::

    length │ attributes 1 · time delta · offset delta · key size · key · value size · value · header count · headers

Lengths, sizes, counts and deltas are varints; a header is a name and a value, each behind its size. Source:
``DefaultRecord.readFrom`` of Kafka 4.3, with its checks.

Finds where each record's parts are: the columns of a block of records.

Records of one shape, with deltas of one varint length, lie a constant stride apart. The first one of such a *run* is
read field by field; the others are known to be like it once the bytes between its variable parts have been found to
repeat. Records that don't repeat are read one by one.
"""

from array import array
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.wire import schema

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
    length, at = schema.read(payload, start)
    end = at + length
    if not at < end <= len(payload):
        raise ProtocolError(f"the record at byte {start} says {length} bytes, and {len(payload) - at} are left")
    time_at = at + 1  # behind the attributes, of which no bit means anything yet
    time_delta_ms, offset_delta_at = schema.read(payload, time_at)
    offset_delta, deltas_end = schema.read(payload, offset_delta_at)
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
    size, at = schema.read(payload, at)
    if size < 0:
        return at, -1, at
    behind = at + size
    if behind > end:
        raise ProtocolError(f"{size} bytes at byte {at} of the records, of which {end - at} are in the record")
    return at, size, behind


def _read_headers(payload: memoryview, at: int, end: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Where the contents of the headers are, and where they all end."""
    count, at = schema.read(payload, at)
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


_RUN_MIN = 4  # fewer records are read sooner one by one
_RUN_MAX = 1 << 13  # what is kept of runs for the next batch is bounded by it
_MORE = 0x80  # the bit of a varint's byte that says another follows
_TIME_BYTES_MAX = 9  # a longer delta is checked for overflow, and so read by itself
_FEW = 1024  # records in a run of which the steps are kept for the next batch

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


class Columns(NamedTuple):
    """Per record: the deltas, and where its parts are in the block (size -1: null)."""

    time_delta_ms: Ints
    offset_delta: Ints
    key_at: Ints
    key_size: Ints
    value_at: Ints
    value_size: Ints
    headers_at: Ints


class Run(NamedTuple):
    """``length`` records that are like the first."""

    span: Span
    length: int

    def rows(self, payload: memoryview) -> Bytes:
        """The records' bytes, one in a row."""
        stride = self.span.stride
        return np.frombuffer(payload, np.uint8, self.length * stride, self.span.start).reshape(self.length, stride)

    def table(self, payload: memoryview) -> Ints:
        """The records' columns, one in a row."""
        table: Ints = _steps(self.span.stride, self.length) + np.array(self.span.row)[:, None]
        table[0] = _decoded(_times(self.span, self.rows(payload)))
        return table

    def header_values(self, payload: memoryview, lead: bytes, size: int) -> Bytes | None:
        """What follows ``lead``, if that begins the headers."""
        at = self.span.headers_at
        if payload[at : at + len(lead)] != lead:
            return None
        start = at + len(lead) - self.span.start
        return self.rows(payload)[:, start : start + size]


Pieces = list[Run | Ints]
"""All records of a block in order: runs, and tables of columns of those that are in none."""


def pieces_of(payload: memoryview, count: int, last_offset_delta: int) -> Pieces:
    """The ``count`` records that fill ``payload``, their offset deltas ascending, ``last_offset_delta`` at most.

    ProtocolError when they don't, or are no records.
    """
    singles = array("q")
    pieces: Pieces = []
    at, left, reach, last_delta = 0, count, count, -1
    while left:
        span = read(payload, at)
        if span.offset_delta <= last_delta:
            raise ProtocolError(f"offset delta {span.offset_delta} follows {last_delta}")
        hoped = _hoped(span, payload, min(left, reach))
        length = _run_length(span, payload, hoped)
        if length == 1:
            singles.extend(span.row)
        else:
            pieces += [*_drained(singles), Run(span, length)]
        # what a wrong guess costs is bounded by what the guess before it brought: linear for any input
        reach = length * (8 if length == hoped else 2)
        at, left, last_delta = at + span.stride * length, left - length, span.offset_delta + length - 1
    if at != len(payload):
        raise ProtocolError(f"{len(payload) - at} bytes follow the last of {count} records")
    if last_delta > last_offset_delta:
        raise ProtocolError(f"offset delta {last_delta} lies behind the batch's last, {last_offset_delta}")
    return pieces + _drained(singles)


def columns_of(pieces: Pieces, payload: memoryview) -> Columns:
    """The columns of all records."""
    tables = [piece.table(payload) if isinstance(piece, Run) else piece for piece in pieces]
    return Columns(*(tables[0] if len(tables) == 1 else np.concatenate([_NO_ROWS, *tables], axis=1)))


def header_values_of(pieces: Pieces, payload: memoryview, lead: bytes, size: int) -> Bytes | None:
    """The ``size`` bytes behind ``lead`` in every record; None when a record's headers don't begin with ``lead``."""
    found = []
    for piece in pieces:
        if isinstance(piece, Run):
            values = piece.header_values(payload, lead, size)
        else:
            values = _gathered(payload, piece[-1], lead, size)
        if values is None:
            return None
        found.append(values)
    return found[0] if len(found) == 1 else np.concatenate([np.empty((0, size), np.uint8), *found])


def _gathered(payload: memoryview, at: Ints, lead: bytes, size: int) -> Bytes | None:
    width = len(lead) + size
    if int(at[-1]) + width > len(payload):
        return None
    block = np.frombuffer(payload, np.uint8)[at[:, None] + np.arange(width)]
    return block[:, len(lead) :] if block[:, : len(lead)].tobytes() == lead * len(at) else None


def _drained(singles: "array[int]") -> list[Ints]:
    if not singles:
        return []
    rows = np.array(singles).reshape(-1, len(Columns._fields)).T
    del singles[:]
    return [rows]


def _hoped(span: Span, payload: memoryview, count: int) -> int:
    """How many records could be like ``span``'s: those whose offset delta has as many bytes, as far as data goes."""
    start, stride = span.start, span.stride
    if payload[start : span.time_at] != payload[start + stride : span.time_at + stride]:
        return 1
    if span.offset_delta_at - span.time_at > _TIME_BYTES_MAX:
        return 1
    same_size = (1 << (7 * (span.deltas_end - span.offset_delta_at) - 1)) - span.offset_delta
    return max(1, min(count, _RUN_MAX, same_size, (len(payload) - start) // stride))


def _run_length(span: Span, payload: memoryview, hoped: int) -> int:
    """How many records are found to be like the first: ``hoped``, or half of them, or a quarter…, or it alone."""
    while hoped >= _RUN_MIN:
        if _repeats(span, Run(span, hoped).rows(payload), bytes(payload[span.start : span.end])):
            return hoped
        hoped //= 2
    return 1


def _repeats(span: Span, rows: Bytes, first: bytes) -> bool:
    """Whether all rows are like the first, but for times and contents, and their offset deltas count up."""
    count = len(rows)
    offsets = rows[:, span.offset_delta_at - span.start : span.deltas_end - span.start]
    if offsets.tobytes() != _offset_deltas(span.offset_delta, count) or not _of_one_size(_times(span, rows)):
        return False
    return all(rows[:, start:end].tobytes() == first[start:end] * count for start, end in span.repeating())


@lru_cache(maxsize=256)
def _offset_deltas(first: int, count: int) -> bytes:
    return b"".join(map(schema.encode, range(first, first + count)))


def _times(span: Span, rows: Bytes) -> Bytes:
    return rows[:, span.time_at - span.start : span.offset_delta_at - span.start]


def _of_one_size(varints: Bytes) -> bool:
    """Whether each row is one varint: its last byte, and no byte before, says that no other follows."""
    return varints[:, -1].tobytes().isascii() and (varints.shape[1] == 1 or bool((varints[:, :-1] >= _MORE).all()))


def _decoded(varints: Bytes) -> Ints:
    if varints.shape[1] == 1:
        return _ONE_BYTE[varints[:, 0]]
    bits = (varints & ~np.uint8(_MORE)).astype(np.int64)
    return _unzigzag(bits @ (1 << 7 * np.arange(bits.shape[1])))


def _unzigzag(numbers: Ints) -> Ints:
    result: Ints = (numbers >> 1) ^ -(numbers & 1)
    return result


def _steps(stride: int, count: int) -> Ints:
    """What the columns of ``count`` records differ by from the first's."""
    return _few_steps(stride, count) if count <= _FEW else _few_steps.__wrapped__(stride, count)


@lru_cache(maxsize=256)
def _few_steps(stride: int, count: int) -> Ints:
    return np.array([[0], [1], [stride], [0], [stride], [0], [stride]]) * np.arange(count)


_NO_ROWS = np.empty((len(Columns._fields), 0), np.int64)
_ONE_BYTE = _unzigzag(np.arange(1 << 7))  # what a varint of one byte says

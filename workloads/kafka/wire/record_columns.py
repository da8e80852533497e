"""Parser of the records in a decompressed batch, as columns of numbers (deltas, positions and sizes).

A record has these fields (``DefaultRecord.readFrom`` of Kafka 4.3, with its checks)::

    length │ attributes 1 · time delta · offset delta · key size · key · value size · value · header count · headers

A record's lengths, sizes, counts and deltas are varints; a header is a name and a value, each after its size.
Consecutive records with fields of the same lengths form a *run*. Only the first record of a run is parsed, because the
other records of a run equal it in all bytes but deltas, keys and values (header values included).
"""

from array import array
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.wire.schema import read_varint, varint

RECORD_BYTES_MIN = 7  # seven fields of one byte

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


class Columns(NamedTuple):
    """Deltas of a batch's records, and positions and sizes of the records' fields; a null field has size -1."""

    time_delta_ms: Ints
    offset_delta: Ints
    key_at: Ints
    key_size: Ints
    value_at: Ints
    value_size: Ints
    headers_at: Ints


class Span(NamedTuple):
    """Parsed record, with deltas, positions of fields in the decompressed batch, and sizes of fields (-1 for null)."""

    start: int
    time_at: int
    offset_delta_at: int
    deltas_end: int
    time_delta_ms: int
    offset_delta: int
    key_at: int
    key_size: int
    value_at: int
    value_size: int
    headers_at: int
    header_values: tuple[tuple[int, int], ...]
    """Start and end of each header value of a record."""
    end: int

    @property
    def stride(self) -> int:
        return self.end - self.start

    @property
    def row(self) -> tuple[int, ...]:
        """Numbers of a record in the order of ``Columns``, from ``time_delta_ms`` to ``headers_at``."""
        return self[4:11]


def read(payload: memoryview, start: int) -> Span:
    """Parse the record at ``start``; raise ProtocolError if the record is invalid or incomplete."""
    try:
        length, at = read_varint(payload, start)
        end = at + length
        if not at < end <= len(payload):
            raise ProtocolError(f"the record at byte {start} has length {length}, but {len(payload) - at} bytes remain")
        time_at = at + 1  # the attributes have no meaning yet
        time_delta_ms, offset_delta_at = read_varint(payload, time_at)
        offset_delta, deltas_end = read_varint(payload, offset_delta_at)
        key_at, key_size, at = _read_field(payload, deltas_end, end)
        value_at, value_size, headers_at = _read_field(payload, at, end)
        header_count, at = read_varint(payload, headers_at)
        if not 0 <= header_count <= end - at:
            raise ProtocolError(f"the record at byte {start} has {header_count} headers in {end - at} bytes")
        header_values = []
        for _ in range(header_count):
            name_at, name_size, at = _read_field(payload, at, end)
            if name_size < 0:
                raise ProtocolError(f"the header name at byte {name_at} of the records is null")
            header_value_at, _, at = _read_field(payload, at, end)
            header_values.append((header_value_at, at))
    except IndexError:
        raise ProtocolError(f"the record at byte {start} of {len(payload)} bytes of records is cut off") from None
    if at != end:
        raise ProtocolError(f"the record at byte {start} has length {length}, but its fields end at byte {at}")
    row = time_delta_ms, offset_delta, key_at, key_size, value_at, value_size, headers_at
    return Span(start, time_at, offset_delta_at, deltas_end, *row, tuple(header_values), end)


def _read_field(payload: memoryview, at: int, end: int) -> tuple[int, int, int]:
    """Return start, size and end of the key, value, header name or header value whose size is at ``at``."""
    size, at = read_varint(payload, at)
    if size < 0:
        return at, -1, at
    field_end = at + size
    if field_end > end:
        raise ProtocolError(f"the field at byte {at} of the records has {size} bytes, its record only {end - at} more")
    return at, size, field_end


_RUN_MIN = 4  # parsing fewer records one by one is faster
_RUN_MAX = 1 << 13  # limits the memory of _offset_deltas
_CONTINUATION = 0x80  # bit of a varint's byte: another byte follows
_TIME_BYTES_MAX = 9  # a longer time delta must be checked for overflow, so its record is parsed
_CACHED_STEPS_MAX = 1024  # runs up to this length share cached steps


class Run(NamedTuple):
    """Consecutive records of a batch with fields of the same lengths; ``span`` is the first of ``length`` records."""

    span: Span
    length: int

    def rows(self, payload: memoryview) -> Bytes:
        stride = self.span.stride
        return np.frombuffer(payload, np.uint8, self.length * stride, self.span.start).reshape(self.length, stride)

    def times(self, rows: Bytes) -> Bytes:
        return rows[:, self.span.time_at - self.span.start : self.span.offset_delta_at - self.span.start]

    def table(self, payload: memoryview) -> Ints:
        """Return the columns of the run's records (``Columns``) as rows of a matrix."""
        steps = _steps if self.length <= _CACHED_STEPS_MAX else _steps.__wrapped__
        table: Ints = steps(self.span.stride, self.length) + np.array(self.span.row)[:, None]
        varints = self.times(self.rows(payload))
        if varints.shape[1] == 1:
            table[0] = _ONE_BYTE[varints[:, 0]]
        else:
            bits = (varints & ~np.uint8(_CONTINUATION)).astype(np.int64)
            table[0] = _decode_zigzag(bits @ (1 << 7 * np.arange(bits.shape[1])))
        return table

    def is_uniform(self, payload: memoryview) -> bool:
        """Return True if the records differ only in times, keys and values, and their offset deltas are consecutive."""
        span, rows = self.span, self.rows(payload)
        start = span.start
        offset_deltas = rows[:, span.offset_delta_at - start : span.deltas_end - start]
        if offset_deltas.tobytes() != _offset_deltas(span.offset_delta, self.length):
            return False
        # Each time delta is one varint of this size: all its bytes but the last have the continuation bit.
        times = self.times(rows)
        if not times[:, -1].tobytes().isascii() or (times.shape[1] > 1 and (times[:, :-1] < _CONTINUATION).any()):
            return False
        # Compare everything else: the length, and the bytes between keys, values and header values.
        first = bytes(payload[start : span.end])
        constant_parts, at = [(start, span.time_at)], span.deltas_end
        key, value = (span.key_at, span.key_at + span.key_size), (span.value_at, span.value_at + span.value_size)
        for content_start, content_end in (key, value, *span.header_values):
            if content_start < content_end:
                constant_parts.append((at, content_start))
                at = content_end
        constant_parts.append((at, span.end))
        return all(
            rows[:, begin - start : end - start].tobytes() == first[begin - start : end - start] * self.length
            for begin, end in constant_parts
        )


Pieces = list[Run | Ints]
"""All records of a batch in order: runs of records with fields of the same lengths, and columns of other records."""


def pieces_of(payload: memoryview, count: int, last_offset_delta: int) -> Pieces:
    """Split the records of a batch into runs of records with fields of the same lengths, and other records.

    Raises ProtocolError if a record is invalid, or offset deltas don't ascend or exceed ``last_offset_delta``.
    """
    singles = array("q")
    pieces: Pieces = []
    at, remaining, guess_max, last_delta = 0, count, count, -1
    while remaining:
        span = read(payload, at)
        stride = span.stride
        if span.offset_delta <= last_delta:
            raise ProtocolError(f"a record's offset delta {span.offset_delta} follows the offset delta {last_delta}")
        # Guess a run up to the next longer offset delta if the next record has the same length, then halve the guess.
        guess, time_bytes = 1, span.offset_delta_at - span.time_at
        next_at = at + stride
        if time_bytes <= _TIME_BYTES_MAX and payload[at : span.time_at] == payload[next_at : span.time_at + stride]:
            same_size = (1 << (7 * (span.deltas_end - span.offset_delta_at) - 1)) - span.offset_delta
            guess = max(1, min(remaining, guess_max, _RUN_MAX, same_size, (len(payload) - at) // stride))
        length = guess
        while length >= _RUN_MIN and not Run(span, length).is_uniform(payload):
            length //= 2
        if length < _RUN_MIN:
            length = 1
            singles.extend(span.row)
        else:
            pieces += [*_pop_table(singles), Run(span, length)]
        # The cost of a wrong guess is limited by the length of the previous run, so any input takes linear time.
        guess_max = length * (8 if length == guess else 2)
        at, remaining, last_delta = at + stride * length, remaining - length, span.offset_delta + length - 1
    if at != len(payload):
        raise ProtocolError(f"{len(payload) - at} bytes follow the last of {count} records")
    if last_delta > last_offset_delta:
        raise ProtocolError(f"offset delta {last_delta} exceeds the batch's last offset delta, {last_offset_delta}")
    return pieces + _pop_table(singles)


def _pop_table(singles: "array[int]") -> list[Ints]:
    if not singles:
        return []
    table = np.array(singles).reshape(-1, len(Columns._fields)).T
    del singles[:]
    return [table]


def columns_of(pieces: Pieces, payload: memoryview) -> Columns:
    tables = [piece.table(payload) if isinstance(piece, Run) else piece for piece in pieces]
    return Columns(*(tables[0] if len(tables) == 1 else np.concatenate([_NO_ROWS, *tables], axis=1)))


def header_values_of(pieces: Pieces, payload: memoryview, lead: bytes, size: int) -> Bytes | None:
    """Return the ``size`` bytes after ``lead`` in the headers of all records; None if a record lacks ``lead``."""
    blocks = []
    for piece in pieces:
        if isinstance(piece, Run):
            at = piece.span.headers_at
            if payload[at : at + len(lead)] != lead:
                return None
            begin = at + len(lead) - piece.span.start
            blocks.append(piece.rows(payload)[:, begin : begin + size])
        else:
            headers_at, width = piece[-1], len(lead) + size
            if int(headers_at[-1]) + width > len(payload):
                return None
            block = np.frombuffer(payload, np.uint8)[headers_at[:, None] + np.arange(width)]
            if block[:, : len(lead)].tobytes() != lead * len(headers_at):
                return None
            blocks.append(block[:, len(lead) :])
    return blocks[0] if len(blocks) == 1 else np.concatenate([np.empty((0, size), np.uint8), *blocks])


@lru_cache(maxsize=256)
def _offset_deltas(first: int, count: int) -> bytes:
    return b"".join(map(varint, range(first, first + count)))


def _decode_zigzag(numbers: Ints) -> Ints:
    decoded: Ints = (numbers >> 1) ^ -(numbers & 1)
    return decoded


@lru_cache(maxsize=256)
def _steps(stride: int, count: int) -> Ints:
    """Return the differences of ``count`` consecutive records of ``stride`` bytes to the first record, by column."""
    return np.array([[0], [1], [stride], [0], [stride], [0], [stride]]) * np.arange(count)


_NO_ROWS = np.empty((len(Columns._fields), 0), np.int64)
_ONE_BYTE = _decode_zigzag(np.arange(1 << 7))  # values of the varints of one byte

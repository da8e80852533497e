"""Makes record batches.

Records of one shape (values of one size, one header of one name and size or none, keys of one size or none) are laid
out by joining columns: what differs from record to record is a column, all else is one constant between two columns.
Any other records are written one by one, as is one alone. Both ways give the same bytes.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import crc32c

from aftershock.workloads.kafka.wire import compression as codecs
from aftershock.workloads.kafka.wire import schema
from aftershock.workloads.kafka.wire.batch import (
    AFTER_CRC,
    BATCH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    UNTIL_CRC,
    UNTIL_LENGTH_BYTES,
)

Headers = Sequence[tuple[str, bytes | None]]
Column = Any  # bytes for a constant, else one item a record

_ATTRIBUTES = b"\0"  # no bit of a record's attributes means anything yet
_NULL = schema.encode(-1)


def build(
    values: Sequence[bytes | None],
    *,
    timestamps_ms: Sequence[int],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers] | None = None,
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    compression: str = "none",
    transactional: bool = False,
) -> bytes:
    """One batch of at least one record; ``timestamps_ms``, ``keys`` and ``headers`` are as long as ``values``.

    Raises:
        UnsupportedError: ``compression`` isn't installed.
        ValueError: no records, or columns of different lengths.
    """
    count, base_ms = len(values), timestamps_ms[0] if timestamps_ms else 0
    if not (count and count == len(timestamps_ms) == len(values if keys is None else keys)) or (
        headers is not None and len(headers) != count
    ):
        raise ValueError(f"{count} values, {len(timestamps_ms)} timestamps: a batch has records, and columns as long")
    records = records_bytes(values, [time_ms - base_ms for time_ms in timestamps_ms], keys, headers)
    if compression != "none":
        records = codecs.compress(compression, records)
    attributes = codecs.NAMES.index(compression) | (TRANSACTIONAL if transactional else 0)
    return seal(
        base_offset,
        AFTER_CRC.pack(
            attributes,
            count - 1,
            base_ms,
            max(timestamps_ms),
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        ),
        records,
    )


def seal(base_offset: int, after_crc: bytes, records: bytes, leader_epoch: int = -1) -> bytes:
    """A batch of its parts: the length and the CRC are made here."""
    length = BATCH_OVERHEAD - UNTIL_LENGTH_BYTES + len(records)
    crc = crc32c.crc32c(records, crc32c.crc32c(after_crc))
    return b"".join((UNTIL_CRC.pack(base_offset, length, leader_epoch, MAGIC, crc), after_crc, records))


def records_bytes(
    values: Sequence[bytes | None],
    time_deltas_ms: Sequence[int],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers] | None,
) -> bytes:
    """The records of a batch, before compression."""
    columns = _columns(values, keys, headers) if len(values) > 1 else None
    if columns is None:
        return one_by_one(values, time_deltas_ms, keys, headers)
    size = sum(len(column) if isinstance(column, bytes) else len(column[0]) for column in columns)
    columns[0] = _heads(size, columns[0], time_deltas_ms)
    return _interleave(columns, len(values))


def one_by_one(
    values: Sequence[bytes | None],
    time_deltas_ms: Sequence[int],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers] | None,
) -> bytes:
    """Records of any shape."""
    each = zip(values, keys or repeat(None), headers or repeat(()), time_deltas_ms, strict=False)
    return b"".join(_record(number, time_ms, key, value, own) for number, (value, key, own, time_ms) in enumerate(each))


def _record(offset_delta: int, time_delta_ms: int, key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    parts = [_ATTRIBUTES, schema.encode(time_delta_ms), schema.encode(offset_delta)]
    parts += (*_field(key), *_field(value), schema.encode(len(headers)))
    for name, content in headers:
        parts += (_name(name), *_field(content))
    return b"".join((schema.encode(sum(map(len, parts))), *parts))


def _field(content: bytes | None) -> tuple[bytes, bytes]:
    """Length and content: not joined, for both are soon to be joined with all else."""
    return (_NULL, b"") if content is None else (schema.encode(len(content)), content)


@lru_cache(maxsize=256)
def _name(name: str) -> bytes:
    """A header's name with its length; a producer has few of them."""
    return b"".join(_field(name.encode()))


def _columns(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, headers: Sequence[Headers] | None
) -> list[Column] | None:
    """All that follows the deltas, the first column being constant; None when the records aren't of one shape."""
    value_size, tail = _size_of_all(values), _header_columns(headers)
    if value_size is None or tail is None:
        return None
    before_value = schema.encode(value_size)
    if keys is None:
        return [_NULL + before_value, values, *tail]
    key_size = _size_of_all(keys)
    return None if key_size is None else [schema.encode(key_size), keys, before_value, values, *tail]


def _header_columns(headers: Sequence[Headers] | None) -> list[Column] | None:
    if not headers or not any(headers):
        return [schema.encode(0)]
    try:
        names, contents = zip(*[own for (own,) in headers], strict=True)
    except ValueError:  # a record with none or several
        return None
    size = _size_of_all(contents)
    if size is None or names.count(names[0]) != len(names):
        return None
    return [schema.encode(1) + _name(names[0]) + schema.encode(size), contents]


def _size_of_all(items: Sequence[Any]) -> int | None:
    """The length that all items have; None when they differ or one is null."""
    try:
        sizes = set(map(len, items))
    except TypeError:  # len(None): cheaper than asking each
        return None
    return sizes.pop() if len(sizes) == 1 else None


def _heads(size: int, behind: bytes, time_deltas_ms: Sequence[int]) -> Sequence[bytes]:
    """Each record from its length to the end of ``behind``, the constant after the deltas."""
    count = len(time_deltas_ms)
    if not any(time_deltas_ms):
        return _heads_of_one_time(size, behind, count)
    return list(map(_head, repeat(size), repeat(behind), time_deltas_ms, range(count)))


@lru_cache(maxsize=256)
def _heads_of_one_time(size: int, behind: bytes, count: int) -> Sequence[bytes]:
    return [_head(size, behind, 0, number) for number in range(count)]


@lru_cache(maxsize=1 << 16)
def _head(size: int, behind: bytes, time_delta_ms: int, offset_delta: int) -> bytes:
    deltas = _ATTRIBUTES + schema.encode(time_delta_ms) + schema.encode(offset_delta)
    return schema.encode(len(deltas) + size) + deltas + behind


def _interleave(columns: Sequence[Column], count: int) -> bytes:
    """Row after row; a column of bytes stands for the same bytes in each row."""
    parts: list[Any] = [b""] * (len(columns) * count)
    for number, column in enumerate(columns):
        parts[number :: len(columns)] = [column] * count if isinstance(column, bytes) else column
    return b"".join(parts)

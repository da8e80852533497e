"""Builder of record batches of format v2.

If all records of a batch have fields of the same lengths, and one header of the same name or no header, the batch is
built by joining columns of fields; otherwise its records are written one by one. The bytes of a
batch don't depend on how it was built.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import crc32c

from aftershock.workloads.kafka.wire import compression as codecs
from aftershock.workloads.kafka.wire.batch import (
    AFTER_CRC,
    BATCH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    UNTIL_CRC,
    UNTIL_LENGTH_BYTES,
)
from aftershock.workloads.kafka.wire.schema import varint

Headers = Sequence[tuple[str, bytes | None]]
Column = Any
"""Bytes that all records of a batch have in common, or a sequence of byte strings with one item per record."""

_ATTRIBUTES = b"\0"  # the attributes of a record have no meaning yet
_NULL = varint(-1)


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
    """Build a record batch; ``timestamps_ms``, ``keys`` and ``headers`` are as long as ``values``.

    Raises UnsupportedError if the package for ``compression`` isn't installed, ValueError if there are no values or if
    the arguments have different lengths.
    """
    count = len(values)
    lengths = len(timestamps_ms), len(values if keys is None else keys), len(values if headers is None else headers)
    if not count or lengths != (count, count, count):
        raise ValueError(f"a batch needs values, and as many timestamps, keys and headers; got {count} values")
    base_ms = timestamps_ms[0]
    records = records_bytes(values, [time_ms - base_ms for time_ms in timestamps_ms], keys, headers)
    if compression != "none":
        records = codecs.compress(compression, records)
    attributes = codecs.NAMES.index(compression) | (TRANSACTIONAL if transactional else 0)
    after_crc = AFTER_CRC.pack(
        attributes, count - 1, base_ms, max(timestamps_ms), producer_id, producer_epoch, base_sequence, count
    )
    return seal(base_offset, after_crc, records)


def seal(base_offset: int, after_crc: bytes, records: bytes, leader_epoch: int = -1) -> bytes:
    length = BATCH_OVERHEAD - UNTIL_LENGTH_BYTES + len(records)
    crc = crc32c.crc32c(records, crc32c.crc32c(after_crc))
    return b"".join((UNTIL_CRC.pack(base_offset, length, leader_epoch, MAGIC, crc), after_crc, records))


def records_bytes(
    values: Sequence[bytes | None],
    time_deltas_ms: Sequence[int],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers] | None,
) -> bytes:
    columns = _same_shape_columns(values, keys, headers) if len(values) > 1 else None
    if columns is None:
        return one_by_one(values, time_deltas_ms, keys, headers)
    count = len(values)
    size = sum(len(column) if isinstance(column, bytes) else len(column[0]) for column in columns)
    # The first column is constant; put each record's length and deltas before it.
    if any(time_deltas_ms):
        columns[0] = list(map(_head, repeat(size), repeat(columns[0]), time_deltas_ms, range(count)))
    else:
        columns[0] = _heads_of_equal_times(size, columns[0], count)
    parts: list[Any] = [b""] * (len(columns) * count)
    for number, column in enumerate(columns):
        parts[number :: len(columns)] = [column] * count if isinstance(column, bytes) else column
    return b"".join(parts)


def one_by_one(
    values: Sequence[bytes | None],
    time_deltas_ms: Sequence[int],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers] | None,
) -> bytes:
    records: list[bytes] = []
    columns = zip(values, keys or repeat(None), headers or repeat(()), time_deltas_ms, strict=False)
    for offset_delta, (value, key, record_headers, time_delta_ms) in enumerate(columns):
        parts = [_ATTRIBUTES, varint(time_delta_ms), varint(offset_delta)]
        parts += (*_field(key), *_field(value), varint(len(record_headers)))
        for name, content in record_headers:
            parts += (_name(name), *_field(content))
        records += (varint(sum(map(len, parts))), *parts)
    return b"".join(records)


def _field(content: bytes | None) -> tuple[bytes, bytes]:
    """Return the encoded length of a record's key or value, and its content."""
    return (_NULL, b"") if content is None else (varint(len(content)), content)


@lru_cache(maxsize=256)
def _name(name: str) -> bytes:
    """Encode a record header's name with its length; cached, because a producer uses few names."""
    return b"".join(_field(name.encode()))


def _same_shape_columns(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, headers: Sequence[Headers] | None
) -> list[Column] | None:
    """Return the records' bytes after the offset deltas as columns; None if fields or headers differ in length."""
    value_size = _common_size(values)
    key_size = -1 if keys is None else _common_size(keys)
    if value_size is None or key_size is None:
        return None
    if keys is None:
        columns = [_NULL + varint(value_size), values]
    else:
        columns = [varint(key_size), keys, varint(value_size), values]
    if not headers or not any(headers):
        return [*columns, varint(0)]
    try:
        names, contents = zip(*[header for (header,) in headers], strict=True)
    except ValueError:  # a record has no header, or several
        return None
    size = _common_size(contents)
    if size is None or names.count(names[0]) != len(names):
        return None
    return [*columns, varint(1) + _name(names[0]) + varint(size), contents]


def _common_size(items: Sequence[Any]) -> int | None:
    """Return the length of all keys or values; None if their lengths differ or an item is null."""
    try:
        sizes = set(map(len, items))
    except TypeError:  # len(None); catching it is cheaper than testing each item
        return None
    return sizes.pop() if len(sizes) == 1 else None


@lru_cache(maxsize=256)
def _heads_of_equal_times(size: int, constant: bytes, count: int) -> Sequence[bytes]:
    return [_head(size, constant, 0, offset_delta) for offset_delta in range(count)]


@lru_cache(maxsize=1 << 16)
def _head(size: int, constant: bytes, time_delta_ms: int, offset_delta: int) -> bytes:
    deltas = _ATTRIBUTES + varint(time_delta_ms) + varint(offset_delta)
    return varint(len(deltas) + size) + deltas + constant

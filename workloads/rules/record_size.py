"""What a record adds to a batch of format v2, to the byte, before it is written.

Kafka: ``DefaultRecord.sizeInBytes`` and ``recordSizeUpperBound``, ``ByteUtils.sizeOfVarint``. A record is its length,
one byte of attributes, the deltas of timestamp and offset, and its fields: key, value, headers. Numbers are varints.
"""

from collections.abc import Sequence
from functools import lru_cache

Headers = Sequence[tuple[str, bytes | None]]

BATCH_OVERHEAD = 61
"""A batch without records."""

RECORD_OVERHEAD_MAX = 21
"""The most that a record's length, attributes and deltas can take (``MAX_RECORD_OVERHEAD``)."""


def fields_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """The size of what doesn't depend on the record's place in its batch."""
    # for every record: a varint's size is (bit length + 7) // 7, written out below for it costs less than a call
    size = 1 if key is None else len(key) + (len(key).bit_length() + 7) // 7
    size += 1 if value is None else len(value) + (len(value).bit_length() + 7) // 7
    size += (len(headers).bit_length() + 7) // 7
    for name, content in headers:
        size += _name_size(name)
        size += 1 if content is None else len(content) + (len(content).bit_length() + 7) // 7
    return size


@lru_cache(maxsize=1024)
def _name_size(name: str) -> int:
    length = len(name.encode())
    return length + (length.bit_length() + 7) // 7


def record_size(fields: int, time_delta_ms: int, offset_delta: int) -> int:
    """The size of a whole record, its length included; ``fields`` from ``fields_size``.

    A time that goes back counts like one that goes forward by as much: off by a byte at the most.
    """
    body = 1 + (time_delta_ms.bit_length() + 7) // 7 + (offset_delta.bit_length() + 7) // 7 + fields
    return body + (body.bit_length() + 7) // 7


def batch_bound(fields: int) -> int:
    """The most that a batch of this record alone can take (``estimateSizeInBytesUpperBound``)."""
    return BATCH_OVERHEAD + RECORD_OVERHEAD_MAX + fields

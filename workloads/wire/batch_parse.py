"""Reads record batches off the wire.

1. Nothing is believed before its CRC was right; then lengths and counts are still checked before memory is given.
2. A batch that the buffer cuts off is left out: a broker cuts its answer at the fetch's byte limit.
3. All checks are made here, so that a ``Batch`` can't fail later.
"""

from collections.abc import Iterator

import crc32c

from aftershock.errors import ProtocolError, UnsupportedError
from aftershock.workloads.wire import compression
from aftershock.workloads.wire.batch import (
    AFTER_CRC,
    BATCH_OVERHEAD,
    CODEC,
    MAGIC,
    UNTIL_CRC,
    UNTIL_LENGTH_BYTES,
    Batch,
    BatchHeader,
)
from aftershock.workloads.wire.record_columns import pieces_of
from aftershock.workloads.wire.record_span import RECORD_BYTES_MIN

BATCH_BYTES_MAX = 16 * 1024 * 1024
"""The largest batch, on the wire and decompressed: 16 times what a topic allows by default (max.message.bytes)."""

_MAGIC_AT = UNTIL_LENGTH_BYTES + 4
_COVERED_AT = UNTIL_CRC.size


def parse(
    buffer: bytes | memoryview, *, check_crc: bool = True, batch_bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[Batch]:
    """The batches in a fetch response's ``records``, one after the other.

    Raises:
        ProtocolError: a batch is corrupt, or larger than ``batch_bytes_max`` on the wire or decompressed. It names the
            batch by its base offset; the caller knows the partition.
        UnsupportedError: a batch of an old format, or compressed by a codec that isn't installed.
    """
    view, at = memoryview(buffer).toreadonly(), 0
    while (end := _end(view, at, batch_bytes_max)) is not None:
        yield _batch(view[at:end], check_crc=check_crc, batch_bytes_max=batch_bytes_max)
        at = end


def _end(view: memoryview, at: int, batch_bytes_max: int) -> int | None:
    """Where the batch at ``at`` ends; None when the buffer ends before."""
    if len(view) - at <= _MAGIC_AT:
        return None
    magic = view[at + _MAGIC_AT]
    if magic != MAGIC:
        raise _wrong_magic(magic)
    size = UNTIL_LENGTH_BYTES + int.from_bytes(view[at + 8 : at + UNTIL_LENGTH_BYTES], "big", signed=True)
    if not BATCH_OVERHEAD <= size <= batch_bytes_max:
        raise ProtocolError(f"a record batch of {size} bytes; it can have {BATCH_OVERHEAD} to {batch_bytes_max}")
    return None if at + size > len(view) else at + size


def _wrong_magic(magic: int) -> Exception:
    if magic < MAGIC:
        return UnsupportedError(
            f"records of the old format {magic}: this client reads format {MAGIC}, which Kafka 4 stores all records in"
        )
    return ProtocolError(f"a record batch of format {magic}, which does not exist; formats end at {MAGIC}")


def _batch(view: memoryview, *, check_crc: bool, batch_bytes_max: int) -> Batch:
    header = BatchHeader(*UNTIL_CRC.unpack_from(view), *AFTER_CRC.unpack_from(view, _COVERED_AT))
    if check_crc and crc32c.crc32c(view[_COVERED_AT:]) != header.crc:
        raise ProtocolError(f"the record batch at offset {header.base_offset} has another CRC than it says: corrupt")
    try:
        payload = _payload(header, view[BATCH_OVERHEAD:], batch_bytes_max)
        _check_count(header, payload)
        return Batch(header, payload, pieces_of(payload, header.record_count, header.last_offset_delta), len(view))
    except ProtocolError as error:
        raise ProtocolError(f"the record batch at offset {header.base_offset} is corrupt: {error}") from error


def _payload(header: BatchHeader, records: memoryview, batch_bytes_max: int) -> memoryview:
    codec = header.attributes & CODEC
    if not codec:
        return records
    if codec >= len(compression.NAMES):
        raise ProtocolError(f"its compression codec {codec} does not exist")
    return memoryview(compression.decompress(compression.NAMES[codec], records, batch_bytes_max))


def _check_count(header: BatchHeader, payload: memoryview) -> None:
    """A count costs memory, so it must be one that the bytes can hold."""
    if not 0 <= header.record_count <= len(payload) // RECORD_BYTES_MIN:
        raise ProtocolError(f"{header.record_count} records are said to be in {len(payload)} bytes")

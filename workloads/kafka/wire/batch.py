"""One parsed record batch: its header, and its records as columns of numbers over one block of bytes.

A reader that wants every record's mark takes columns (``offsets``, ``value_sizes``, ``header_values``) and touches no
record by itself; one that wants records asks for ``records()``.

Reads record batches off the wire.

1. Nothing is believed before its CRC was right; then lengths and counts are still checked before memory is given.
2. A batch that the buffer cuts off is left out: a broker cuts its answer at the fetch's byte limit.
3. All checks are made here, so that a ``Batch`` can't fail later.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from struct import Struct
from typing import Any, NamedTuple

import crc32c
import numpy as np
from numpy.typing import NDArray

from aftershock.errors import ProtocolError, UnsupportedError
from aftershock.workloads.kafka.wire import compression, schema
from aftershock.workloads.kafka.wire.record_columns import (
    RECORD_BYTES_MIN,
    Columns,
    Ints,
    Pieces,
    columns_of,
    header_values_of,
    pieces_of,
)

MAGIC = 2
UNTIL_LENGTH_BYTES = 12  # base offset and length, which a batch's length doesn't count
UNTIL_CRC = Struct(">qiibI")
AFTER_CRC = Struct(">hiqqqhii")
BATCH_OVERHEAD = UNTIL_CRC.size + AFTER_CRC.size
"""The 61 bytes of a batch without records."""

CODEC = 0b111  # the bits of a batch's attributes
LOG_APPEND_TIME = 1 << 3
TRANSACTIONAL = 1 << 4
CONTROL = 1 << 5


class Record(NamedTuple):
    """One record; a null key, value or header value is None."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, field by field."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


class Batch:
    """A batch whose CRC, lengths and counts have been checked: nothing below raises.

    ``payload`` is the decompressed block of records; keys, values and ``header_values`` of the fast kind are views of
    it or copies, so a batch keeps its whole response in memory for as long as it lives.
    """

    def __init__(self, header: BatchHeader, payload: memoryview, pieces: Pieces, size_bytes: int) -> None:
        self.header = header
        self.payload = payload
        self._pieces = pieces
        self.size_bytes = size_bytes
        """On the wire, header and compression included."""

    @property
    def base_offset(self) -> int:
        """The first record's offset, as the producer batched it: compaction may have taken that record."""
        return self.header.base_offset

    @property
    def last_offset(self) -> int:
        """Where the batch ends: the next fetch starts one behind it."""
        return self.header.base_offset + self.header.last_offset_delta

    @property
    def leader_epoch(self) -> int:
        """The epoch of the leader that appended the batch."""
        return self.header.leader_epoch

    @property
    def producer_id(self) -> int:
        """Of an idempotent producer, else -1."""
        return self.header.producer_id

    @property
    def producer_epoch(self) -> int:
        """Of an idempotent producer, else -1."""
        return self.header.producer_epoch

    @property
    def base_sequence(self) -> int:
        """The first record's sequence number of an idempotent producer, else -1."""
        return self.header.base_sequence

    @property
    def count(self) -> int:
        """How many records the batch has."""
        return self.header.record_count

    @property
    def is_control(self) -> bool:
        """Whether its records are the transaction coordinator's markers, which no application is given."""
        return bool(self.header.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.header.attributes & TRANSACTIONAL)

    @cached_property
    def columns(self) -> Columns:
        """Where all records' parts are."""
        return columns_of(self._pieces, self.payload)

    @cached_property
    def offsets(self) -> Ints:
        """Each record's offset."""
        return self.columns.offset_delta + self.header.base_offset

    @cached_property
    def timestamps_ms(self) -> Ints:
        """Each record's timestamp, milliseconds of the epoch: the producer's, or the broker's where a topic says so."""
        if self.header.attributes & LOG_APPEND_TIME:
            return np.full(self.count, self.header.max_timestamp_ms)
        return self.columns.time_delta_ms + self.header.base_timestamp_ms

    @property
    def value_sizes(self) -> Ints:
        """Each value's size in bytes, -1 for null."""
        return self.columns.value_size

    def header_values(self, name: str, size: int) -> NDArray[np.uint8] | None:
        """The value of the one header that every record has, shape (count, size).

        None when a record has another header, none, several, or a value of another size: ask ``records()`` then.
        """
        return header_values_of(self._pieces, self.payload, _lead_of_one(name, size), size)

    def values(self) -> list[memoryview | None]:
        """Each value, uncopied."""
        return self._parts(self.columns.value_at, self.columns.value_size)

    def keys(self) -> list[memoryview | None]:
        """Each key, uncopied."""
        return self._parts(self.columns.key_at, self.columns.key_size)

    def records(self) -> Sequence[Record]:
        """All records, copied out of the batch."""
        columns: Any = (self.offsets, self.timestamps_ms, self.columns.headers_at)
        return [
            Record(offset, time_ms, _bytes(key), _bytes(value), self._headers(headers_at))
            for (offset, time_ms, headers_at), key, value in zip(
                zip(*(column.tolist() for column in columns), strict=True), self.keys(), self.values(), strict=True
            )
        ]

    def _parts(self, starts: Ints, sizes: Ints) -> list[memoryview | None]:
        pairs = zip(starts.tolist(), sizes.tolist(), strict=True)
        return [None if size < 0 else self.payload[at : at + size] for at, size in pairs]

    def _headers(self, at: int) -> tuple[tuple[str, bytes | None], ...]:
        count, at = schema.read(self.payload, at)
        headers = []
        for _ in range(count):
            name, at = self._field(at)
            content, at = self._field(at)
            headers.append(((name or b"").decode(errors="replace"), content))
        return tuple(headers)

    def _field(self, at: int) -> tuple[bytes | None, int]:
        size, at = schema.read(self.payload, at)
        return (None, at) if size < 0 else (bytes(self.payload[at : at + size]), at + size)


@lru_cache(maxsize=256)
def _lead_of_one(name: str, size: int) -> bytes:
    """What stands before the value of a record's only header."""
    return schema.encode(1) + schema.encode(len(name.encode())) + name.encode() + schema.encode(size)


def _bytes(view: memoryview | None) -> bytes | None:
    return None if view is None else bytes(view)


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

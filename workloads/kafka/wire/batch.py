"""Parser of record batches of format v2, which returns records as columns of numbers over one block of bytes.

1. A batch is parsed only after its CRC has been checked; lengths and counts are checked before memory is reserved.
2. A batch that is cut off at the end of the buffer is ignored, because brokers cut responses at the fetch's byte limit.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from struct import Struct
from typing import NamedTuple

import crc32c
import numpy as np
from numpy.typing import NDArray

from aftershock.errors import ProtocolError, UnsupportedError
from aftershock.workloads.kafka.wire import compression
from aftershock.workloads.kafka.wire.record_columns import (
    RECORD_BYTES_MIN,
    Columns,
    Ints,
    Pieces,
    columns_of,
    header_values_of,
    pieces_of,
)
from aftershock.workloads.kafka.wire.schema import read_varint, varint

MAGIC = 2
_MAGIC_AT = 16
UNTIL_LENGTH_BYTES = 12  # base offset and length, which the length of a batch doesn't include
UNTIL_CRC = Struct(">qiibI")
AFTER_CRC = Struct(">hiqqqhii")
BATCH_OVERHEAD = UNTIL_CRC.size + AFTER_CRC.size
"""Size of a record batch without records: 61 bytes."""
BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Largest accepted record batch, before and after decompression: 16 times the default of max.message.bytes."""

CODEC = 0b111  # bits of a batch's attributes
LOG_APPEND_TIME = 1 << 3
TRANSACTIONAL = 1 << 4
CONTROL = 1 << 5


class Record(NamedTuple):
    """Record of a batch; None stands for a null key, value or header value."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class BatchHeader(NamedTuple):
    """Header of a record batch, 61 bytes; producer id, epoch and sequence are -1 without idempotence."""

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
    """Record batch whose content has been checked; its keys and values are views, so it keeps the response in memory.

    ``payload`` holds the batch's records after decompression; ``size_bytes`` is its size before decompression.
    """

    def __init__(self, header: BatchHeader, payload: memoryview, pieces: Pieces, size_bytes: int) -> None:
        self.header = header
        self.payload = payload
        self.size_bytes = size_bytes
        self._pieces = pieces

    @property
    def base_offset(self) -> int:
        """Offset of the batch's first record as produced; compaction may remove it."""
        return self.header.base_offset

    @property
    def last_offset(self) -> int:
        """Offset of the batch's last record as produced; the next fetch starts after this offset."""
        return self.header.base_offset + self.header.last_offset_delta

    @property
    def leader_epoch(self) -> int:
        return self.header.leader_epoch

    @property
    def count(self) -> int:
        return self.header.record_count

    @property
    def is_control(self) -> bool:
        """True if the records are transaction markers, which are not delivered to applications."""
        return bool(self.header.attributes & CONTROL)

    @cached_property
    def columns(self) -> Columns:
        return columns_of(self._pieces, self.payload)

    @cached_property
    def offsets(self) -> Ints:
        return self.columns.offset_delta + self.header.base_offset

    @cached_property
    def timestamps_ms(self) -> Ints:
        """Records' timestamps in ms since 1970, set by the producer, or by the broker with LogAppendTime."""
        if self.header.attributes & LOG_APPEND_TIME:
            return np.full(self.count, self.header.max_timestamp_ms)
        return self.columns.time_delta_ms + self.header.base_timestamp_ms

    @property
    def value_sizes(self) -> Ints:
        """Sizes of the batch's record values in bytes; a null value has size -1."""
        return self.columns.value_size

    def header_values(self, name: str, size: int) -> NDArray[np.uint8] | None:
        """Return the values of header ``name`` of all records, as an array with ``size`` bytes per record.

        Returns None if a record has another header, or a value of another size.
        """
        return header_values_of(self._pieces, self.payload, _single_header_lead(name, size), size)

    def values(self) -> list[memoryview | None]:
        return self._views(self.columns.value_at, self.columns.value_size)

    def keys(self) -> list[memoryview | None]:
        return self._views(self.columns.key_at, self.columns.key_size)

    def records(self) -> Sequence[Record]:
        """Return copies of all records of the batch."""
        return [
            Record(int(offset), int(time_ms), _copied(key), _copied(value), self._headers(int(headers_at)))
            for offset, time_ms, key, value, headers_at in zip(
                self.offsets, self.timestamps_ms, self.keys(), self.values(), self.columns.headers_at, strict=True
            )
        ]

    def _views(self, starts: Ints, sizes: Ints) -> list[memoryview | None]:
        pairs = zip(starts.tolist(), sizes.tolist(), strict=True)
        return [None if size < 0 else self.payload[at : at + size] for at, size in pairs]

    def _headers(self, at: int) -> tuple[tuple[str, bytes | None], ...]:
        payload, headers = self.payload, []
        count, at = read_varint(payload, at)
        for _ in range(count):
            size, at = read_varint(payload, at)
            name, at = str(payload[at : at + size], errors="replace"), at + size
            size, at = read_varint(payload, at)
            headers.append((name, None if size < 0 else bytes(payload[at : at + size])))
            at += max(size, 0)
        return tuple(headers)


def _copied(field: memoryview | None) -> bytes | None:
    return None if field is None else bytes(field)


@lru_cache(maxsize=256)
def _single_header_lead(name: str, size: int) -> bytes:
    """Return the bytes that precede a header value of ``size`` bytes in records with ``name`` as the only header."""
    return varint(1) + varint(len(name.encode())) + name.encode() + varint(size)


def parse(
    buffer: bytes | memoryview, *, check_crc: bool = True, batch_bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[Batch]:
    """Yield the batches in the ``records`` field of a fetch response.

    Raises ProtocolError if a batch is corrupt, or larger than ``batch_bytes_max``, compressed or decompressed;
    UnsupportedError if a batch has an old format or its codec isn't installed.
    """
    view, at = memoryview(buffer).toreadonly(), 0
    while len(view) - at > _MAGIC_AT:
        magic = view[at + _MAGIC_AT]
        if magic < MAGIC:
            raise UnsupportedError(f"a record batch has the old format {magic}; this client reads only format {MAGIC}")
        if magic > MAGIC:
            raise ProtocolError(f"a record batch has the unknown format {magic}; this client reads only format {MAGIC}")
        size = UNTIL_LENGTH_BYTES + int.from_bytes(view[at + 8 : at + UNTIL_LENGTH_BYTES], "big", signed=True)
        if not BATCH_OVERHEAD <= size <= batch_bytes_max:
            raise ProtocolError(f"a record batch has {size} bytes; {BATCH_OVERHEAD} to {batch_bytes_max} are allowed")
        if at + size > len(view):
            return
        batch = view[at : at + size]
        header = BatchHeader(*UNTIL_CRC.unpack_from(batch), *AFTER_CRC.unpack_from(batch, UNTIL_CRC.size))
        if check_crc and crc32c.crc32c(batch[UNTIL_CRC.size :]) != header.crc:
            raise ProtocolError(f"the record batch at offset {header.base_offset} is corrupt: its CRC does not match")
        try:
            payload, codec = batch[BATCH_OVERHEAD:], header.attributes & CODEC
            if codec >= len(compression.NAMES):
                raise ProtocolError(f"the batch names compression codec {codec}, which does not exist")  # noqa: TRY301  # offset added below
            if codec:
                payload = memoryview(compression.decompress(compression.NAMES[codec], payload, batch_bytes_max))
            if not 0 <= header.record_count <= len(payload) // RECORD_BYTES_MIN:
                raise ProtocolError(f"{header.record_count} records can't fit in {len(payload)} bytes")  # noqa: TRY301
            pieces = pieces_of(payload, header.record_count, header.last_offset_delta)
        except ProtocolError as error:
            raise ProtocolError(f"the record batch at offset {header.base_offset} is corrupt: {error}") from error
        yield Batch(header, payload, pieces, size)
        at += size

"""Parser of record batches of format v2.

1. A batch is parsed only after its CRC has been checked; lengths and counts are checked before memory is reserved.
2. A batch that is cut off at the end of the buffer is ignored, because brokers cut responses at the fetch's byte limit.

A record has these fields (``DefaultRecord.readFrom`` of Kafka 4.3, with its checks)::

    length │ attributes 1 · time delta · offset delta · key size · key · value size · value · header count · headers

A record's lengths, sizes, counts and deltas are varints; a header is a name and a value, each after its size.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Literal, NamedTuple

import crc32c

from aftershock.errors import ProtocolError, UnsupportedError
from aftershock.workloads.kafka.wire import compression
from aftershock.workloads.kafka.wire.schema import read_varint

MAGIC = 2
_MAGIC_AT = 16
UNTIL_LENGTH_BYTES = 12  # base offset and length, which the length of a batch doesn't include
UNTIL_CRC = Struct(">qiibI")
AFTER_CRC = Struct(">hiqqqhii")
BATCH_OVERHEAD = UNTIL_CRC.size + AFTER_CRC.size
"""Size of a record batch without records: 61 bytes."""
BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Largest accepted record batch, before and after decompression: 16 times the default of max.message.bytes."""

RECORD_BYTES_MIN = 7  # seven fields of one byte

CODEC = 0b111  # bits of a batch's attributes
LOG_APPEND_TIME = 1 << 3
TRANSACTIONAL = 1 << 4
CONTROL = 1 << 5
MARKERS: Mapping[bytes, Literal["commit", "abort"]] = {b"\0\0": "abort", b"\0\1": "commit"}
"""Types of the control records that end transactions, bytes 2 and 3 of the record's key after the key's version."""


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


@dataclass(frozen=True, slots=True)
class Batch:
    """Record batch whose content has been checked; ``size_bytes`` is its size before decompression."""

    header: BatchHeader
    records: Sequence[Record]
    size_bytes: int

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
    def is_control(self) -> bool:
        """True if the records are transaction markers, which are not delivered to applications."""
        return bool(self.header.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.header.attributes & TRANSACTIONAL)

    @property
    def marker(self) -> Literal["commit", "abort"] | None:
        """How a transaction ended whose marker the batch is; None for any other batch (``ControlRecordType``)."""
        key = self.records[0].key if self.is_control and self.records else None
        return None if key is None else MARKERS.get(key[2:4])


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
            records = _records(bytes(payload), header)
        except ProtocolError as error:
            raise ProtocolError(f"the record batch at offset {header.base_offset} is corrupt: {error}") from error
        yield Batch(header, records, size)
        at += size


def _records(data: bytes, header: BatchHeader) -> Sequence[Record]:
    """Parse all records of a decompressed batch; raise ProtocolError if one is invalid, or offsets don't ascend."""
    records: list[Record] = []
    at, last_delta = 0, -1
    is_log_append_time = header.attributes & LOG_APPEND_TIME
    for _ in range(header.record_count):
        start = at
        try:
            length, at = read_varint(data, start)
            end = at + length
            if not at < end <= len(data):
                raise ProtocolError(
                    f"the record at byte {start} has length {length}, but {len(data) - at} bytes remain"
                )
            time_delta_ms, at = read_varint(data, at + 1)  # the attributes have no meaning yet
            offset_delta, at = read_varint(data, at)
            if offset_delta <= last_delta:
                raise ProtocolError(f"a record's offset delta {offset_delta} follows the offset delta {last_delta}")
            key, at = _field(data, at, end)
            value, at = _field(data, at, end)
            header_count, at = read_varint(data, at)
            if not 0 <= header_count <= end - at:
                raise ProtocolError(f"the record at byte {start} has {header_count} headers in {end - at} bytes")
            headers = []
            for _ in range(header_count):
                name, value_at = _field(data, at, end)
                if name is None:
                    raise ProtocolError(f"the header name at byte {at} of the records is null")
                content, at = _field(data, value_at, end)
                headers.append((str(name, errors="replace"), content))
        except IndexError:
            raise ProtocolError(f"the record at byte {start} of {len(data)} bytes of records is cut off") from None
        if at != end:
            raise ProtocolError(f"the record at byte {start} has length {length}, but its fields end at byte {at}")
        time_ms = header.max_timestamp_ms if is_log_append_time else header.base_timestamp_ms + time_delta_ms
        records.append(Record(header.base_offset + offset_delta, time_ms, key, value, tuple(headers)))
        last_delta = offset_delta
    if at != len(data):
        raise ProtocolError(f"{len(data) - at} bytes follow the last of {header.record_count} records")
    if last_delta > header.last_offset_delta:
        raise ProtocolError(
            f"offset delta {last_delta} exceeds the batch's last offset delta, {header.last_offset_delta}"
        )
    return records


def _field(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Return the key, value, header name or header value whose size is at ``at``, None for null, and its end."""
    size, at = read_varint(data, at)
    if size < 0:
        return None, at
    if at + size > end:
        raise ProtocolError(f"the field at byte {at} of the records has {size} bytes, its record only {end - at} more")
    return data[at : at + size], at + size

"""Kafka's primitive types: those of fixed size, and the unsigned varint that compact lengths and tags are made of.

Python's side is kio's: an ``ErrorCode``, a ``timedelta``, an aware ``datetime`` (None for -1), a ``UUID`` (None for the
zero one). An error code that kio doesn't know stays a plain int, so that a newer broker can still be understood.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

MILLISECOND = timedelta(milliseconds=1)
"""To divide durations by: kio's are a ``timedelta``, ours a number of milliseconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_UUID = bytes(16)
_UVARINTS = tuple(bytes((number,)) for number in range(128))
_UVARINT_BYTES_MAX = 5  # 31 bits, as in Kafka's ByteUtils.readUnsignedVarint


class _ErrorCodes(dict[int, int]):
    """Number -> kio's ErrorCode, or the number itself."""

    def __missing__(self, number: int) -> int:
        return number


_ERROR_CODES = _ErrorCodes({code.value: code for code in ErrorCode})


def _milliseconds(duration: timedelta) -> int:
    return duration // MILLISECOND


@lru_cache(maxsize=256)  # nearly all of them are a throttle time of zero
def _duration(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def _timestamp_ms(moment: datetime | None) -> int:
    return -1 if moment is None else (moment - _EPOCH) // MILLISECOND


def _moment(timestamp_ms: int) -> datetime | None:
    return None if timestamp_ms == -1 else _EPOCH + timedelta(milliseconds=timestamp_ms)


def _uuid_bytes(uuid: UUID | None) -> bytes:
    return _NO_UUID if uuid is None else uuid.bytes


@lru_cache(maxsize=1024)  # the same few topic ids are in every response, and making one costs a microsecond
def _uuid(raw: bytes) -> UUID | None:
    return None if raw == _NO_UUID else UUID(bytes=raw)


class Fixed(NamedTuple):
    """A type of fixed size: its code in ``struct``, and how a value comes and goes where it isn't ``struct``'s own."""

    code: str
    size: int
    to_wire: Callable[[Any], Any] | None = None
    from_wire: Callable[[Any], Any] | None = None


FIXED = {
    "bool": Fixed("?", 1),
    "int8": Fixed("b", 1),
    "int16": Fixed("h", 2),
    "int32": Fixed("i", 4),
    "int64": Fixed("q", 8),
    "uint16": Fixed("H", 2),
    "float64": Fixed("d", 8),
    "error_code": Fixed("h", 2, None, _ERROR_CODES.__getitem__),
    "timedelta_i32": Fixed("i", 4, _milliseconds, _duration),
    "timedelta_i64": Fixed("q", 8, _milliseconds, _duration),
    "datetime_i64": Fixed("q", 8, _timestamp_ms, _moment),
    "uuid": Fixed("16s", 16, _uuid_bytes, _uuid),
}
"""Kafka's type name -> its form. All are big-endian."""


def uvarint(number: int) -> bytes:
    """Seven bits a byte, lowest first, the high bit set on all but the last."""
    if number < len(_UVARINTS):
        return _UVARINTS[number]
    encoded = bytearray()
    while number >= len(_UVARINTS):
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_uvarint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The number at ``position`` and the position behind it. Raises ValueError, or IndexError past the end."""
    number = 0
    for index in range(_UVARINT_BYTES_MAX):
        byte = data[position + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < len(_UVARINTS):
            return number, position + index + 1
    raise ValueError(f"a varint longer than {_UVARINT_BYTES_MAX} bytes")

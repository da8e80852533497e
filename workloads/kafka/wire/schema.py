"""Building blocks (kio's schemas, Kafka's primitive types, code generation) of the compiled encoder and decoder.

The library kio has a frozen dataclass for each version of each struct in Kafka's messages. The fields of these
dataclasses have Python values such as ``ErrorCode``, ``timedelta``, aware ``datetime`` (None for -1) and ``UUID`` (None
for zero). An error code that kio doesn't know is a plain int, so that responses of newer brokers can be decoded.
"""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import groupby
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.protocol import Entity

from aftershock.errors import ProtocolError, UnsupportedError


class Function:
    """Function compiled from source text, which takes a third of the time of a loop over a struct's fields.

    The source text of a generated function contains only names from kio's classes, never bytes of a message.
    """

    def __init__(self, parameters: str) -> None:
        self._lines = [f"def function{parameters}:"]
        self._names: dict[str, Any] = {}

    def bind(self, value: object) -> str:
        """Return a name by which the generated source text can use ``value``."""
        name = f"_{len(self._names)}"
        self._names[name] = value
        return name

    def add(self, *lines: str) -> None:
        """Append lines to the body of the generated function; lines of inner blocks are indented."""
        self._lines += (f"    {line}" for line in lines)

    def compile(self) -> Callable[..., Any]:
        scope: dict[str, Any] = {}
        exec("\n".join(self._lines), self._names, scope)  # noqa: S102  # the text is our own, see the class docstring
        function: Callable[..., Any] = scope["function"]
        return function


_CONTINUATION = 0x80  # bit of a varint's byte: another byte follows
_VARINT_BYTES_MAX, _VARINT_BITS_MAX = 10, 64
_UVARINT_BYTES_MAX = 5  # 31 bits, as in Kafka's ByteUtils.readUnsignedVarint
_SHORT_UVARINTS = tuple(bytes((number,)) for number in range(_CONTINUATION))


def uvarint(number: int) -> bytes:
    """Encode an unsigned varint, with seven bits per byte, lowest first."""
    if number < _CONTINUATION:
        return _SHORT_UVARINTS[number]
    encoded = bytearray()
    while number >= _CONTINUATION:
        encoded.append(number & 0x7F | _CONTINUATION)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_uvarint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the unsigned varint at ``position`` and the position after it.

    Raises ProtocolError if the varint has more than five bytes, IndexError if the data ends within the varint.
    """
    number = 0
    for index in range(_UVARINT_BYTES_MAX):
        byte = data[position + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < _CONTINUATION:
            return number, position + index + 1
    raise ProtocolError(f"the unsigned varint at byte {position} is longer than {_UVARINT_BYTES_MAX} bytes")


def skip_tagged_fields(data: bytes | memoryview, position: int) -> int:
    """Return the position after the tagged fields (KIP-482) at ``position``; raises as ``read_uvarint``."""
    count, position = read_uvarint(data, position)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        position += size
    return position


@lru_cache(maxsize=1 << 16)
def varint(number: int) -> bytes:
    """Encode a signed number of up to 64 bits as a zigzag varint."""
    return uvarint((number << 1) ^ (number >> 63))


def read_varint(buffer: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag varint at position ``at`` and the position after it.

    Raises ProtocolError if the varint has more than 64 bits, IndexError if the buffer ends within the varint.
    """
    byte = buffer[at]
    if byte < _CONTINUATION:  # nearly all varints have one byte
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, shift = byte & 0x7F, 7
    for place in range(at + 1, at + _VARINT_BYTES_MAX):
        byte = buffer[place]
        number |= (byte & 0x7F) << shift
        if byte < _CONTINUATION:
            if number >> _VARINT_BITS_MAX:
                break
            return (number >> 1) ^ -(number & 1), place + 1
        shift += 7
    raise ProtocolError(f"the varint at byte {at} of the records is longer than {_VARINT_BITS_MAX} bits")


MILLISECOND = timedelta(milliseconds=1)
"""Divisor that converts a ``timedelta`` to milliseconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO_UUID = bytes(16)


class _ErrorCodes(dict[int, int]):
    """Map of Kafka's error numbers to ``ErrorCode``, in which an unknown number maps to itself."""

    def __missing__(self, number: int) -> int:
        return number


_ERROR_CODES = _ErrorCodes({code.value: code for code in ErrorCode})


def _to_milliseconds(duration: timedelta) -> int:
    return duration // MILLISECOND


@lru_cache(maxsize=256)  # nearly all are throttle times of zero
def _from_milliseconds(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


@lru_cache(maxsize=1024)  # every response has the same few topic ids, and creating a UUID takes a microsecond
def _from_uuid_bytes(raw: bytes) -> UUID | None:
    return None if raw == _ZERO_UUID else UUID(bytes=raw)


class Fixed(NamedTuple):
    """Encoding of a primitive type of fixed size, with code of module ``struct`` and conversions of values for it."""

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
    "timedelta_i32": Fixed("i", 4, _to_milliseconds, _from_milliseconds),
    "timedelta_i64": Fixed("q", 8, _to_milliseconds, _from_milliseconds),
    "datetime_i64": Fixed(
        "q",
        8,
        lambda time: -1 if time is None else (time - _EPOCH) // MILLISECOND,
        lambda time_ms: None if time_ms == -1 else _EPOCH + timedelta(milliseconds=time_ms),
    ),
    "uuid": Fixed("16s", 16, lambda uuid: _ZERO_UUID if uuid is None else uuid.bytes, _from_uuid_bytes),
}
"""Encodings of Kafka's primitive types of fixed size by type name; all numbers are big-endian."""


class Field(NamedTuple):
    """Field of a struct in Kafka's protocol.

    ``kind`` is Kafka's type name (``int32``, ``string``) or the nested struct of a field, or of the items of an array
    field. ``compact`` is True if a field's length is encoded as an unsigned varint. Only tagged fields (KIP-482) have a
    ``tag`` and a ``default``.
    """

    name: str
    kind: str | type[Entity]
    is_array: bool
    nullable: bool
    compact: bool
    tag: int | None
    default: object

    @property
    def fixed(self) -> Fixed | None:
        """Encoding of a field of fixed size; None for a field of variable size."""
        return None if self.is_array or not isinstance(self.kind, str) else FIXED.get(self.kind)


@cache
def plain_fields(entity_type: type[Entity]) -> tuple[Field, ...]:
    """Return a struct's fields without a tag, which are always encoded, in the order of encoding."""
    return tuple(field for field in _fields(entity_type) if field.tag is None)


def runs(entity_type: type[Entity]) -> Iterator[tuple[Field, ...]]:
    """Yield tuples of a struct's untagged fields, neighbouring fields of fixed size together, other fields alone."""
    for is_fixed, group in groupby(plain_fields(entity_type), lambda field: field.fixed is not None):
        if is_fixed:
            yield tuple(group)
        else:
            yield from ((field,) for field in group)


@cache
def tagged_fields(entity_type: type[Entity]) -> tuple[Field, ...]:
    """Return a struct's tagged fields by ascending tag; a field with its default value is not encoded."""
    tagged = {field.tag: field for field in _fields(entity_type) if field.tag is not None}
    for field in tagged.values():
        if field.default is MISSING:
            raise UnsupportedError(f"kio has no default for the tagged field {field.name} of {entity_type.__module__}")
    return tuple(tagged[tag] for tag in sorted(tagged))


def _fields(entity_type: type[Entity]) -> Iterator[Field]:
    is_request_header = entity_type.__name__ == "RequestHeader"
    for field in fields(entity_type):
        bare, nullable = _without_none(field.type)
        is_array = get_origin(bare) is tuple
        item = _without_none(get_args(bare)[0])[0] if is_array else bare
        # RequestHeader.json: a broker must be able to read the client id before it knows the version.
        compact = entity_type.__flexible__ and not (is_request_header and field.name == "client_id")
        kind = field.metadata.get("kafka_type", item)
        yield Field(field.name, kind, is_array, nullable, compact, field.metadata.get("tag"), field.default)


def _without_none(annotation: object) -> tuple[object, bool]:
    """Return X and True for the type annotation ``X | None``; return any other annotation and False."""
    some = [part for part in get_args(annotation) if part is not NoneType]
    return (some[0], True) if NoneType in get_args(annotation) else (annotation, False)

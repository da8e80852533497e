"""Functions that are written by a program: what ``dataclasses`` does for ``__init__``, for our encoder and decoder.

A message has a few dozen fields and a run has millions of messages. Straight-line code for each struct costs a third of
a loop over its fields. Only kio's class definitions get into the text, never a byte of a message.

Variable-length integers as records have them: zigzag first, then seven bits a byte, the lowest first.

Kafka's primitive types: those of fixed size, and the unsigned varint that compact lengths and tags are made of.

Python's side is kio's: an ``ErrorCode``, a ``timedelta``, an aware ``datetime`` (None for -1), a ``UUID`` (None for the
zero one). An error code that kio doesn't know stays a plain int, so that a newer broker can still be understood.

What kio's dataclasses say about their fields, in the words that our encoder and decoder compile from.

kio generates one frozen dataclass for every struct of every version of Kafka's messages. A field's annotation tells
whether it is an array, a nested struct, or nullable; its metadata has Kafka's type name and, for a tagged field
(KIP-482), the tag.
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
    """A function in the making: its lines, and the objects that they speak of."""

    def __init__(self, head: str) -> None:
        self._lines = [f"def function{head}:"]
        self._names: dict[str, Any] = {}

    def bind(self, thing: object) -> str:
        """A name for ``thing`` that lines may use."""
        name = f"_{len(self._names)}"
        self._names[name] = thing
        return name

    def add(self, *lines: str) -> None:
        """Append lines of the body, indented against its first."""
        self._lines += (f"    {line}" for line in lines)

    def made(self) -> Callable[..., Any]:
        """The function itself."""
        made: dict[str, Any] = {}
        exec("\n".join(self._lines), self._names, made)  # noqa: S102  # our own text: see above
        function: Callable[..., Any] = made["function"]
        return function


_BYTES_MAX = 10  # a 64-bit number; an eleventh byte is no varint
_BITS_MAX = 64
_MORE = 0x80  # the bit of a byte that says another follows


@lru_cache(maxsize=1 << 16)
def encode(number: int) -> bytes:
    """The varint of a signed number of up to 64 bits."""
    rest = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while rest >= _MORE:
        encoded.append(rest % _MORE | _MORE)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def read(buffer: memoryview, at: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends.

    Raises:
        ProtocolError: more than ten bytes, or more than 64 bits.
        IndexError: the buffer ends within it.
    """
    byte = buffer[at]
    if byte < _MORE:  # nearly all of them
        return (byte >> 1) ^ -(byte & 1), at + 1
    rest, shift = byte % _MORE, 7
    for place in range(at + 1, at + _BYTES_MAX):
        byte = buffer[place]
        rest |= (byte % _MORE) << shift
        if byte < _MORE:
            if rest >> _BITS_MAX:
                break
            return (rest >> 1) ^ -(rest & 1), place + 1
        shift += 7
    raise ProtocolError(f"a varint at byte {at} of the records is longer than {_BITS_MAX} bits: the batch is corrupt")


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


class Field(NamedTuple):
    """One field of a struct, in its order on the wire.

    ``kind``: Kafka's type name (``int32``, ``string``), or the struct nested here; of an array, its items'.
    ``compact``: lengths are unsigned varints. ``tag`` and ``default`` matter for tagged fields alone.
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
        """Its form, if it takes the same number of bytes whatever its value."""
        return None if self.is_array or not isinstance(self.kind, str) else FIXED.get(self.kind)


@cache
def plain_fields(entity_type: type[Entity]) -> tuple[Field, ...]:
    """The fields that are always there."""
    return tuple(field for field in _fields(entity_type) if field.tag is None)


def runs(entity_type: type[Entity]) -> Iterator[tuple[Field, ...]]:
    """The plain fields, neighbours of fixed size together, others one by one."""
    for is_run, group in groupby(plain_fields(entity_type), lambda field: field.fixed is not None):
        if is_run:
            yield tuple(group)
        else:
            yield from ((field,) for field in group)


@cache
def tagged_fields(entity_type: type[Entity]) -> tuple[Field, ...]:
    """The fields that are there when they differ from their default, by rising tag as KIP-482 wants them."""
    tagged = {field.tag: field for field in _fields(entity_type) if field.tag is not None}
    for field in tagged.values():
        if field.default is MISSING:
            raise UnsupportedError(f"{entity_type.__module__}: tagged field {field.name} has no default in kio")
    return tuple(tagged[tag] for tag in sorted(tagged))


def _fields(entity_type: type[Entity]) -> tuple[Field, ...]:
    is_request_header = entity_type.__name__ == "RequestHeader"
    found = []
    for field in fields(entity_type):
        bare, nullable = _without_none(field.type)
        is_array = get_origin(bare) is tuple
        item = _without_none(get_args(bare)[0])[0] if is_array else bare
        # RequestHeader.json: a broker must be able to read the client id before it knows the version
        compact = entity_type.__flexible__ and not (is_request_header and field.name == "client_id")
        kind = field.metadata.get("kafka_type", item)
        found.append(Field(field.name, kind, is_array, nullable, compact, field.metadata.get("tag"), field.default))
    return tuple(found)


def _without_none(annotation: object) -> tuple[object, bool]:
    """``X | None`` is X, nullable; anything else is itself. kio has no other unions."""
    some = [part for part in get_args(annotation) if part is not NoneType]
    return (some[0], True) if NoneType in get_args(annotation) else (annotation, False)

"""Kafka messages as the wire proxy needs them: request headers, whole frames, topics in a message, and built messages.

Request headers. API key, version, correlation id and client id have the same places in versions 1 and 2 of the request
header (``RequestHeader.json`` of Kafka 4.3 keeps the client id's length short for that reason). ``acks`` of a Produce
matters because a Produce with ``acks=0`` has no response: a proxy that waited for it would take the next request's
response for it.

Whole frames are decoded and encoded by the reference clients' codec. kio knows the versions of the Kafka release it
was generated from; unknown tags or bytes would be lost by decoding and encoding again. So a response that does not
encode to the same bytes is returned as None, and must pass unchanged.

Topics in a message have a name, or an id in versions with topic ids (KIP-516). A Fetch of a session names only changed
partitions (KIP-227), so it may be about any partition.

Built messages have the schema's default for every field without a given value, or else an empty value: an empty list or
text, 0, and -1 for 64-bit integers, which is Kafka's "unknown" for offsets, timestamps and producer ids. (A base offset
of 0 beside an error would mean that the records were appended.)
"""

import base64
import struct
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.static.protocol import Entity

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.wire.codec import PREFIX
from aftershock.workloads.kafka.wire.decoder import decode
from aftershock.workloads.kafka.wire.encoder import encode, encoded_parts
from aftershock.workloads.kafka.wire.schema import Field, plain_fields, read_uvarint, tagged_fields

API_KEYS: dict[str, int] = {
    "".join(word.capitalize() for word in name.split("_")): key for key, name in api_key_map.items()
}
"""Name -> API key."""

API_NAMES: dict[int, str] = {key: name for name, key in API_KEYS.items()}
"""API key -> name."""

ERROR_CODES: dict[str, int] = {code.name.upper(): code.value for code in ErrorCode if code.value}
"""Name -> error code."""

PRODUCE = API_KEYS["Produce"]
FETCH = API_KEYS["Fetch"]
API_VERSIONS = API_KEYS["ApiVersions"]


Data = bytes | memoryview
CORRELATION = struct.Struct(">i")
_FIXED = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_SHORT = struct.Struct(">h")
_PRODUCE_FLEXIBLE_SINCE = 9


class RequestHead(NamedTuple):
    """Header of a request. ``answered``: False if the broker sends no response (``acks=0``)."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    answered: bool


def read_head(data: Data, at: int) -> RequestHead:
    """Read the header of the message at ``at``; IndexError or struct.error if it is incomplete."""
    key, version, correlation_id, size = _FIXED.unpack_from(data, at)
    at += _FIXED.size
    end = at + max(0, size)
    if end > len(data):
        raise IndexError
    client_id = None if size < 0 else str(data[at:end], "utf-8", "replace")
    answered = key != PRODUCE or _acks(data, end, flexible=version >= _PRODUCE_FLEXIBLE_SINCE) != 0
    return RequestHead(key, version, correlation_id, client_id, answered)


def _acks(data: Data, at: int, *, flexible: bool) -> int:
    """Read ``acks``, which follows the header's tagged fields and the transactional id."""
    if flexible:
        at = _skip_tags(data, at)
        size, at = read_uvarint(data, at)
        at += max(0, size - 1)
    else:
        (size,) = _SHORT.unpack_from(data, at)
        at += _SHORT.size + max(0, size)
    acks: int = _SHORT.unpack_from(data, at)[0]
    return acks


def _skip_tags(data: Data, at: int) -> int:
    count, at = read_uvarint(data, at)
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
        if at > len(data):
            raise IndexError
    return at


Piece = bytes | memoryview
_UNSUPPORTED = ErrorCode.unsupported_version.to_bytes(2)


def decoded_request(frame: Piece, head: RequestHead) -> Any | None:
    """Decode the body of a request; None if that fails."""
    try:
        kind = load_request_schema(head.key, head.version)
        _, at = decode(kind.__header_schema__, frame, PREFIX.size)
        return decode(kind, frame, at)[0]
    except (ProtocolError, KioIndexError, ValueError):
        return None


def decoded_response(frame: Piece, head: RequestHead) -> Any | None:
    """Decode the body of a response; None if that fails, or if encoding it again changes its bytes."""
    try:
        kind = load_response_schema(head.key, head.version)
        _, at = decode(kind.__header_schema__, frame, PREFIX.size)
        if head.key == API_VERSIONS and frame[at : at + 2] == _UNSUPPORTED:
            kind = load_response_schema(API_VERSIONS, 0)  # KIP-511: a refusal has version 0, whichever was requested
        response = decode(kind, frame, at)[0]
        return response if encode(response) == frame[at:] else None
    except (ProtocolError, KioIndexError, ValueError):
        return None


def response_frame(response: Any, correlation_id: int) -> bytes:
    """Encode a response with its header and its length prefix."""
    header = encode(response.__header_schema__(correlation_id=correlation_id))
    body = encoded_parts(response)
    return b"".join((PREFIX.pack(len(header) + sum(map(len, body))), header, *body))


TOPIC_FIELDS = ("name", "topic", "topic_id")
NUMBER_FIELDS = ("index", "partition_index", "partition")


class RuleSubject(NamedTuple):
    """Topic and partition of a rule; None matches any. ``topic_id`` as Kafka writes it."""

    topic: str | None
    topic_id: str | None
    partition: int | None

    def is_topic(self, item: Any) -> bool:
        """Return True if an item of a message is about the topic."""
        if self.topic is None:
            return True
        identifiers = {self.topic, _uuid(self.topic_id)} - {None}
        return any(getattr(item, name) in identifiers for name in TOPIC_FIELDS if _has(item, name))

    def is_partition(self, item: Any) -> bool:
        """Return True if an item within a topic's is about the partition, or names no partition."""
        number = number_of(item)
        return self.partition is None or number is None or number == self.partition


ANY = RuleSubject(None, None, None)


def topics_in(message: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items that name a topic, each with the name of its field."""
    for field in fields(message):
        value = getattr(message, field.name)
        if isinstance(value, tuple):
            yield from ((field.name, item) for item in value if isinstance(item, str) or names_topic(item))


def partitions_in(topic: Any) -> Iterator[Any]:
    """Yield the item of each partition within a topic's item; some APIs have only its number."""
    for field in fields(topic):
        value = getattr(topic, field.name)
        if isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, int) or number_of(item) is not None)


def is_about(request: Any, named: RuleSubject) -> bool:
    """Return True if a request names the subject, or may be about it without naming it."""
    if named.topic is None or _is_of_session(request):
        return True
    for _, topic in topics_in(request):
        if isinstance(topic, str):
            if topic == named.topic:
                return True
        elif named.is_topic(topic):
            numbers = list(partitions_in(topic))
            if not numbers or any(named.is_partition(number) for number in numbers):
                return True
    return False


def number_of(item: Any) -> int | None:
    """Return the partition number of an item, if it has one."""
    if isinstance(item, int):
        return item
    return next((getattr(item, name) for name in NUMBER_FIELDS if _has(item, name)), None)


def _is_of_session(request: Any) -> bool:
    return request.__api_key__ == FETCH and getattr(request, "session_epoch", -1) > 0


def names_topic(item: Any) -> bool:
    """Return True if an item is about a topic."""
    return is_dataclass(item) and any(_has(item, name) for name in TOPIC_FIELDS)


def _has(item: Any, name: str) -> bool:
    return hasattr(type(item), name)  # kio's classes have slots


@cache
def _uuid(text: str | None) -> UUID | None:
    return None if text is None else UUID(bytes=base64.urlsafe_b64decode(text + "=="))


_ZEROS: dict[str, Any] = {
    "uuid": None,
    "string": "",
    "bytes": b"",
    "records": b"",
    "bool": False,
    "int64": -1,
    "datetime_i64": None,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
}


def build_entity(kind: type[Entity], values: dict[str, Any]) -> Any:
    """Build an entity with those of the values for which it has a field."""
    plain = {field.name: values.get(field.name, _default(field)) for field in plain_fields(kind)}
    return kind(**plain, **{field.name: field.default for field in tagged_fields(kind)})


def _default(field: Field) -> Any:
    if field.default is not MISSING:
        return field.default
    if field.is_array:
        return None if field.nullable else ()
    if not isinstance(field.kind, str):
        return None if field.nullable else build_entity(field.kind, {})
    return None if field.nullable else _ZEROS.get(field.kind, 0)


def struct_of(field: Field) -> type[Entity] | None:
    """Return the item type of a list of structs, else None."""
    return field.kind if field.is_array and not isinstance(field.kind, str) else None


def number_field(kind: type[Entity]) -> str | None:
    """Return the name of a struct's partition field, if it has one."""
    names = {field.name for field in plain_fields(kind)}
    return next((name for name in NUMBER_FIELDS if name in names), None)

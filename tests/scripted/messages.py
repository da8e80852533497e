"""Kafka's messages on the broker's side, by kio alone: its readers for requests, its writers for responses.

A handler says what it knows in a dict of all versions' fields; ``make`` takes from it what the version asked for has.
"""

import io
import struct
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32

#: API key → Kafka's name, and the versions that this broker serves: those of Kafka 4.3
SERVED = {
    0: ("Produce", 3, 13),
    1: ("Fetch", 4, 18),
    2: ("ListOffsets", 1, 11),
    3: ("Metadata", 0, 13),
    8: ("OffsetCommit", 2, 10),
    9: ("OffsetFetch", 1, 10),
    10: ("FindCoordinator", 0, 6),
    11: ("JoinGroup", 0, 9),
    12: ("Heartbeat", 0, 4),
    13: ("LeaveGroup", 0, 5),
    14: ("SyncGroup", 0, 5),
    18: ("ApiVersions", 0, 4),
    22: ("InitProducerId", 0, 5),
    23: ("OffsetForLeaderEpoch", 2, 4),
    24: ("AddPartitionsToTxn", 0, 3),
    25: ("AddOffsetsToTxn", 0, 4),
    26: ("EndTxn", 0, 5),
    28: ("TxnOffsetCommit", 0, 5),
    68: ("ConsumerGroupHeartbeat", 0, 1),
}
KEYS = {name: key for key, (name, _, _) in SERVED.items()}

_HEAD = struct.Struct(">hhi")
_ZEROS = {int: 0, str: "", bytes: b"", bool: False}


class Code(int):
    """An error code that kio's writer takes, be it one that kio knows or not."""

    @property
    def value(self) -> int:
        return int(self)


class Request(typing.NamedTuple):
    """One decoded request; ``body`` is kio's."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Any

    @property
    def api(self) -> str:
        return SERVED[self.key][0]


def head(message: bytes) -> tuple[int, int, int]:
    """API key, version and correlation id."""
    key, version, correlation_id = _HEAD.unpack_from(message)
    return key, version, correlation_id


def decode(message: bytes) -> Request:
    key, version, correlation_id = head(message)
    kind = load_request_schema(key, version)
    header, at = entity_reader(kind.__header_schema__)(message, 0)
    body, _ = entity_reader(kind)(message, at)
    return Request(key, version, correlation_id, header.client_id, body)


def encode(key: int, version: int, correlation_id: int, answer: dict[str, Any]) -> bytes:
    """A response with its length prefix."""
    kind = load_response_schema(key, version)
    buffer = io.BytesIO()
    entity_writer(kind.__header_schema__)(buffer, kind.__header_schema__(correlation_id=i32(correlation_id)))
    entity_writer(kind)(buffer, make(kind, answer))
    message = buffer.getvalue()
    return struct.pack(">i", len(message)) + message


def make(kind: Any, known: dict[str, Any]) -> Any:
    """A kio entity: fields of that name in ``known``, else the schema's default, else zero."""
    return kind(**{name: _value(types_, known.get(name), default) for name, types_, default in _shape(kind)})


@cache
def _shape(kind: Any) -> list[tuple[str, Any, Any]]:
    return [(field.name, field.type, field.default) for field in fields(kind)]


def _value(kind: Any, known: Any, default: Any) -> Any:
    if known is None:
        return default if default is not MISSING else _zero(kind)
    inner = next((inner for inner in (kind, *_inner(kind)) if is_dataclass(inner)), None)
    if isinstance(known, dict):
        return make(inner, known)
    if isinstance(known, list | tuple):
        return tuple(make(inner, item) if isinstance(item, dict) else item for item in known)
    if kind is ErrorCode:
        return Code(known)
    return timedelta(milliseconds=known) if _is(kind, timedelta) else known


def _inner(kind: Any) -> tuple[Any, ...]:
    inner = typing.get_args(kind)
    return inner + tuple(deeper for each in inner for deeper in typing.get_args(each))


def _zero(kind: Any) -> Any:
    if type(None) in typing.get_args(kind):
        return None
    if typing.get_origin(kind) is tuple:
        return ()
    if kind is ErrorCode:
        return Code(0)
    if is_dataclass(kind):
        return make(kind, {})
    if _is(kind, timedelta):
        return timedelta()
    return next((zero for type_, zero in _ZEROS.items() if _is(kind, type_)), None)


def _is(kind: Any, type_: type) -> bool:
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return any(isinstance(option, type) and type_ in option.__mro__ for option in options)


def plain(entity: Any) -> dict[str, Any]:
    """An entity's fields as JSON has them; nested ones are left out, record data as its length."""
    told = {field.name: _plain(getattr(entity, field.name)) for field in fields(entity)}
    return {name: value for name, value in told.items() if value is not MISSING}


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, bytes | memoryview):
        return len(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value] if not any(map(is_dataclass, value)) else MISSING
    return value if value is None or isinstance(value, int | str | bool) else MISSING

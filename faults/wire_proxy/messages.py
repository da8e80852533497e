"""Kafka messages, whose headers are read, and which are decoded, encoded and built.

A probe is a harmless request about a topic that doesn't exist, which shows the effect of a wire proxy rule. A test on a
real broker shows that the broker refuses the probe of each API in ``rules.PROBED``, or changes nothing.
"""

import struct
from collections.abc import Mapping
from dataclasses import MISSING
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.static.protocol import Entity, RequestPayload

from aftershock.errors import ProtocolError, UnsupportedError
from aftershock.faults.wire_proxy.rules import API_KEYS, NUMBER_FIELDS, TOPIC_FIELDS
from aftershock.faults.wire_proxy.streams import Piece
from aftershock.workloads.kafka.wire.codec import PREFIX
from aftershock.workloads.kafka.wire.decoder import decode
from aftershock.workloads.kafka.wire.encoder import encode, encoded_parts
from aftershock.workloads.kafka.wire.schema import Field, plain_fields, read_uvarint, skip_tagged_fields, tagged_fields

CORRELATION = struct.Struct(">i")
_FIXED = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_SHORT = struct.Struct(">h")
_PRODUCE_FLEXIBLE_SINCE = 9


class RequestHead(NamedTuple):
    """Header of a request; ``answered`` is False if the broker sends no response (``acks=0``)."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    answered: bool


def read_head(data: Piece, at: int) -> RequestHead:
    """Read the header of the request at offset ``at``; raise IndexError or struct.error if bytes are missing.

    The fields up to the client id are equal in versions 1 and 2 of the request header (``RequestHeader.json``). The
    ``acks`` of a Produce request is read too, because the broker sends no response to a request with ``acks=0``.
    """
    key, version, correlation_id, size = _FIXED.unpack_from(data, at)
    at += _FIXED.size
    end = at + max(0, size)
    if end > len(data):
        raise IndexError
    client_id = None if size < 0 else str(data[at:end], "utf-8", "replace")
    if key != API_KEYS["Produce"]:
        return RequestHead(key, version, correlation_id, client_id, answered=True)
    # `acks` follows the header's tagged fields and the transactional id
    if version >= _PRODUCE_FLEXIBLE_SINCE:
        size, at = read_uvarint(data, skip_tagged_fields(data, end))
        at += max(0, size - 1)
    else:
        (size,) = _SHORT.unpack_from(data, end)
        at = end + _SHORT.size + max(0, size)
    (acks,) = _SHORT.unpack_from(data, at)
    return RequestHead(key, version, correlation_id, client_id, answered=acks != 0)


def decoded_request(frame: Piece, head: RequestHead) -> Any | None:
    """Decode the body of a request; None if the body can't be decoded."""
    try:
        kind = load_request_schema(head.key, head.version)
        _, at = decode(kind.__header_schema__, frame, PREFIX.size)
        return decode(kind, frame, at)[0]
    except (ProtocolError, KioIndexError, ValueError):
        return None


def decoded_response(frame: Piece, head: RequestHead) -> Any | None:
    """Decode the body of a response; None if encoding the decoded body again would not give equal bytes.

    The library kio knows only the fields of the Kafka release that kio was generated from, and loses unknown fields.
    """
    try:
        kind = load_response_schema(head.key, head.version)
        _, at = decode(kind.__header_schema__, frame, PREFIX.size)
        if head.key == API_KEYS["ApiVersions"] and frame[at : at + 2] == ErrorCode.unsupported_version.to_bytes(2):
            kind = load_response_schema(head.key, 0)  # KIP-511: a refusal has version 0, whichever was requested
        response = decode(kind, frame, at)[0]
        return response if encode(response) == frame[at:] else None
    except (ProtocolError, KioIndexError, ValueError):
        return None


def frame_with_body(frame: Piece, head: RequestHead, old: Any, new: Any) -> bytes | None:
    """Encode a request with another body, under its own header; None if its ``old`` body does not encode to the frame.

    The library kio loses fields that it does not know.
    """
    _, at = decode(load_request_schema(head.key, head.version).__header_schema__, frame, PREFIX.size)
    if encode(old) != frame[at:]:
        return None
    header, body = bytes(frame[PREFIX.size : at]), encoded_parts(new)
    return b"".join((PREFIX.pack(len(header) + sum(map(len, body))), header, *body))


def response_frame(response: Any, correlation_id: int) -> bytes:
    """Encode a response with its header and its length prefix."""
    header = encode(response.__header_schema__(correlation_id=correlation_id))
    body = encoded_parts(response)
    return b"".join((PREFIX.pack(len(header) + sum(map(len, body))), header, *body))


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
    """Build a Kafka message or a struct of a message; values of fields that the message lacks are ignored.

    A field without a value in ``values`` gets the schema's default, else null where allowed, else an empty list or text
    or 0; -1 for 64-bit integers, which means "unknown" for offsets, timestamps and producer ids.
    """
    plain = {}
    for field in plain_fields(kind):
        if field.name in values:
            plain[field.name] = values[field.name]
        elif field.default is not MISSING:
            plain[field.name] = field.default
        elif field.nullable:
            plain[field.name] = None
        elif field.is_array:
            plain[field.name] = ()
        elif isinstance(field.kind, str):
            plain[field.name] = _ZEROS.get(field.kind, 0)
        else:
            plain[field.name] = build_entity(field.kind, {})
    return kind(**plain, **{field.name: field.default for field in tagged_fields(kind)})


def struct_of(field: Field) -> type[Entity] | None:
    """Return the item type of a message field that is a list of structs; None for any other field."""
    return field.kind if field.is_array and not isinstance(field.kind, str) else None


def number_field(kind: type[Entity]) -> str | None:
    names = {field.name for field in plain_fields(kind)}
    return next((name for name in NUMBER_FIELDS if name in names), None)


_LISTS = frozenset({"topics", "topic_data", "groups"})
_UNUSED_NAME = "aftershock-probe"
_UNUSED_ID = UUID(int=0xAF7E_0000_0000_4000_8000_0000_0000_0001)
_VALUES: dict[str, Any] = {
    "client_software_name": "aftershock",
    "client_software_version": "1",
    "allow_auto_topic_creation": False,
    "key": _UNUSED_NAME,
    "coordinator_keys": (_UNUSED_NAME,),
    "acks": -1,
    "session_epoch": -1,
    "replica_id": -1,
}


def probe_request(api: str, offered: Mapping[int, tuple[int, int]], topic: str = _UNUSED_NAME) -> RequestPayload:
    """Build a probe in the highest API version that broker and kio know; raise UnsupportedError without one.

    A probe names a ``topic`` of the cluster only if it changes nothing there, as Metadata.
    """
    lowest, highest = offered.get(API_KEYS[api], (0, -1))
    version = min(highest, max(_versions(api)))
    if version < lowest:
        raise UnsupportedError(f"the broker offers no version of {api} that a probe can be sent in")
    kind: type[Entity] = load_request_schema(API_KEYS[api], version)
    values = dict(_VALUES)
    for field in plain_fields(kind):
        if field.name in _LISTS and (struct := struct_of(field)):
            item: dict[str, Any] = dict.fromkeys((*TOPIC_FIELDS, "group_id"), topic)
            subfields = plain_fields(struct)
            # Metadata has both a name and an id, and accepts only one value
            item["topic_id"] = None if any(subfield.name == "name" for subfield in subfields) else _UNUSED_ID
            for subfield in subfields:
                if (partition := struct_of(subfield)) and number_field(partition):
                    item[subfield.name] = (build_entity(partition, {}),)
            values[field.name] = (build_entity(struct, item),)
    request: RequestPayload = build_entity(kind, values)
    return request


def answer_fields(api: str) -> frozenset[str]:
    """Return the names of the fields that responses of an API have in any version that kio knows, at any depth.

    A field of a partition's item is there once more, as ``partition.<name>``.
    """
    names = set[str]()

    def walk(kind: type[Entity]) -> None:
        in_partition = number_field(kind) is not None
        for field in plain_fields(kind):
            names.update((field.name, f"partition.{field.name}") if in_partition else (field.name,))
            if struct := struct_of(field):
                walk(struct)

    for version in _versions(api):
        walk(load_response_schema(API_KEYS[api], version))
    return frozenset(names)


def names_topics(api: str) -> bool:
    """Return True if requests of an API name topics in any version that kio knows."""
    kinds = [load_request_schema(API_KEYS[api], version) for version in _versions(api)]
    structs = [struct for kind in kinds for field in plain_fields(kind) if (struct := struct_of(field))]
    return any(field.name in TOPIC_FIELDS for struct in structs for field in plain_fields(struct))


def _versions(api: str) -> Mapping[int, object]:
    versions: Mapping[int, object] = schema_name_map[api_key_map[API_KEYS[api]]]
    return versions

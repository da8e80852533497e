"""Framing: a signed 32-bit length before each message, and nothing else between them.

Which version of an API to speak: the highest that the broker offers, kio knows and the caller allows.

Whole messages: a header and a body, to bytes and back.
"""

import struct
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from typing import Any, TypeVar, cast

from kio.index import load_request_schema, load_response_from_request, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.static.protocol import RequestPayload, ResponsePayload

from aftershock.errors import ProtocolError, UnsupportedError
from aftershock.workloads.kafka.wire.decoder import decode, prepare_decoder
from aftershock.workloads.kafka.wire.encoder import encoded_parts

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Kafka's own default for socket.request.max.bytes. A longer message is a broken or hostile peer's."""

PREFIX = struct.Struct(">i")
_MESSAGE_BYTES_MIN = 4  # a correlation id


def checked_length(prefix: bytes | bytearray | memoryview, position: int, bytes_max: int) -> int:
    """The length that the prefix at ``position`` announces. Raises ProtocolError for one that no message has."""
    length: int = PREFIX.unpack_from(prefix, position)[0]
    if not _MESSAGE_BYTES_MIN <= length <= bytes_max:
        raise ProtocolError(f"a message of {length} bytes was announced, {_MESSAGE_BYTES_MIN} to {bytes_max} may be")
    return length


class Frames:
    """Cuts a stream of bytes into messages, whatever pieces it comes in.

    Messages are views of what came in; only what is left over between two calls is kept, and it grows with the bytes
    that came, never with the length that was announced.
    """

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._partial = bytearray()
        self._wanted = PREFIX.size  # fewer bytes than this in _partial hold no whole message

    def feed(self, data: bytes) -> list[memoryview]:
        """The messages that ``data`` completes, without their prefixes. Raises ProtocolError: give the stream up."""
        if self._partial:
            self._partial += data
            if len(self._partial) < self._wanted:
                return []
            return self._cut(memoryview(self._partial).toreadonly())
        return self._cut(memoryview(data))

    def _cut(self, data: memoryview) -> list[memoryview]:
        messages = []
        begin = 0
        self._wanted = PREFIX.size
        while len(data) - begin >= PREFIX.size:
            end = begin + PREFIX.size + checked_length(data, begin, self._bytes_max)
            if end > len(data):
                self._wanted = end - begin
                break
            messages.append(data[begin + PREFIX.size : end])
            begin = end
        # a new one, never the old one shortened: the messages are views of that
        self._partial = bytearray(data[begin:])
        return messages


class Api(IntEnum):
    """Kafka's API keys that the reference clients use."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    CONSUMER_GROUP_HEARTBEAT = 68


@cache
def known_versions(api: Api) -> range:
    """The versions that kio has of an API."""
    versions = schema_name_map[api_key_map[api]]
    return range(min(versions), max(versions) + 1)


@cache
def request_type(api: Api, version: int) -> type[RequestPayload]:
    """The request class of that version. Its first use imports it, 10 ms and more for the larger ones.

    Raises:
        UnsupportedError: kio has no such version.
    """
    if version not in known_versions(api):
        raise UnsupportedError(f"{api.name}: version {version} is asked for, this client knows {_span(api)}")
    return load_request_schema(api, version)


class Versions:
    """What one broker offers: API key -> (lowest version, highest version)."""

    def __init__(self, offered: Mapping[int, tuple[int, int]]) -> None:
        self.offered = dict(offered)

    def pick(self, api: Api, cap: int | None = None) -> int:
        """The highest version that both sides have, at most ``cap``.

        Raises:
            UnsupportedError: they have none in common.
        """
        if api not in self.offered:
            raise UnsupportedError(
                f"the broker doesn't offer {api.name}; this client needs one of versions {_span(api)}"
            )
        lowest, highest = self.offered[api]
        known = known_versions(api)
        version = min(highest, known[-1], known[-1] if cap is None else cap)
        if version < max(lowest, known[0]):
            limit = "" if cap is None else f", of which at most {cap} may be used"
            raise UnsupportedError(
                f"{api.name}: the broker offers versions {lowest} to {highest}, this client knows {_span(api)}{limit}"
            )
        return version


def _span(api: Api) -> str:
    known = known_versions(api)
    return f"{known[0]} to {known[-1]}"


Response = TypeVar("Response", bound=ResponsePayload)

_HEADER = struct.Struct(">ihhi")  # length, api key, version, correlation id
_SHORT = struct.Struct(">h")
_API_VERSIONS = 18
_UNSUPPORTED = _SHORT.pack(ErrorCode.unsupported_version)
_NONE = bytes(4)  # the length of an empty array


def encode_frame(request: RequestPayload, correlation_id: int, client_id: str | None) -> bytes:
    """One request with its header and its length prefix. Raises ValueError as ``encode`` does."""
    body = encoded_parts(request)
    return b"".join((frame_head(type(request), sum(map(len, body)), correlation_id, client_id), *body))


def frame_head(kind: type[RequestPayload], body_bytes: int, correlation_id: int, client_id: str | None) -> bytes:
    """What stands before the body of a request: length prefix and header."""
    key, version, rest = _header(kind, client_id)
    return _HEADER.pack(_HEADER.size - PREFIX.size + len(rest) + body_bytes, key, version, correlation_id) + rest


@cache
def response_type(kind: type[RequestPayload]) -> type[ResponsePayload]:
    """The class of the response that answers requests of this one."""
    return load_response_from_request(kind)


def prepare(kind: type[RequestPayload]) -> None:
    """Import and compile now what the first exchange of its kind would: some ten milliseconds."""
    response = response_type(kind)
    prepare_decoder(response.__header_schema__)
    prepare_decoder(response)


def decode_response(response_type: type[Response], message: bytes | memoryview, correlation_id: int) -> Response:
    """The body of a response that must answer ``correlation_id``. Bytes behind its end are passed over, as in Kafka.

    The one answer of another type than asked for: a broker that doesn't know our version of ApiVersions says so (error
    35) in version 0 of its response (KIP-511). Librdkafka's mock writes the rest of that one unreadably, so what
    follows the error is taken for no versions at all where it makes no sense.

    Raises:
        ProtocolError: whatever is wrong with the message, naming API and version.
    """
    header, position = decode(response_type.__header_schema__, message)
    if header.correlation_id != correlation_id:
        raise ProtocolError(f"{response_type.__name__}: answer {header.correlation_id} to request {correlation_id}")
    if response_type.__api_key__ == _API_VERSIONS and message[position : position + _SHORT.size] == _UNSUPPORTED:
        return cast("Response", _unsupported(message, position))
    return decode(response_type, message, position)[0]


def _unsupported(message: bytes | memoryview, position: int) -> Any:
    told = load_response_schema(_API_VERSIONS, 0)
    try:
        return decode(told, message, position)[0]
    except ProtocolError:
        return decode(told, _UNSUPPORTED + _NONE)[0]


@cache
def _header(kind: type[RequestPayload], client_id: str | None) -> tuple[int, int, bytes]:
    """API key, version, and what follows the correlation id.

    The client id's length is short even in a flexible header; we send no tags.
    """
    name = b"" if client_id is None else client_id.encode()
    rest = _SHORT.pack(-1 if client_id is None else len(name)) + name + bytes(kind.__header_schema__.__flexible__)
    return kind.__api_key__, kind.__version__, rest

"""Length prefixes, headers and API versions of Kafka messages.

A frame is a signed 32-bit length and a message; a message is a header and a body. Of each API the client uses the
highest version that the broker offers, kio knows and the caller allows.
"""

import struct
from collections.abc import Generator, Mapping
from enum import IntEnum
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar, cast

from kio.index import load_request_schema, load_response_from_request, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.static.protocol import Entity, RequestPayload, ResponsePayload

from aftershock.errors import ProtocolError, UnsupportedError
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.decoder import decode, struct_reader
from aftershock.workloads.kafka.wire.encoder import encoded_parts

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Largest accepted message: Kafka's default for socket.request.max.bytes."""

PREFIX = struct.Struct(">i")
_MESSAGE_BYTES_MIN = 4  # a correlation id


def checked_length(prefix: bytes | bytearray | memoryview, position: int, bytes_max: int) -> int:
    """Return a message's length from the prefix at ``position``; raise ProtocolError if the length is invalid."""
    length: int = PREFIX.unpack_from(prefix, position)[0]
    if not _MESSAGE_BYTES_MIN <= length <= bytes_max:
        raise ProtocolError(f"invalid message length {length}; {_MESSAGE_BYTES_MIN} to {bytes_max} bytes are allowed")
    return length


class Frames:
    """Splits a stream of bytes, received in arbitrary pieces, into Kafka messages.

    Only an incomplete message is stored; its buffer grows with the received bytes, never with the announced length.
    """

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._partial = bytearray()
        self._needed_bytes = PREFIX.size  # with fewer bytes, _partial can't contain a whole message

    def feed(self, data: bytes) -> list[memoryview]:
        """Return views of the messages that ``data`` completes; raise ProtocolError for an invalid length."""
        buffer = memoryview(data)
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed_bytes:
                return []
            buffer = memoryview(self._partial).toreadonly()
        messages = []
        begin = 0
        self._needed_bytes = PREFIX.size
        while len(buffer) - begin >= PREFIX.size:
            end = begin + PREFIX.size + checked_length(buffer, begin, self._bytes_max)
            if end > len(buffer):
                self._needed_bytes = end - begin
                break
            messages.append(buffer[begin + PREFIX.size : end])
            begin = end
        # A new bytearray, because the messages are views of the old one.
        self._partial = bytearray(buffer[begin:])
        return messages


class Api(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    CONSUMER_GROUP_HEARTBEAT = 68


@cache
def known_versions(api: Api) -> range:
    versions = schema_name_map[api_key_map[api]]
    return range(min(versions), max(versions) + 1)


@cache
def request_type(api: Api, version: int) -> type[RequestPayload]:
    """Return kio's request class of an API version; its first import takes 10 ms or more for large classes."""
    if version not in known_versions(api):
        raise UnsupportedError(f"{api.name} version {version} is unknown; this client knows {_span(api)}")
    return load_request_schema(api, version)


_SOFTWARE_SINCE = 3  # first version of ApiVersions with the client's software name
_SOFTWARE = {"client_software_name": "aftershock", "client_software_version": "1"}


class Versions:
    """API versions that one broker offers, as API key -> (lowest version, highest version).

    ``features`` are the levels of the cluster's finalized features (KIP-584) by name, as of ``features_epoch``.
    """

    def __init__(
        self,
        offered: Mapping[int, tuple[int, int]],
        features: Mapping[str, int] = MappingProxyType({}),
        features_epoch: int = -1,
    ) -> None:
        self.offered = dict(offered)
        self.features, self.features_epoch = features, features_epoch

    def pick(self, api: Api, cap: int | None = None) -> int:
        """Return an API's highest common version of broker and client, up to ``cap``; else raise UnsupportedError."""
        if api not in self.offered:
            raise UnsupportedError(
                f"the broker doesn't offer {api.name}; this client needs one of versions {_span(api)}"
            )
        lowest, highest = self.offered[api]
        versions = known_versions(api)
        version = min(highest, versions[-1], versions[-1] if cap is None else cap)
        if version < max(lowest, versions[0]):
            limit = "" if cap is None else f"; this request may use version {cap} at most"
            raise UnsupportedError(
                f"{api.name}: the broker offers versions {lowest} to {highest}, this client knows {_span(api)}{limit}"
            )
        return version


def negotiation() -> Generator[RequestPayload, Any, Versions]:
    """Negotiate API versions with a broker: yield ApiVersions requests, receive responses, return the offered versions.

    ApiVersions has v4 at most, which names no cluster and no node, because with v5 (KIP-1242) a broker behind a
    misrouting proxy would refuse the connection. Raises UnsupportedError if the broker refuses every version.
    """
    version = known_versions(Api.API_VERSIONS)[-1]
    while True:
        software = _SOFTWARE if version >= _SOFTWARE_SINCE else {}
        response = yield request_type(Api.API_VERSIONS, version)(**software)
        offered = Versions(
            {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys},
            {feature.name: feature.max_version_level for feature in getattr(response, "finalized_features", ())},
            getattr(response, "finalized_features_epoch", -1),
        )
        if response.error_code != ErrorCode.unsupported_version or version == 0:
            break
        # The response has the supported versions of ApiVersions, unless the broker is older than Kafka 2.4.
        version = offered.pick(Api.API_VERSIONS, version - 1) if Api.API_VERSIONS in offered.offered else 0
    if response.error_code:
        raise UnsupportedError(f"the broker refuses ApiVersions v{version}: {codes.name(response.error_code)}")
    return offered


def _span(api: Api) -> str:
    versions = known_versions(api)
    return f"{versions[0]} to {versions[-1]}"


Response = TypeVar("Response", bound=ResponsePayload)

_HEADER = struct.Struct(">ihhi")  # length, api key, version, correlation id
_SHORT = struct.Struct(">h")
_UNSUPPORTED_VERSION = _SHORT.pack(ErrorCode.unsupported_version)
_EMPTY_ARRAY = bytes(4)
_API_VERSIONS = int(Api.API_VERSIONS)  # comparing an int is faster than comparing an enum member


def encode_frame(request: RequestPayload, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a request with its length prefix and header; raise ValueError if a field is invalid."""
    body = encoded_parts(request)
    return b"".join((frame_head(type(request), sum(map(len, body)), correlation_id, client_id), *body))


def frame_head(kind: type[RequestPayload], body_bytes: int, correlation_id: int, client_id: str | None) -> bytes:
    key, version, header_end = _header_constants(kind, client_id)
    length = _HEADER.size - PREFIX.size + len(header_end) + body_bytes
    return _HEADER.pack(length, key, version, correlation_id) + header_end


@cache
def _header_constants(kind: type[RequestPayload], client_id: str | None) -> tuple[int, int, bytes]:
    """Return a request's API key, version, and header bytes after the correlation id.

    The client id has a 16-bit length even in a flexible request header, which ends with an empty list of tags.
    """
    name = b"" if client_id is None else client_id.encode()
    header_end = _SHORT.pack(-1 if client_id is None else len(name)) + name + bytes(kind.__header_schema__.__flexible__)
    return kind.__api_key__, kind.__version__, header_end


@cache
def response_type(kind: type[RequestPayload]) -> type[ResponsePayload]:
    return load_response_from_request(kind)


def prepare(kind: type[RequestPayload]) -> None:
    """Compile the decoder of a request's response now, so that the first response isn't delayed by about 10 ms."""
    response = response_type(kind)
    header: type[Entity] = response.__header_schema__
    struct_reader(header)
    struct_reader(response)


def decode_response(response_type: type[Response], message: bytes | memoryview, correlation_id: int) -> Response:
    """Decode a response with its header. Bytes after the end of a response are ignored, as in Kafka.

    A broker without this client's version of ApiVersions responds in version 0 with UNSUPPORTED_VERSION (KIP-511).
    Invalid bytes after that error, which librdkafka's mock broker sends, are replaced by an empty list of versions.
    Raises ProtocolError if the response is invalid or responds to another request.
    """
    header, position = decode(response_type.__header_schema__, message)
    if header.correlation_id != correlation_id:
        raise ProtocolError(
            f"{response_type.__name__} has correlation id {header.correlation_id}, expected {correlation_id}"
        )
    if response_type.__api_key__ == _API_VERSIONS and message[position : position + 2] == _UNSUPPORTED_VERSION:
        version_0 = load_response_schema(_API_VERSIONS, 0)
        try:
            response = decode(version_0, message, position)[0]
        except ProtocolError:
            response = decode(version_0, _UNSUPPORTED_VERSION + _EMPTY_ARRAY)[0]
        return cast("Response", response)
    return decode(response_type, message, position)[0]

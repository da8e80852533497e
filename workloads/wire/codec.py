"""Whole messages: a header and a body, to bytes and back."""

import struct
from functools import cache
from typing import Any, TypeVar, cast

from kio.index import load_response_from_request, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.protocol import RequestPayload, ResponsePayload

from aftershock.errors import ProtocolError
from aftershock.workloads.wire.decoder import decode, prepare_decoder
from aftershock.workloads.wire.encoder import encoded_parts
from aftershock.workloads.wire.frames import PREFIX

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

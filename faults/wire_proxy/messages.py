"""Whole frames, read and written: the codec of the reference clients, and what it can't do left alone.

kio knows the versions of the Kafka that it was made from; a tag or a byte that it doesn't know would be lost by
decoding and encoding again. So a message that doesn't come out as it went in is given back as None: nobody may change
it.
"""

from typing import Any

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from aftershock.errors import ProtocolError
from aftershock.faults.wire_proxy.apis import API_VERSIONS
from aftershock.faults.wire_proxy.heads import Head
from aftershock.workloads.wire.decoder import decode
from aftershock.workloads.wire.encoder import encode, encoded_parts
from aftershock.workloads.wire.frames import PREFIX

Piece = bytes | memoryview
_UNSUPPORTED = ErrorCode.unsupported_version.to_bytes(2)


def decoded_request(frame: Piece, head: Head) -> Any | None:
    """The body of a request; None if it can't be read."""
    try:
        kind = load_request_schema(head.key, head.version)
        _, at = decode(kind.__header_schema__, frame, PREFIX.size)
        return decode(kind, frame, at)[0]
    except (ProtocolError, KioIndexError, ValueError):
        return None


def decoded_response(frame: Piece, head: Head) -> Any | None:
    """The body of the response to a request; None if it can't be read, or not be written again as it is."""
    try:
        kind = load_response_schema(head.key, head.version)
        _, at = decode(kind.__header_schema__, frame, PREFIX.size)
        if head.key == API_VERSIONS and frame[at : at + 2] == _UNSUPPORTED:
            kind = load_response_schema(API_VERSIONS, 0)  # KIP-511: whatever was asked, this is how it is refused
        response = decode(kind, frame, at)[0]
        return response if encode(response) == frame[at:] else None
    except (ProtocolError, KioIndexError, ValueError):
        return None


def response_frame(response: Any, correlation_id: int) -> bytes:
    """A response with its header and its length prefix."""
    header = encode(response.__header_schema__(correlation_id=correlation_id))
    body = encoded_parts(response)
    return b"".join((PREFIX.pack(len(header) + sum(map(len, body))), header, *body))

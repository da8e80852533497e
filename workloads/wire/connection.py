"""One blocking connection to one broker, one request at a time.

It serves administration and probes, where a round trip at a time is what is wanted. kio gives the message types and the
codec; this file gives framing (a signed 32-bit length before each message), correlation, deadlines and a size limit.
"""

import io
import socket
import struct
import time
from types import TracebackType
from typing import NamedTuple, Self, cast

from kio.index import load_response_from_request
from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32
from kio.static.protocol import RequestPayload, ResponsePayload

#: Kafka's own default for socket.request.max.bytes. A longer answer is a broken or hostile peer.
FRAME_BYTES_MAX = 100 * 1024 * 1024
_FRAME_BYTES_MIN = 4  # a correlation id


class Address(NamedTuple):
    """Where a listener is dialled."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class PeerError(ConnectionError):
    """The peer broke the protocol: the frame's length or correlation id is not what it must be."""


class Connection:
    """A connection that asks and waits.

    Raises:
        OSError: refused, reset, closed, or no answer within ``timeout_s`` (``TimeoutError``).
    """

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self._socket = socket.create_connection(address, timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; the broker forgets the connection."""
        self._socket.close()

    def ask(self, request: RequestPayload, timeout_s: float | None = None) -> ResponsePayload:
        """Send one request and return its decoded response; ``timeout_s`` bounds the whole exchange."""
        deadline_s = time.monotonic() + (timeout_s or self._timeout_s)
        self._correlation_id += 1
        self._socket.sendall(_frame(request, self._correlation_id))
        (length,) = struct.unpack(">i", self._receive(4, deadline_s))
        if not _FRAME_BYTES_MIN <= length <= FRAME_BYTES_MAX:
            raise PeerError(f"{self.address} announced a message of {length} bytes")
        return self._decode(request, self._receive(length, deadline_s))

    def _receive(self, count: int, deadline_s: float) -> bytes:
        buffer = bytearray()
        while len(buffer) < count:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no answer from {self.address} in time")
            self._socket.settimeout(left_s)
            chunk = self._socket.recv(min(count - len(buffer), 1 << 16))
            if not chunk:
                raise ConnectionResetError(f"{self.address} closed the connection")
            buffer += chunk
        return bytes(buffer)

    def _decode(self, request: RequestPayload, message: bytes) -> ResponsePayload:
        response_type = load_response_from_request(request)
        header, consumed = entity_reader(response_type.__header_schema__)(message, 0)
        if header.correlation_id != self._correlation_id:
            raise PeerError(f"answer {header.correlation_id} to request {self._correlation_id}")
        response, _ = entity_reader(response_type)(message, consumed)
        return response


def _frame(request: RequestPayload, correlation_id: int) -> bytes:
    header_type = cast("type[RequestHeaderV1]", request.__header_schema__)
    header = header_type(
        request_api_key=request.__api_key__,
        request_api_version=i16(request.__version__),
        correlation_id=i32(correlation_id),
        client_id="aftershock",
    )
    buffer = io.BytesIO()
    entity_writer(header_type)(buffer, header)
    entity_writer(type(request))(buffer, request)
    message = buffer.getvalue()
    return struct.pack(">i", len(message)) + message

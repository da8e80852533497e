"""Blocking connection to one broker, one request at a time, for administration and probes.

Encoding and login are shared with the asyncio ``Channel``. A broker that violates the protocol causes an ``OSError``,
so that a caller that tries several brokers continues with the next broker.
"""

import socket
import time
from collections.abc import Generator
from functools import cached_property
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, cast

from kio.static.protocol import RequestPayload, ResponsePayload

from aftershock.errors import AuthenticationError, ProtocolError
from aftershock.workloads.kafka.wire.codec import (
    FRAME_BYTES_MAX,
    PREFIX,
    Versions,
    checked_length,
    decode_response,
    encode_frame,
    negotiation,
    response_type,
)
from aftershock.workloads.kafka.wire.login import login
from aftershock.workloads.kafka.wire.security import PLAINTEXT, Security

PORT_MAX = 65_535
T = TypeVar("T")


class Address(NamedTuple):
    host: str
    port: int

    @classmethod
    def checked(cls, host: str, port: int) -> Self:
        """Return the address of a host and port; raise ValueError if no socket would accept them."""
        try:
            host.encode("idna")  # the encoding that sockets use
        except UnicodeError as error:
            raise ValueError(f"{host!r} is not a host name: {error}") from error
        if not host or not 1 <= port <= PORT_MAX:
            raise ValueError(f"{host}:{port} is not an address: give a host name and a port from 1 to {PORT_MAX}")
        return cls(host, port)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class PeerError(ConnectionError):
    """Error of a connection to a broker that violated Kafka's protocol, or refused to authenticate the client."""


class Connection:
    """Blocking connection to a broker; its constructor connects and logs in.

    All methods of a connection raise OSError if the connection fails, as ``PeerError`` if the broker can't be trusted,
    and as ``TimeoutError`` if the broker sends no response within ``timeout_s``.
    """

    def __init__(self, address: Address, timeout_s: float, security: Security = PLAINTEXT) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self._socket = socket.create_connection(address, timeout=timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security.tls is not None:
                self._socket = security.tls.wrap_socket(self._socket, server_hostname=address.host)
            self._answer(login(security))
        except AuthenticationError as error:
            self.close()
            raise PeerError(f"{address}: {error}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    @cached_property
    def versions(self) -> Versions:
        """API versions that the broker offers, which are asked for once; raises UnsupportedError if it refuses."""
        return self._answer(negotiation())

    def _answer(self, steps: Generator[RequestPayload, Any, T]) -> T:
        """Send the requests that ``steps`` yields and pass it the responses; return its result."""
        response = None
        try:
            while True:
                response = self.ask(steps.send(response))
        except StopIteration as end:
            return cast("T", end.value)

    def ask(self, request: RequestPayload, timeout_s: float | None = None) -> ResponsePayload:
        """Send one request and return its decoded response; ``timeout_s`` limits the time for both."""
        deadline_s = time.monotonic() + (timeout_s or self._timeout_s)
        self._correlation_id += 1
        self._socket.sendall(encode_frame(request, self._correlation_id, "aftershock"))
        try:
            length = checked_length(self._receive(PREFIX.size, deadline_s), 0, FRAME_BYTES_MAX)
            message = self._receive(length, deadline_s)
            return decode_response(response_type(type(request)), message, self._correlation_id)
        except ProtocolError as error:
            raise PeerError(f"{self.address}: {error}") from error

    def _receive(self, count: int, deadline_s: float) -> bytes:
        buffer = bytearray()
        while len(buffer) < count:
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError(f"no response from {self.address} within the request's timeout")
            self._socket.settimeout(remaining_s)
            chunk = self._socket.recv(min(count - len(buffer), 1 << 16))
            if not chunk:
                raise ConnectionResetError(f"{self.address} closed the connection")
            buffer += chunk
        return bytes(buffer)

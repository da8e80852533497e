"""One blocking connection to one broker, one request at a time.

It serves administration and probes, where a round trip at a time is what is wanted; framing and codec are those of the
asyncio ``Channel``. Here a peer that breaks the protocol is one more ``OSError``: whoever asks brokers in turn goes on
with the next one.
"""

import socket
import time
from types import TracebackType
from typing import NamedTuple, Self

from kio.static.protocol import RequestPayload, ResponsePayload

from aftershock.errors import AuthenticationError, ProtocolError
from aftershock.workloads.kafka.wire.codec import (
    FRAME_BYTES_MAX,
    PREFIX,
    checked_length,
    decode_response,
    encode_frame,
    response_type,
)
from aftershock.workloads.kafka.wire.login import login
from aftershock.workloads.kafka.wire.security import PLAINTEXT, Security

PORT_MAX = 65_535


class Address(NamedTuple):
    """Where a listener is dialled."""

    host: str
    port: int

    @classmethod
    def checked(cls, host: str, port: int) -> Self:
        """The address of what came from elsewhere; ``ValueError`` for what no socket could dial."""
        try:
            host.encode("idna")  # as a socket does
        except UnicodeError as error:
            raise ValueError(f"{host!r} is no host name: {error}") from error
        if not host or not 1 <= port <= PORT_MAX:
            raise ValueError(f"{host}:{port} can't be dialled: it takes a host and a port from 1 to {PORT_MAX}")
        return cls(host, port)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class PeerError(ConnectionError):
    """The peer broke the protocol, or its authentication: what it sent is no answer to what was asked."""


class Connection:
    """A connection that asks and waits.

    Raises:
        OSError: refused, reset, closed, not to be believed, or no answer within ``timeout_s`` (``TimeoutError``).
    """

    def __init__(self, address: Address, timeout_s: float, security: Security = PLAINTEXT) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self._socket = _connected(address, timeout_s, security)
        try:
            self._log_in(security)
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
        """Close the socket; the broker forgets the connection."""
        self._socket.close()

    def ask(self, request: RequestPayload, timeout_s: float | None = None) -> ResponsePayload:
        """Send one request and return its decoded response; ``timeout_s`` bounds the whole exchange."""
        deadline_s = time.monotonic() + (timeout_s or self._timeout_s)
        self._correlation_id += 1
        self._socket.sendall(encode_frame(request, self._correlation_id, "aftershock"))
        try:
            length = checked_length(self._receive(PREFIX.size, deadline_s), 0, FRAME_BYTES_MAX)
            message = self._receive(length, deadline_s)
            return decode_response(response_type(type(request)), message, self._correlation_id)
        except ProtocolError as error:
            raise PeerError(f"{self.address}: {error}") from error

    def _log_in(self, security: Security) -> None:
        steps, answer = login(security), None
        try:
            while True:
                answer = self.ask(steps.send(answer))
        except StopIteration:
            return
        except AuthenticationError as error:
            raise PeerError(f"{self.address}: {error}") from error

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


def _connected(address: Address, timeout_s: float, security: Security) -> socket.socket:
    plain = socket.create_connection(address, timeout=timeout_s)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain if security.tls is None else security.tls.wrap_socket(plain, server_hostname=address.host)
    except BaseException:
        plain.close()
        raise

"""Asyncio connection to one broker, with many requests in flight and responses in request order.

1. ``request`` writes a request at once and returns a future; cancelling the future discards the response, and the
   channel stays open. ``ask`` saves the time for a future, and ``flush`` writes the requests of several ``ask`` calls.
2. A request without a response in time fails with TimeoutError and closes the channel, as in Kafka's NetworkClient,
   because responses are ordered, so no later response can arrive before the missing response. All other requests in
   flight on the closed channel fail with ConnectionError.
3. An invalid or unexpected message from the broker closes the channel; all requests in flight fail with ProtocolError.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar, cast

from kio.static.protocol import RequestPayload, ResponsePayload

from aftershock.errors import AuthenticationError, ProtocolError, UnsupportedError
from aftershock.workloads.kafka.wire.codec import (
    FRAME_BYTES_MAX,
    PREFIX,
    Frames,
    Versions,
    decode_response,
    frame_head,
    negotiation,
    response_type,
)
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.kafka.wire.encoder import encoded_parts
from aftershock.workloads.kafka.wire.login import login
from aftershock.workloads.kafka.wire.security import PLAINTEXT, Security

_CORRELATION_IDS = 1 << 31
_CLOSE_TIMEOUT_MS = 1_000.0  # limit for writing buffered requests in `close`
_BUFFER_BYTES_MAX = 1 << 16  # `ask` and `send_only` flush when their buffer reaches this size

T = TypeVar("T")
Callback = Callable[[Any], None]
"""Callback of a request, called with the response or with an exception; the callback must not raise."""


class Reply(NamedTuple):
    """Decoded response of a broker, and the size of its encoded bytes with the length prefix."""

    response: Any
    size_bytes: int


class _Pending(NamedTuple):
    correlation_id: int
    response_type: type[ResponsePayload]
    callback: Callback
    deadline_s: float


class Channel(asyncio.Protocol):
    """Open connection to a broker, which offers the API versions ``versions``.

    ``closed`` is True when the channel can't send requests any more, and ``timed_out`` if the reason is a request
    without a response in time. The function ``on_answers`` is called after the
    callbacks of responses that arrived together, and after the channel closes.
    """

    versions: Versions

    def __init__(self, address: Address, client_id: str | None, frame_bytes_max: int) -> None:
        self.address = address
        self.sent_bytes = 0
        self.received_bytes = 0
        self.closed = self.timed_out = False
        self.on_answers: Callable[[], None] = lambda: None
        self._close_reason = ""
        self._client_id = client_id
        self._frames = Frames(frame_bytes_max)
        self._pending: deque[_Pending] = deque()
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._correlation_id = 0
        self._response_bytes = 0  # size of the response passed to a callback
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._lost = self._loop.create_future()
        self._transport: asyncio.Transport

    @classmethod
    async def open(
        cls,
        address: Address,
        *,
        client_id: str | None,
        connect_timeout_ms: float,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        security: Security = PLAINTEXT,
    ) -> Self:
        """Connect to a broker, log in and negotiate API versions, within ``connect_timeout_ms``.

        Raises OSError if the connection was refused, reset or not trusted (TLS), or took too long (``TimeoutError``);
        AuthenticationError if SASL failed; ProtocolError if the peer doesn't speak Kafka's protocol; UnsupportedError
        if client and broker have no version of ApiVersions in common.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                _, channel = await loop.create_connection(
                    lambda: cls(address, client_id, frame_bytes_max), *address, ssl=security.tls
                )
                channel.versions = await _negotiate(channel, security, connect_timeout_ms)
        except TimeoutError as error:
            raise TimeoutError(f"no connection and login to {address} within {connect_timeout_ms:.0f} ms") from error
        return channel

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for a response."""
        return len(self._pending)

    @property
    def drained(self) -> bool:
        """True if the socket has accepted all flushed requests, so that the next request is sent at once."""
        return self._transport.get_write_buffer_size() == 0

    def request(self, request: RequestPayload, *, timeout_ms: float) -> asyncio.Future[Reply]:
        """Send a request at once; the returned future may fail with TimeoutError, ConnectionError or ProtocolError.

        Raises ConnectionError if the channel is closed, ValueError if the request can't be encoded.
        """
        reply: asyncio.Future[Reply] = self._loop.create_future()
        self.ask(type(request), encoded_parts(request), partial(self._settle, reply), timeout_ms=timeout_ms)
        self.flush()
        return reply

    def ask(self, kind: type[RequestPayload], body: Sequence[bytes], callback: Callback, *, timeout_ms: float) -> None:
        """Queue an encoded request for the next ``flush``; ``callback`` gets a response or an exception, once.

        Raises ConnectionError, and doesn't call ``callback``, if the channel is closed.
        """
        self.send_only(kind, body)
        deadline_s = self._loop.time() + timeout_ms / 1000
        self._pending.append(_Pending(self._correlation_id, response_type(kind), callback, deadline_s))
        if self._timer is None or deadline_s < self._timer.when():
            self._set_timer(deadline_s)

    def send_only(self, kind: type[RequestPayload], body: Sequence[bytes]) -> None:
        """Queue an encoded Produce request with acks=0, which has no response; raise ConnectionError if closed."""
        if self.closed:
            raise ConnectionResetError(f"the connection to {self.address} is closed: {self._close_reason}")
        self._correlation_id = (self._correlation_id + 1) % _CORRELATION_IDS
        body_bytes = sum(map(len, body))
        head = frame_head(kind, body_bytes, self._correlation_id, self._client_id)
        self._unwritten += (head, *body)
        self._unwritten_bytes += len(head) + body_bytes
        if self._unwritten_bytes >= _BUFFER_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        if self._unwritten and not self.closed:
            self._transport.write(b"".join(self._unwritten))
            self.sent_bytes += self._unwritten_bytes
        self._unwritten.clear()
        self._unwritten_bytes = 0

    async def close(self) -> None:
        """Write queued requests and close the connection; requests in flight fail with ConnectionError."""
        self.flush()
        self._fail(ConnectionAbortedError, f"the connection to {self.address} was closed by this client")
        self._transport.close()
        await asyncio.wait([self._lost], timeout=_CLOSE_TIMEOUT_MS / 1000)
        self._transport.abort()
        await self._lost

    def abort(self) -> None:
        """Close the connection at once and discard buffered requests."""
        self._fail(ConnectionAbortedError, f"the connection to {self.address} was aborted by this client")
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        try:
            for message in self._frames.feed(data):
                if not self._pending:
                    raise ProtocolError("the broker sent a response, but no request is pending")  # noqa: TRY301  # as of the codec
                pending = self._pending[0]
                response = decode_response(pending.response_type, message, pending.correlation_id)
                self._pending.popleft()
                self._response_bytes = PREFIX.size + len(message)
                pending.callback(response)
        except ProtocolError as error:
            self._fail(ProtocolError, f"{self.address}: {error}")
            self._transport.abort()
        else:
            self.on_answers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionResetError, f"{self.address} closed the connection" + (f": {exc}" if exc else ""))
        self._lost.set_result(None)

    def _settle(self, reply: asyncio.Future[Reply], outcome: Any) -> None:
        if isinstance(outcome, Exception) and not reply.done():
            reply.set_exception(outcome)
        elif not reply.done():
            reply.set_result(Reply(outcome, self._response_bytes))

    def _set_timer(self, deadline_s: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline_s, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer = None
        if not self._pending:
            return
        first = min(self._pending, key=lambda pending: pending.deadline_s)
        if first.deadline_s > self._loop.time():
            self._set_timer(first.deadline_s)
            return
        self.timed_out = True
        reason = f"no {first.response_type.__name__} from {self.address} within the request's timeout"
        self._pending.remove(first)
        first.callback(TimeoutError(reason))
        self._fail(ConnectionAbortedError, f"the connection to {self.address} was aborted: {reason}")
        self._transport.abort()

    def _fail(self, kind: type[Exception], reason: str) -> None:
        if not self.closed:
            self.closed, self._close_reason = True, reason
        if self._timer:
            self._timer.cancel()
        while self._pending:
            self._pending.popleft().callback(kind(reason))
        self.on_answers()


async def _negotiate(channel: Channel, security: Security, timeout_ms: float) -> Versions:
    """Log in and return the API versions that the broker offers; abort the channel on failure."""

    async def answer(steps: Generator[RequestPayload, Any, T]) -> T:
        response = None
        try:
            while True:
                response = (await channel.request(steps.send(response), timeout_ms=timeout_ms)).response
        except StopIteration as end:
            return cast("T", end.value)

    try:
        await answer(login(security))
        return await answer(negotiation())
    except (AuthenticationError, UnsupportedError) as error:
        channel.abort()
        raise type(error)(f"{channel.address}: {error}") from error
    except BaseException:
        channel.abort()
        raise

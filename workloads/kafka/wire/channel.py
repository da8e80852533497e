"""One asyncio connection to one broker: many requests in flight, answered in the order they were sent.

1. A request is written at once; its future gets the reply. Cancelling the future gives up the reply, not the channel.
   Whoever sends several may ``ask`` for each, which costs no future, and have them written together with ``flush``.
2. A request that isn't answered in time gets TimeoutError and closes the channel, as in Kafka's NetworkClient: answers
   come in order, so nothing behind it can be told apart from lost. All others get ConnectionError.
3. What is no Kafka message, or answers nothing that was asked, closes the channel: ProtocolError for all who wait.
4. Login and versions are settled before anybody gets to see the channel. We ask with ApiVersions v4 at most, which
   names no cluster and no node: v5 does (KIP-1242), and a broker behind a proxy that misroutes would turn us away.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, cast

from kio.schema.errors import ErrorCode
from kio.static.protocol import RequestPayload, ResponsePayload

from aftershock.errors import AuthenticationError, ProtocolError, UnsupportedError
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.codec import (
    FRAME_BYTES_MAX,
    PREFIX,
    Api,
    Frames,
    Versions,
    decode_response,
    frame_head,
    known_versions,
    request_type,
    response_type,
)
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.kafka.wire.encoder import encoded_parts
from aftershock.workloads.kafka.wire.login import login
from aftershock.workloads.kafka.wire.security import PLAINTEXT, Security

_CORRELATION_IDS = 1 << 31  # then from 0 again
_SOFTWARE_SINCE = 3  # the first version of ApiVersions that says who asks
_SOFTWARE = {"client_software_name": "aftershock", "client_software_version": "1"}
_FLUSH_MS = 1_000.0  # how long `close` lets the socket take what was sent
_TOGETHER_BYTES = 1 << 16  # what waits for `flush` at most

Done = Callable[[Any], None]
"""Gets the response, or the exception in its place. It must not raise."""


class Reply(NamedTuple):
    """A decoded response, and the bytes that it came in, its length before it included."""

    response: Any
    size_bytes: int


class _Pending(NamedTuple):
    correlation_id: int
    response_type: type[ResponsePayload]
    done: Done
    deadline_s: float


class Channel(asyncio.Protocol):
    """An open connection; get one from ``open``. Methods that aren't described here are asyncio's.

    ``versions``: what the broker offers. ``sent_bytes``, ``received_bytes``: so far. ``closed``: nothing can be sent.
    ``on_answers`` is called after answers that came together, or the end of the channel, have been told.
    """

    versions: Versions

    def __init__(self, address: Address, client_id: str | None, frame_bytes_max: int) -> None:
        self.address = address
        self.sent_bytes = 0
        self.received_bytes = 0
        self.closed = False
        self.on_answers: Callable[[], None] = _nothing
        self._reason = ""
        self._client_id = client_id
        self._frames = Frames(frame_bytes_max)
        self._pending: deque[_Pending] = deque()
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._correlation_id = 0
        self._answer_bytes = 0  # of the answer that is being told
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
        """Connect, log in and negotiate versions, within ``connect_timeout_ms`` in all.

        Raises:
            OSError: refused, reset, not to be believed (TLS), or not in time (``TimeoutError``).
            AuthenticationError: one of us doesn't believe the other (SASL).
            ProtocolError: the peer doesn't speak Kafka.
            UnsupportedError: it speaks no version of ApiVersions that we do.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                _, channel = await loop.create_connection(
                    lambda: cls(address, client_id, frame_bytes_max), *address, ssl=security.tls
                )
                channel.versions = await _negotiated(channel, security, connect_timeout_ms)
        except TimeoutError as error:
            raise TimeoutError(f"{address} was not connected and asked in {connect_timeout_ms:.0f} ms") from error
        return channel

    @property
    def in_flight(self) -> int:
        """Requests that await their reply."""
        return len(self._pending)

    @property
    def drained(self) -> bool:
        """All that was sent has left for the socket: the next request would not queue behind another."""
        return self._transport.get_write_buffer_size() == 0

    def request(self, request: RequestPayload, *, timeout_ms: float) -> asyncio.Future[Reply]:
        """Send at once. The future fails with TimeoutError, ConnectionError or ProtocolError: see the rules above.

        Raises:
            ConnectionError: the channel is closed.
            ValueError: the request can't be encoded.
        """
        reply: asyncio.Future[Reply] = self._loop.create_future()
        self.ask(type(request), encoded_parts(request), partial(self._settle, reply), timeout_ms=timeout_ms)
        self.flush()
        return reply

    def ask(self, kind: type[RequestPayload], body: Sequence[bytes], done: Done, *, timeout_ms: float) -> None:
        """Send an encoded request with the next ``flush``; ``done`` is called once, later.

        Raises:
            ConnectionError: the channel is closed; then ``done`` isn't called.
        """
        self.send_only(kind, body)
        deadline_s = self._loop.time() + timeout_ms / 1000
        self._pending.append(_Pending(self._correlation_id, response_type(kind), done, deadline_s))
        if self._timer is None or deadline_s < self._timer.when():
            self._watch(deadline_s)

    def send_only(self, kind: type[RequestPayload], body: Sequence[bytes]) -> None:
        """Send an encoded request that gets no response (Produce with acks=0). Raises as ``ask`` does."""
        if self.closed:
            raise ConnectionResetError(f"the connection to {self.address} is closed: {self._reason}")
        self._correlation_id = (self._correlation_id + 1) % _CORRELATION_IDS
        body_bytes = sum(map(len, body))
        head = frame_head(kind, body_bytes, self._correlation_id, self._client_id)
        self._unwritten += (head, *body)
        self._unwritten_bytes += len(head) + body_bytes
        if self._unwritten_bytes >= _TOGETHER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what has been asked and sent since the last time."""
        if self._unwritten and not self.closed:
            self._transport.write(b"".join(self._unwritten))
            self.sent_bytes += self._unwritten_bytes
        self._unwritten.clear()
        self._unwritten_bytes = 0

    async def close(self) -> None:
        """Write what waits for ``flush`` and close; whoever waits gets ConnectionError. Closing twice is fine."""
        self.flush()
        self._give_up(ConnectionAbortedError, f"the connection to {self.address} was closed by this client")
        self._transport.close()
        await asyncio.wait([self._lost], timeout=_FLUSH_MS / 1000)
        self._transport.abort()
        await self._lost

    def abort(self) -> None:
        """Close at once: what hasn't left for the socket yet never will."""
        self._give_up(ConnectionAbortedError, f"the connection to {self.address} was given up by this client")
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        try:
            for message in self._frames.feed(data):
                self._answer(message)
        except ProtocolError as error:
            self._give_up(ProtocolError, f"{self.address}: {error}")
            self._transport.abort()
        else:
            self.on_answers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up(ConnectionResetError, f"{self.address} closed the connection" + (f": {exc}" if exc else ""))
        self._lost.set_result(None)

    def _answer(self, message: memoryview) -> None:
        if not self._pending:
            raise ProtocolError("an answer, and nothing was asked")
        head = self._pending[0]
        response = decode_response(head.response_type, message, head.correlation_id)
        self._pending.popleft()
        self._answer_bytes = PREFIX.size + len(message)
        head.done(response)

    def _settle(self, reply: asyncio.Future[Reply], outcome: Any) -> None:
        if reply.done():
            return
        if isinstance(outcome, Exception):
            reply.set_exception(outcome)
        else:
            reply.set_result(Reply(outcome, self._answer_bytes))

    def _watch(self, deadline_s: float) -> None:
        """Keep one timer, for the earliest deadline; it may fire for one that was met meanwhile."""
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline_s, self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        self._timer = None
        if not self._pending:
            return
        first = min(self._pending, key=lambda pending: pending.deadline_s)
        if first.deadline_s > self._loop.time():
            self._watch(first.deadline_s)
            return
        reason = f"no {first.response_type.__name__} from {self.address} in time"
        self._pending.remove(first)
        first.done(TimeoutError(reason))
        self._give_up(ConnectionAbortedError, f"the connection was given up: {reason}")
        self._transport.abort()

    def _give_up(self, kind: type[Exception], reason: str) -> None:
        """Nothing is sent any more, and whoever waits is told why; of several reasons the first one counts."""
        if not self.closed:
            self.closed, self._reason = True, reason
        if self._timer:
            self._timer.cancel()
        while self._pending:
            self._pending.popleft().done(kind(reason))
        self.on_answers()


def _nothing() -> None:
    """Nobody wants to know."""


async def _negotiated(channel: Channel, security: Security, timeout_ms: float) -> Versions:
    """What the broker offers, once we are logged in; a channel that can't tell is closed."""
    try:
        await _log_in(channel, security, timeout_ms)
        return await _offered(channel, known_versions(Api.API_VERSIONS)[-1], timeout_ms)
    except BaseException:
        channel.abort()
        raise


async def _log_in(channel: Channel, security: Security, timeout_ms: float) -> None:
    steps, answer = login(security), None
    try:
        while True:
            answer = (await channel.request(steps.send(answer), timeout_ms=timeout_ms)).response
    except StopIteration:
        return
    except AuthenticationError as error:
        raise AuthenticationError(f"{channel.address}: {error}") from error


async def _offered(channel: Channel, version: int, timeout_ms: float) -> Versions:
    named = _SOFTWARE if version >= _SOFTWARE_SINCE else {}
    asked = channel.request(request_type(Api.API_VERSIONS, version)(**named), timeout_ms=timeout_ms)
    response = (await asked).response
    offered = Versions({entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys})
    if response.error_code == ErrorCode.unsupported_version and version > 0:
        # it says which versions of ApiVersions it has, unless it is older than Kafka 2.4
        known = Api.API_VERSIONS in offered.offered
        return await _offered(channel, offered.pick(Api.API_VERSIONS, version - 1) if known else 0, timeout_ms)
    if response.error_code:
        raise UnsupportedError(f"{channel.address} refuses ApiVersions v{version}: {codes.name(response.error_code)}")
    return offered

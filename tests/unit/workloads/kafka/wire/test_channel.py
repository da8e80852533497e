"""The asyncio channel against peers that answer, stall, send invalid data, send slowly and disconnect."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import pytest
from kio.schema.api_versions.v0.response import ApiVersion as ApiVersionV0
from kio.schema.api_versions.v0.response import ApiVersionsResponse as ApiVersionsResponseV0
from kio.schema.api_versions.v4.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.static.primitive import i32Timedelta

from aftershock.errors import ProtocolError, UnsupportedError
from aftershock.workloads.kafka.wire.channel import Channel, Reply
from aftershock.workloads.kafka.wire.codec import Api, encode_frame
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.kafka.wire.encoder import encode, encoded_parts

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
LONG_MS = 60_000.0
SHORT_MS = 50.0


class Asked(NamedTuple):
    api: int
    version: int
    correlation_id: int
    frame_bytes: int


class Peer:
    """One accepted connection from the broker's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def asked(self) -> Asked:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        message = await self.reader.readexactly(length)
        return Asked(*struct.unpack(">hhi", message[:8]), frame_bytes=4 + length)

    def send(self, message: bytes) -> None:
        self.writer.write(struct.pack(">i", len(message)) + message)

    def heartbeat(self, correlation_id: int, code: int = 0) -> None:
        self.send(struct.pack(">ibihb", correlation_id, 0, 0, code, 0))

    async def negotiate(self) -> None:
        request = await self.asked()
        assert (Api.API_VERSIONS, 4) == (request.api, request.version)
        self.send(struct.pack(">i", request.correlation_id) + encode(versions(Api.ADD_OFFSETS_TO_TXN, 0, 4)))

    async def gone(self) -> bytes:
        """Return the data until the client closes."""
        with suppress(ConnectionError):
            return await self.reader.read()
        return b""


Serve = Callable[[Peer], Awaitable[None]]


def versions(api: int, lowest: int, highest: int, error: int = 0) -> ApiVersionsResponse:
    entry = ApiVersion(api_key=api, min_version=lowest, max_version=highest)  # type: ignore[arg-type]
    return ApiVersionsResponse(error_code=ErrorCode(error), api_keys=(entry,), throttle_time=i32Timedelta.resolution)


def refusal(*ranges: tuple[int, int]) -> bytes:
    """Error 35 in version 0, with what ApiVersions itself may be asked in."""
    keys = tuple(ApiVersionV0(api_key=18, min_version=low, max_version=high) for low, high in ranges)  # type: ignore[arg-type]
    return encode(ApiVersionsResponseV0(error_code=ErrorCode.unsupported_version, api_keys=keys))


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[Address]:
    """Serve on loopback; exceptions of connection handlers are raised here."""
    handlers: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(Peer(reader, writer))
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.ensure_future(handle(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield Address(*server.sockets[0].getsockname())
    finally:
        server.close()
        await asyncio.gather(*handlers)


@asynccontextmanager
async def channel_to(serve: Serve, *, frame_bytes_max: int = 1 << 20) -> AsyncIterator[Channel]:
    """Open a channel to a peer that negotiates and then runs ``serve``."""

    async def negotiate_and_serve(peer: Peer) -> None:
        await peer.negotiate()
        await serve(peer)

    async with listening(negotiate_and_serve) as address:
        channel = await open_channel(address, frame_bytes_max=frame_bytes_max)
        try:
            yield channel
        finally:
            await channel.close()


async def open_channel(address: Address, *, frame_bytes_max: int = 1 << 20) -> Channel:
    return await Channel.open(address, client_id="test", connect_timeout_ms=LONG_MS, frame_bytes_max=frame_bytes_max)


async def outcomes(*replies: asyncio.Future[Reply]) -> Sequence[Reply | BaseException]:
    return await asyncio.gather(*replies, return_exceptions=True)


async def test_requests_are_pipelined() -> None:
    """Three requests are on the wire before the first response; each gets its own."""
    sent: list[Asked] = []

    async def serve(peer: Peer) -> None:
        sent.extend([await peer.asked() for _ in range(3)])
        for number, request in enumerate(sent):
            peer.heartbeat(request.correlation_id, code=(0, 27, 25)[number])

    async with channel_to(serve) as channel:
        asking = [channel.request(HEARTBEAT, timeout_ms=LONG_MS) for _ in range(3)]
        assert 3 == channel.in_flight
        replies = [await reply for reply in asking]
        assert [0, 27, 25] == [reply.response.error_code for reply in replies]
        assert (0, True) == (channel.in_flight, channel.drained)
    assert 3 == len({request.correlation_id for request in sent})


async def test_requests_before_a_flush_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """No byte is sent before ``flush``, then one write has all; responses that arrive together give one
    notification.
    """

    async def serve(peer: Peer) -> None:
        await peer.gone()

    told: list[object] = []
    async with channel_to(serve) as channel:
        writes: list[bytes] = []
        monkeypatch.setattr(channel._transport, "write", writes.append)
        channel.on_answers = lambda: told.append("all")
        for _ in range(3):
            channel.ask(type(HEARTBEAT), encoded_parts(HEARTBEAT), told.append, timeout_ms=LONG_MS)
        assert ([], 3) == (writes, channel.in_flight)
        channel.flush()
        first = channel._correlation_id - 2
        assert [encode_frame(HEARTBEAT, first + number, "test") for number in range(3)] == cut(writes)
        channel.data_received(b"".join(struct.pack(">iibihb", 12, first + number, 0, 0, 0, 0) for number in range(2)))
        assert ([0, 0], "all") == ([response.error_code for response in told[:-1]], told[-1])  # type: ignore[attr-defined]
        channel.abort()
        assert isinstance(told[3], ConnectionAbortedError)
        assert "all" == told[4]


async def test_the_unflushed_buffer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB are written without flush: a larger buffer would hide a slow socket."""

    async def serve(peer: Peer) -> None:
        await peer.gone()

    async with channel_to(serve) as channel:
        writes: list[bytes] = []
        monkeypatch.setattr(channel._transport, "write", writes.append)
        body = encoded_parts(HeartbeatRequest(group_id="g" * 30_000, generation_id=1, member_id="m"))
        for _ in range(4):
            channel.send_only(HeartbeatRequest, body)
        assert 1 == len(writes)
        assert len(writes[0]) > 1 << 16


def cut(writes: Sequence[bytes]) -> list[bytes]:
    """The one write, cut into frames."""
    (data,) = writes
    frames = []
    while data:
        size = 4 + int.from_bytes(data[:4])
        frames.append(data[:size])
        data = data[size:]
    return frames


async def test_bytes_are_counted_both_ways() -> None:
    """The channel counts the peer's received and sent bytes, negotiation included."""
    got: list[int] = []

    async def serve(peer: Peer) -> None:
        request = await peer.asked()
        got.append(request.frame_bytes)
        peer.heartbeat(request.correlation_id)

    async with channel_to(serve) as channel:
        before = (channel.sent_bytes, channel.received_bytes)
        assert min(before) > 0
        await channel.request(HEARTBEAT, timeout_ms=LONG_MS)
        assert (got[0], 16) == (channel.sent_bytes - before[0], channel.received_bytes - before[1])


async def test_bytes_behind_a_response_are_ignored() -> None:
    """As in Kafka's clients: the channel stays open, and the next response is read."""

    async def serve(peer: Peer) -> None:
        for _ in range(2):
            request = await peer.asked()
            peer.send(struct.pack(">ibihbb", request.correlation_id, 0, 0, 27, 0, 99))

    async with channel_to(serve) as channel:
        for _ in range(2):
            assert 27 == (await channel.request(HEARTBEAT, timeout_ms=LONG_MS)).response.error_code


async def test_responses_in_single_bytes_are_read() -> None:
    async def serve(peer: Peer) -> None:
        for _ in range(2):
            request = await peer.asked()
            answer = struct.pack(">iibihb", 12, request.correlation_id, 0, 0, 27, 0)
            for byte in answer:
                peer.writer.write(bytes([byte]))
                await peer.writer.drain()

    async with channel_to(serve) as channel:
        for _ in range(2):
            assert 27 == (await channel.request(HEARTBEAT, timeout_ms=LONG_MS)).response.error_code


async def test_a_timeout_closes_the_channel() -> None:
    """The first late request gets TimeoutError, all others ConnectionError."""

    async def serve(peer: Peer) -> None:
        await peer.gone()

    async with channel_to(serve) as channel:
        patient = channel.request(HEARTBEAT, timeout_ms=LONG_MS)
        hasty = channel.request(HEARTBEAT, timeout_ms=SHORT_MS)
        later = channel.request(HEARTBEAT, timeout_ms=2 * LONG_MS)
        kinds = [type(outcome) for outcome in await outcomes(patient, hasty, later)]
        assert [ConnectionAbortedError, TimeoutError, ConnectionAbortedError] == kinds
        assert channel.closed
        with pytest.raises(ConnectionError, match="is closed"):
            channel.request(HEARTBEAT, timeout_ms=LONG_MS)
        with pytest.raises(ConnectionError, match="is closed"):
            channel.send_only(type(HEARTBEAT), encoded_parts(HEARTBEAT))


async def test_the_deadline_of_an_answered_request_has_no_effect() -> None:
    """A timer for a past deadline waits for the next one; a later request has its own."""

    async def serve(peer: Peer) -> None:
        peer.heartbeat((await peer.asked()).correlation_id)
        peer.heartbeat((await peer.asked()).correlation_id)
        await peer.gone()

    async with channel_to(serve) as channel:
        await channel.request(HEARTBEAT, timeout_ms=LONG_MS)
        channel._check_deadlines()
        second = channel.request(HEARTBEAT, timeout_ms=LONG_MS)
        channel._check_deadlines()
        await second
        assert not channel.closed
        with pytest.raises(TimeoutError, match="no HeartbeatResponse from"):
            await channel.request(HEARTBEAT, timeout_ms=SHORT_MS)


async def test_a_cancelled_request_does_not_affect_others() -> None:
    """Its response is read and dropped."""

    async def serve(peer: Peer) -> None:
        for request in [await peer.asked() for _ in range(2)]:
            peer.heartbeat(request.correlation_id)

    async with channel_to(serve) as channel:
        first, second = (channel.request(HEARTBEAT, timeout_ms=LONG_MS) for _ in range(2))
        first.cancel()
        assert 0 == (await second).response.error_code
        assert first.cancelled()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        pytest.param(
            lambda c: struct.pack(">iibihb", 12, c + 1, 0, 0, 0, 0),
            "HeartbeatResponse has correlation id",
            id="another's",
        ),
        pytest.param(lambda c: struct.pack(">iibih", 11, c, 0, 0, 0), "the message is too short", id="short"),
        pytest.param(lambda _: struct.pack(">i", 2**31 - 1), "invalid message length 2147483647", id="huge"),
        pytest.param(lambda _: struct.pack(">i", 1 << 10 | 1), "invalid message length 1025", id="over the limit"),
        pytest.param(lambda _: b"HTTP/1.1 400 Bad Request\r\n", "invalid message length", id="HTTP"),
    ],
)
async def test_an_invalid_response_closes_the_channel(answer: Callable[[int], bytes], says: str) -> None:
    """Every waiting caller gets a ProtocolError that names the peer."""

    async def serve(peer: Peer) -> None:
        request = await peer.asked()
        peer.writer.write(answer(request.correlation_id))
        await peer.gone()

    async with channel_to(serve, frame_bytes_max=1 << 10) as channel:
        results = await outcomes(*(channel.request(HEARTBEAT, timeout_ms=LONG_MS) for _ in range(2)))
        for error in results:
            assert isinstance(error, ProtocolError)
            assert says in str(error)
            assert str(channel.address) in str(error)
        assert channel.closed


async def test_an_unexpected_response_closes_the_channel() -> None:
    """The error of the next request has the reason."""

    async def serve(peer: Peer) -> None:
        request = await peer.asked()
        answer = struct.pack(">iibihb", 12, request.correlation_id, 0, 0, 0, 0)
        peer.writer.write(answer + answer)
        await peer.gone()

    async with channel_to(serve) as channel:
        await channel.request(HEARTBEAT, timeout_ms=LONG_MS)
        with pytest.raises(
            ConnectionError, match=r"is closed: .* the broker sent a response, but no request is pending"
        ):
            channel.request(HEARTBEAT, timeout_ms=LONG_MS)


async def test_responses_before_an_invalid_one_are_delivered() -> None:
    async def serve(peer: Peer) -> None:
        first, second = [await peer.asked() for _ in range(2)]
        good = struct.pack(">iibihb", 12, first.correlation_id, 0, 0, 27, 0)
        peer.writer.write(good + struct.pack(">iibihb", 12, second.correlation_id + 9, 0, 0, 0, 0))
        await peer.gone()

    async with channel_to(serve) as channel:
        first, second = await outcomes(*(channel.request(HEARTBEAT, timeout_ms=LONG_MS) for _ in range(2)))
        assert isinstance(first, Reply)
        assert 27 == first.response.error_code
        assert isinstance(second, ProtocolError)


async def test_a_disconnect_is_raised_for_every_request() -> None:
    """Also in the middle of a response: ConnectionError at once."""

    async def serve(peer: Peer) -> None:
        await peer.asked()
        peer.writer.write(b"\x00\x00")

    async with channel_to(serve) as channel:
        results = await outcomes(*(channel.request(HEARTBEAT, timeout_ms=LONG_MS) for _ in range(2)))
        assert [ConnectionResetError] * 2 == [type(error) for error in results]
        assert channel.closed


async def test_close_ends_requests_in_flight() -> None:
    """Waiting callers learn that this client closed; a second close has no effect."""

    async def serve(peer: Peer) -> None:
        await peer.gone()

    async with channel_to(serve) as channel:
        reply = channel.request(HEARTBEAT, timeout_ms=LONG_MS)
        await channel.close()
        with pytest.raises(ConnectionAbortedError, match="closed by this client"):
            await reply
        await channel.close()
        channel.abort()


async def test_close_sends_written_requests() -> None:
    """A request without response that was sent just before `close` still arrives, a megabyte of it."""
    got: list[Asked] = []

    async def serve(peer: Peer) -> None:
        got.append(await peer.asked())

    large = HeartbeatRequest(group_id="g" * (1 << 20), generation_id=1, member_id="m")
    async with channel_to(serve) as channel:
        channel.send_only(type(large), encoded_parts(large))
        assert 0 == channel.in_flight
        await channel.close()
    assert got[0].frame_bytes > 1 << 20


async def test_a_peer_that_does_not_read_leaves_it_undrained() -> None:
    """What the socket doesn't take stays with us, and `drained` says so until the peer reads."""
    read = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await read.wait()
        peer.heartbeat((await peer.asked()).correlation_id)

    large = HeartbeatRequest(group_id="g" * (32 << 20), generation_id=1, member_id="m")
    async with channel_to(serve) as channel:
        reply = channel.request(large, timeout_ms=LONG_MS)
        assert not channel.drained
        read.set()
        await reply
        assert channel.drained


async def test_correlation_ids_start_again_before_they_overflow() -> None:
    """After 2^31 - 1 comes 0, a number that the header can hold."""
    ids = []

    async def serve(peer: Peer) -> None:
        for _ in range(2):
            request = await peer.asked()
            ids.append(request.correlation_id)
            peer.heartbeat(request.correlation_id)

    async with channel_to(serve) as channel:
        channel._correlation_id = 2**31 - 2
        for _ in range(2):
            await channel.request(HEARTBEAT, timeout_ms=LONG_MS)
    assert [2**31 - 1, 0] == ids


async def test_a_request_that_can_not_be_encoded_affects_no_other() -> None:
    """The caller gets the error; no byte is sent, and the channel stays open."""

    async def serve(peer: Peer) -> None:
        peer.heartbeat((await peer.asked()).correlation_id)

    async with channel_to(serve) as channel:
        with pytest.raises(ValueError, match="HeartbeatRequest v4"):
            channel.request(HeartbeatRequest(group_id="g", generation_id=1 << 40, member_id="m"), timeout_ms=LONG_MS)  # type: ignore[arg-type]
        assert 0 == channel.in_flight
        await channel.request(HEARTBEAT, timeout_ms=LONG_MS)


async def test_versions_are_known_once_it_is_open() -> None:
    """What the broker offers is there with the channel, tags of newer features or not."""

    async def serve(peer: Peer) -> None:
        await peer.gone()

    async with channel_to(serve) as channel:
        assert 4 == channel.versions.pick(Api.ADD_OFFSETS_TO_TXN)


@pytest.mark.parametrize(("offered", "then"), [([(0, 3)], 3), ([(0, 9)], 3), ([], 0)])
async def test_an_older_broker_is_asked_again(offered: list[tuple[int, int]], then: int) -> None:
    """KIP-511: after UNSUPPORTED_VERSION we ask in the version that the refusal names, in 0 if it names none.

    A broker that refuses a version and offers it all the same is asked one version lower.
    """
    asked = []

    async def serve(peer: Peer) -> None:
        request = await peer.asked()
        asked.append(request.version)
        peer.send(struct.pack(">i", request.correlation_id) + refusal(*offered))
        request = await peer.asked()
        asked.append(request.version)
        body = encode(versions(Api.ADD_OFFSETS_TO_TXN, 0, 2))
        if request.version == 0:
            body = struct.pack(">hihhh", 0, 1, Api.ADD_OFFSETS_TO_TXN, 0, 2)
        peer.send(struct.pack(">i", request.correlation_id) + body)
        await peer.gone()

    async with listening(serve) as address:
        channel = await open_channel(address)
        assert (0, 2) == channel.versions.offered[Api.ADD_OFFSETS_TO_TXN]
        await channel.close()
    assert [4, then] == asked


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (refusal((7, 9)), "API_VERSIONS: the broker offers versions 7 to 9, this client knows 0 to 4"),
        (encode(versions(18, 0, 4, error=58)), "refuses ApiVersions v4: SASL_AUTHENTICATION_FAILED"),
    ],
)
async def test_a_broker_that_won_t_negotiate_is_unsupported(body: bytes, says: str) -> None:
    """No version in common, or an error such as that of a listener that wants SASL: said in words, and closed."""
    leftover = []

    async def serve(peer: Peer) -> None:
        peer.send(struct.pack(">i", (await peer.asked()).correlation_id) + body)
        leftover.append(await peer.gone())

    async with listening(serve) as address:
        with pytest.raises(UnsupportedError, match=says):
            await open_channel(address)
    assert [b""] == leftover


async def test_a_peer_that_is_not_kafka_is_an_error() -> None:
    """Its connection is closed."""

    async def serve(peer: Peer) -> None:
        await peer.asked()
        peer.writer.write(b"220 mail.example ESMTP\r\n")
        await peer.gone()

    async with listening(serve) as address:
        with pytest.raises(ProtocolError, match="invalid message length"):
            await open_channel(address)


async def test_a_silent_peer_times_out() -> None:
    """Toxiproxy accepts for a broker that is cut off: the connect deadline covers the negotiation too."""
    closed = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.gone()
        closed.set()

    async with listening(serve) as address:
        with pytest.raises(TimeoutError, match=r"no connection and login to .* within 50 ms"):
            await Channel.open(address, client_id=None, connect_timeout_ms=SHORT_MS)
        await closed.wait()


async def test_a_refused_connection_is_the_systems_error() -> None:
    async with listening(lambda _: asyncio.sleep(0)) as address:
        pass
    with pytest.raises(ConnectionRefusedError):
        await open_channel(address)


async def test_cancelling_open_closes_the_connection() -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.asked()
        asked.set()
        await peer.gone()
        closed.set()

    async with listening(serve) as address:
        opening = asyncio.ensure_future(open_channel(address))
        await asked.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await closed.wait()

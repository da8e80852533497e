"""Probes over a link: each way in which a request can end, and the duration of a close."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from aftershock.harness.world.links import LinkProbe
from aftershock.workloads.kafka.wire.connection import Address

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LINGER_0 = struct.pack("ii", 1, 0)


@asynccontextmanager
async def probing(peer: Peer) -> AsyncIterator[LinkProbe]:
    """Return a probe of a broker that answers each request as ``peer`` does; ``peer`` gets requests without length
    prefix.
    """
    done: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        done.append(task)
        await peer(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        probe = await LinkProbe.dial(Address(*server.sockets[0].getsockname()))
        yield probe
        await probe.hang_up()
        await asyncio.gather(*done, return_exceptions=True)


async def question(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo the number of requested bytes until the connection ends."""
    while True:
        try:
            asked = await question(reader)
        except asyncio.IncompleteReadError:
            return
        writer.write(struct.pack(">i", len(asked)) + asked)


async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send half an answer, and close."""
    await question(reader)
    writer.write(struct.pack(">i", 100) + bytes(50))
    await writer.drain()


async def resetting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reset the connection without answer."""
    await question(reader)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)
    writer.transport.abort()


async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Send nothing until the peer closes."""
    await reader.read(1 << 20)
    await reader.read()


@pytest.mark.parametrize("ballast_bytes", [0, 1, 249, 250, 100_000])
async def test_an_answered_probe_counts_its_bytes(ballast_bytes: int) -> None:
    """Request and answer are counted with everything that crossed the wire, ballast included; twice in a row."""
    async with probing(answering) as probe:
        for _ in range(2):
            seen = await probe.ask(ballast_bytes, 5_000)
            assert seen.end == "answered"
            assert ballast_bytes <= seen.sent_bytes == seen.received_bytes <= 1.1 * ballast_bytes + 100


async def test_a_close_in_the_middle_of_the_answer() -> None:
    """The bytes received so far are counted, and further requests fail."""
    async with probing(closing) as probe:
        seen = await probe.ask(0, 5_000)
        assert (seen.end, seen.received_bytes) == ("closed", 54)
        assert (await probe.ask(0, 5_000)).end in ("closed", "reset")


async def test_a_reset_differs_from_a_close() -> None:
    async with probing(resetting) as probe:
        assert (await probe.ask(0, 5_000)).end == "reset"


async def test_silence_ends_at_the_deadline() -> None:
    """The connection stays open."""
    async with probing(silent) as probe:
        seen = await probe.ask(0, 50)
        assert (seen.end, seen.received_bytes) == ("silent", 0)
        assert seen.ms >= 50


async def test_the_wait_for_a_close_is_bounded() -> None:
    """The broker's close ends the wait; without it the wait ends at the limit."""
    async with probing(answering) as probe:
        assert await probe.close_ms(5_000) < 5_000

    over = asyncio.Event()

    async def deaf(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await over.wait()

    async with probing(deaf) as probe:
        assert await probe.close_ms(50) == 50
        over.set()

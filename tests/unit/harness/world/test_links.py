"""Probes over a link: each way in which a request can end, and how long a close takes."""

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
    """A probe of a broker that answers each request as ``peer`` does; requests come without their length."""
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
    """As many bytes as were asked with, until there is no more."""
    while True:
        try:
            asked = await question(reader)
        except asyncio.IncompleteReadError:
            return
        writer.write(struct.pack(">i", len(asked)) + asked)


async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Half an answer, and an ordinary end."""
    await question(reader)
    writer.write(struct.pack(">i", 100) + bytes(50))
    await writer.drain()


async def resetting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """No answer, and a reset."""
    await question(reader)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)
    writer.transport.abort()


async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Nothing, until the other side has gone."""
    await reader.read(1 << 20)
    await reader.read()


@pytest.mark.parametrize("ballast_bytes", [0, 1, 249, 250, 100_000])
async def test_answered(ballast_bytes: int) -> None:
    """Question and answer are counted with all that crossed the wire, and the ballast is in both; twice in a row."""
    async with probing(answering) as probe:
        for _ in range(2):
            seen = await probe.ask(ballast_bytes, 5_000)
            assert seen.end == "answered"
            assert ballast_bytes <= seen.sent_bytes == seen.received_bytes <= 1.1 * ballast_bytes + 100


async def test_closed_in_the_middle_of_the_answer() -> None:
    """The bytes received so far are counted, and further requests fail."""
    async with probing(closing) as probe:
        seen = await probe.ask(0, 5_000)
        assert (seen.end, seen.received_bytes) == ("closed", 54)
        assert (await probe.ask(0, 5_000)).end in ("closed", "reset")


async def test_reset() -> None:
    """A reset is told from an ordinary close."""
    async with probing(resetting) as probe:
        assert (await probe.ask(0, 5_000)).end == "reset"


async def test_silent() -> None:
    """Silence is believed when its time is over, and the connection is kept."""
    async with probing(silent) as probe:
        seen = await probe.ask(0, 50)
        assert (seen.end, seen.received_bytes) == ("silent", 0)
        assert seen.ms >= 50


async def test_a_close_that_comes_back_and_one_that_does_not() -> None:
    """The broker's close ends the wait; without one it ends at the limit."""
    async with probing(answering) as probe:
        assert await probe.close_ms(5_000) < 5_000

    over = asyncio.Event()

    async def deaf(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await over.wait()

    async with probing(deaf) as probe:
        assert await probe.close_ms(50) == 50
        over.set()

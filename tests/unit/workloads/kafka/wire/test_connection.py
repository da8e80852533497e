"""The blocking connection against peers that misbehave: always an OSError, in time, and never unbounded memory."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from kio.schema.api_versions.v3.request import ApiVersionsRequest

from aftershock.workloads.kafka.wire.connection import Address, Connection, PeerError

REQUEST = ApiVersionsRequest(client_software_name="test", client_software_version="1")


@contextmanager
def peer(serve: Callable[[socket.socket], None]) -> Iterator[Address]:
    """A peer on loopback that serves one connection in its own way."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        connection, _ = listener.accept()
        with connection:
            serve(connection)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield Address(*listener.getsockname())
    finally:
        thread.join()
        listener.close()


def request_of(connection: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    return connection.recv(length, socket.MSG_WAITALL)


def answer(correlation_id: int) -> bytes:
    """An ApiVersions v3 response: header v0, no error, no APIs, no throttling, no tags."""
    body = struct.pack(">ih", correlation_id, 0) + b"\x01" + struct.pack(">i", 0) + b"\x00"
    return struct.pack(">i", len(body)) + body


def test_a_request_carries_its_correlation_and_gets_its_answer() -> None:
    """Two requests on one connection: api key 18, version 3, correlation 1 then 2, also when bytes come one by one."""
    heads = []

    def serve(connection: socket.socket) -> None:
        for number in (1, 2):
            heads.append(struct.unpack(">hhi", request_of(connection)[:8]))
            for byte in answer(number):
                connection.sendall(bytes([byte]))

    with peer(serve) as address, Connection(address, 5) as connection:
        assert 0 == connection.ask(REQUEST).error_code.value  # type: ignore[attr-defined]  # ApiVersionsResponse
        connection.ask(REQUEST)
    assert [(18, 3, 1), (18, 3, 2)] == heads


@pytest.mark.parametrize("length", [-1, 0, 3, 2**31 - 1])
def test_an_impossible_length_is_refused(length: int) -> None:
    """A length that no Kafka message has closes the matter before a byte of it is read."""
    with peer(lambda c: (request_of(c), c.sendall(struct.pack(">i", length)))) as address:  # type: ignore[arg-type, return-value]
        with Connection(address, 5) as connection, pytest.raises(PeerError, match="invalid message length"):
            connection.ask(REQUEST)


def test_an_answer_to_another_request_is_refused() -> None:
    """A wrong correlation id is the peer's error, not our answer."""
    with peer(lambda c: (request_of(c), c.sendall(answer(99)))) as address:  # type: ignore[arg-type, return-value]
        with Connection(address, 5) as connection, pytest.raises(PeerError, match="correlation id 99, expected 1"):
            connection.ask(REQUEST)


@pytest.mark.parametrize("damage", [lambda body: body[:-1], lambda body: body[:6] + b"\xff" * 6])
def test_an_answer_that_is_none_is_refused(damage: Callable[[bytes], bytes]) -> None:
    """Too short or nonsense, in a sound frame: the peer's error, which names the peer."""
    body = damage(answer(1)[4:])
    framed = struct.pack(">i", len(body)) + body
    with peer(lambda c: (request_of(c), c.sendall(framed))) as address, Connection(address, 5) as connection:  # type: ignore[arg-type, return-value]
        with pytest.raises(PeerError, match=f"{address}: ApiVersionsResponse v3"):
            connection.ask(REQUEST)


def test_a_closed_connection_is_told_as_such() -> None:
    """Toxiproxy accepts for a dead broker and closes: that is a reset, at once."""
    with peer(lambda c: c.sendall(answer(1)[:6])) as address, Connection(address, 5) as connection:
        with pytest.raises(ConnectionError):
            connection.ask(REQUEST)


def test_a_trickle_does_not_outlast_the_deadline() -> None:
    """The deadline bounds the whole exchange, not each read."""
    stop = threading.Event()

    def serve(connection: socket.socket) -> None:
        request_of(connection)
        connection.sendall(struct.pack(">i", 10_000))
        while not stop.wait(0.02):
            try:
                connection.sendall(b"\x00")
            except OSError:
                return

    with peer(serve) as address:
        started_s = time.monotonic()
        with Connection(address, 0.3) as connection, pytest.raises(TimeoutError):
            connection.ask(REQUEST)
        stop.set()
        # generous: what is proven is that it ended at all
        assert time.monotonic() - started_s < 30

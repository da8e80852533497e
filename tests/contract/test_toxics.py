"""Properties of Toxiproxy that each kind of fault on links relies on, measured on a real one between client and echo
server.

The echo server listens on the engine's bridge, where the container reaches it. Lower bounds of time are the toxics'
own; upper bounds only distinguish two behaviours that are seconds apart.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Self

import pytest

from aftershock.errors import FaultError
from aftershock.faults.targets.values import Stream, Toxic
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.proxies import LaunchedToxiproxy
from aftershock.harness.cluster.topology import Proxy
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety.ownership import labels_of, remove_run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

RUN_ID = "contract-toxics"
LISTEN = 9000
NAME = "echo"
BOTH_STREAMS = pytest.mark.parametrize("stream", ["upstream", "downstream"])
EARLY = 0.98  # Timers of two clocks agree within this time.


class Echo:
    """Sends received data back, prefixed by ``mark``; closes when the peer does."""

    def __init__(self, host: str, mark: bytes = b"") -> None:
        self.mark = mark
        self.server = socket.create_server((host, 0))
        self.address = "{}:{}".format(*self.server.getsockname())

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown(socket.SHUT_RDWR)  # which wakes `accept`
        self.server.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.server.accept()
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while data := connection.recv(1 << 16):
                connection.sendall(self.mark + data)


class Line:
    """Toxiproxy between client and echo server: ``dial`` over a published port, or ``direct`` to the container."""

    def __init__(self, api: LaunchedToxiproxy, port: int, container: str, bridge: str) -> None:
        self.api = api
        self.bridge = bridge
        self._published = ("127.0.0.1", port)
        self._own = (container, LISTEN)
        self._dialled: list[socket.socket] = []

    def dial(self, *, direct: bool = False) -> socket.socket:
        connection = socket.create_connection(self._own if direct else self._published, timeout=10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._dialled.append(connection)
        return connection

    def clear(self) -> None:
        """Remove all toxics and connections."""
        self.api.reset()
        while self._dialled:
            self._dialled.pop().close()

    def used(self) -> socket.socket:
        """Return a connection that has carried data already."""
        connection = self.dial()
        assert b"x" == asked(connection, b"x")
        return connection

    def toxic(self, type_: str, stream: Stream, **attributes: int) -> None:
        self.api.add_toxic(NAME, Toxic("t", type_, stream, attributes))

    def heal(self) -> None:
        self.api.remove_toxic(NAME, "t")


def asked(connection: socket.socket, data: bytes) -> bytes:
    """Send data; return the response when it is complete or the connection ends."""
    connection.sendall(data)
    return received(connection, len(data))


def received(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size and (part := connection.recv(size - len(parts))):
        parts += part
    return bytes(parts)


def silent(connection: socket.socket, for_s: float = 0.5) -> bool:
    """Return whether the connection is open and no data arrives for a while."""
    connection.settimeout(for_s)
    try:
        return connection.recv(1) == b"never"
    except TimeoutError:
        return True
    finally:
        connection.settimeout(10)


def took_s(what: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    what()
    return time.perf_counter() - began_s


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    client = engine.connect()
    try:
        container = client.containers.run(
            engine.toxiproxy_image(client, print).name,
            ["-host=0.0.0.0"],
            detach=True,
            labels=labels_of(RUN_ID, tmp_path_factory.mktemp("toxics"), keep=False),
            ports={"8474/tcp": ("127.0.0.1", None), f"{LISTEN}/tcp": ("127.0.0.1", None)},
        )
        container.reload()
        ports = {inside: int(outside[0]["HostPort"]) for inside, outside in container.ports.items()}
        bridge = container.attrs["NetworkSettings"]["Networks"]["bridge"]
        api = LaunchedToxiproxy("127.0.0.1", ports["8474/tcp"])
        assert not still_lacking(lambda: _unanswered(api), 10)
        with Echo(bridge["Gateway"]) as echo:
            api.populate([Proxy(NAME, "client", "a", 1, None, LISTEN, echo.address)], {})
            yield Line(api, ports[f"{LISTEN}/tcp"], bridge["IPAddress"], bridge["Gateway"])
    finally:
        remove_run(client, RUN_ID)
        client.close()


def _unanswered(api: LaunchedToxiproxy) -> str:
    try:
        return "" if api.version() else "no version"
    except FaultError as error:
        return str(error)


@pytest.fixture
def line(server: Line) -> Iterator[Line]:
    """A line without toxics."""
    yield server
    server.clear()


@BOTH_STREAMS
def test_latency_is_pipelined(line: Line, stream: Stream) -> None:
    """Five pieces in flight are late together, each by the delay: a delay is no queue."""
    line.toxic("latency", stream, latency=1000, jitter=0)
    connection = line.dial()
    began_s = time.perf_counter()
    for _ in range(5):
        connection.sendall(b"x")
        assert silent(connection, 0.02)  # The pause makes each write a separate piece.
    assert b"xxxxx" == received(connection, 5)
    assert EARLY <= time.perf_counter() - began_s < 4


def test_updating_a_toxic_releases_held_data(line: Line) -> None:
    """A piece held for a minute arrives at once when the delay is changed to another minute; the next one is held."""
    line.toxic("latency", "upstream", latency=60_000, jitter=0)
    connection = line.dial()
    connection.sendall(b"x")
    assert silent(connection)
    line.api.update_toxic(NAME, Toxic("t", "latency", "upstream", {"latency": 60_001, "jitter": 0}))
    assert b"x" == received(connection, 1)
    connection.sendall(b"y")
    assert silent(connection)


@BOTH_STREAMS
def test_bandwidth_is_limited_per_connection(line: Line, stream: Stream) -> None:
    """100 kB over each of two connections take a second at 100 kB/s, both together no longer."""
    data, both = bytes(100_000), [line.used(), line.used()]
    line.toxic("bandwidth", stream, rate=100)
    threads = [threading.Thread(target=asked, args=(connection, data)) for connection in both]
    assert EARLY <= took_s(lambda: ([each.start() for each in threads], [each.join() for each in threads])) < 1.9


@BOTH_STREAMS
def test_rate_0_stalls_until_the_heal(line: Line, stream: Stream) -> None:
    """More data than any buffer holds: none arrives, and after the heal all of it, in order, over that connection."""
    connection, numbers = line.used(), count()
    line.toxic("bandwidth", stream, rate=0)
    data = b"".join(b"%08d" % next(numbers) for _ in range(500_000))
    sending = threading.Thread(target=connection.sendall, args=(data,))
    sending.start()
    assert silent(connection)
    line.heal()
    assert data == received(connection, len(data))
    sending.join()
    assert b"again" == asked(connection, b"again")


@BOTH_STREAMS
def test_rate_0_stalls_new_connections(line: Line, stream: Stream) -> None:
    """They are accepted, stay silent, and continue after the heal like the others."""
    line.toxic("bandwidth", stream, rate=0)
    connection = line.dial()
    connection.sendall(b"held")
    assert silent(connection)
    line.heal()
    assert b"held" == received(connection, 4)


@BOTH_STREAMS
def test_healing_a_timeout_closes_the_connection(line: Line, stream: Stream) -> None:
    """With a timeout of 0 it stays open and silent until the heal, which closes it: the held bytes are lost."""
    connection = line.used()
    line.toxic("timeout", stream, timeout=0)
    connection.sendall(b"lost")
    assert silent(connection)
    line.heal()
    assert b"" == received(connection, 4)
    assert b"new" == asked(line.dial(), b"new")


def test_a_timeout_restarts_with_each_dropped_byte(line: Line) -> None:
    """Silence for that time closes a connection; dropped data restarts the timer."""
    idle, busy = line.used(), line.used()
    line.toxic("timeout", "upstream", timeout=1000)
    began_s = time.perf_counter()
    for _ in range(4):
        assert silent(busy, 0.4)
        busy.sendall(b"x")
    assert b"" == received(idle, 1)
    assert b"" == received(busy, 1)
    assert time.perf_counter() - began_s >= EARLY * (4 * 0.4 + 1)


@BOTH_STREAMS
def test_reset_peer_resets_new_connections_and_closes_old_ones(line: Line, stream: Stream) -> None:
    """Both at the next data, not before. A port that Docker forwards on loopback turns the reset into a close."""
    old = line.used()
    line.toxic("reset_peer", stream, timeout=0)
    new, forwarded = line.dial(direct=True), line.dial()
    assert silent(old, 0.2)
    assert silent(new, 0.2)
    assert b"" == asked(old, b"x")
    with pytest.raises(ConnectionResetError):
        asked(new, b"x")
    assert b"" == asked(forwarded, b"x")


@BOTH_STREAMS
def test_limit_data_counts_from_the_toxics_start(line: Line, stream: Stream) -> None:
    """Earlier data doesn't count; the message that crosses the limit is cut there; the heal ends the counting.

    Upstream, it is a race whether the echo of the passed data arrives before the connection is closed.
    """
    old = line.used()
    line.toxic("limit_data", stream, bytes=1000)
    healed = line.dial()
    for connection in (old, line.dial()):
        assert 900 == len(asked(connection, bytes(900)))
        left = len(asked(connection, bytes(900)))
        assert left == 100 if stream == "downstream" else left <= 100
    assert 900 == len(asked(healed, bytes(900)))
    line.heal()
    assert 9000 == len(asked(healed, bytes(9000)))


@BOTH_STREAMS
def test_slow_close_delays_the_end_and_the_heal_ends_the_delay(line: Line, stream: Stream) -> None:
    """The client closes its half, the echo server then its own, and one of the two closes is passed on late."""
    line.toxic("slow_close", stream, delay=500)
    connection = line.used()
    connection.shutdown(socket.SHUT_WR)
    assert took_s(lambda: received(connection, 1)) >= EARLY * 0.5
    line.heal()
    line.toxic("slow_close", stream, delay=60_000)
    connection = line.used()
    connection.shutdown(socket.SHUT_WR)
    assert silent(connection)
    line.heal()
    assert b"" == received(connection, 1)


@BOTH_STREAMS
def test_slicer_halves_until_the_size_is_met(line: Line, stream: Stream) -> None:
    """1000 bytes at 100 a piece are 16 pieces (62 or 63 bytes) with a pause after each but the last, all in order."""
    line.toxic("slicer", stream, average_size=100, size_variation=0, delay=20_000)
    data = b"".join(b"%04d" % number for number in range(250))
    connection = line.dial(direct=True)
    began_s = time.perf_counter()
    connection.sendall(data)
    parts: list[bytes] = []
    while sum(map(len, parts)) < len(data):
        parts.append(connection.recv(len(data)))
    assert data == b"".join(parts)
    assert time.perf_counter() - began_s >= EARLY * 15 * 0.02
    assert len(parts) > 4


def test_redirecting_a_proxy_closes_its_connections(line: Line) -> None:
    """New connections reach the other upstream, the toxics stay; a repeated redirect keeps connections."""
    (before,) = line.api.upstreams().values()
    old = line.used()
    line.toxic("latency", "upstream", latency=1, jitter=0)
    with Echo(line.bridge, mark=b"other ") as other:
        line.api.redirect(NAME, other.address)
        assert b"" == received(old, 1)
        new = line.dial()
        new.sendall(b"x")
        assert b"other x" == received(new, 7)
        line.api.redirect(NAME, other.address)
        new.sendall(b"y")
        assert b"other y" == received(new, 7)
    assert ("latency",) == tuple(toxic.type for toxic in line.api.toxics()[NAME])
    line.api.redirect(NAME, before)
    assert {NAME: before} == line.api.upstreams()


def test_redirecting_a_disabled_proxy_leaves_it_disabled(line: Line) -> None:
    """So the heal of a misroute doesn't enable a proxy that another fault has disabled."""
    (before,) = line.api.upstreams().values()
    line.api.enable(NAME, enabled=False)
    line.api.redirect(NAME, "127.0.0.1:9")
    assert {NAME} == line.api.disabled()
    line.api.redirect(NAME, before)
    assert {NAME} == line.api.disabled()

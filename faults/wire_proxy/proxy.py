"""Listens where clients are sent, dials where they should have gone, and keeps every pair of connections going.

One listener a way (rack and broker). A connection is read no faster than its other side takes what is read from it.
A way whose end refuses takes connections and closes them at once: that much differs from no proxy at all.

How a proxy is told its rules and asked what they did: JSON lines over a loopback port, one answer a question.

::

    {"do": "add", "rule": {...}}       {"do": "remove", "name": "..."}       {"do": "rules"}
    {"is": null}                       {"is": null}                          {"is": {name: {counter: number}}}

What can't be done is answered with ``{"error": "..."}``.
"""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from aftershock.errors import ProtocolError
from aftershock.faults.wire_proxy.conversation import Conversation
from aftershock.faults.wire_proxy.responses import Place
from aftershock.faults.wire_proxy.rules import Book, Rule, rule_from
from aftershock.faults.wire_proxy.streams import Lane, Piece
from aftershock.workloads.kafka.wire.connection import Address

LOOPBACK = "127.0.0.1"
_DIAL_S = 10.0
_RENEGOTIATED = frozenset({"cap_versions"})
"""Versions are agreed on once a connection: these rules close those that there are, so that it is done again."""


class Way(NamedTuple):
    """From the clients of a rack to a broker. ``upstream``: where Toxiproxy takes them."""

    name: str
    rack: str
    broker: int
    upstream: Address


class Proxy:
    """All ways of a cluster, and the rules that are in force on all of them."""

    def __init__(self, ways: Sequence[Way]) -> None:
        self._ways = ways
        self._servers: list[asyncio.Server] = []
        self._pairs: set[Pair] = set()
        self.book = Book()
        self.addresses: dict[str, Address] = {}
        """Where clients find each way, by its name."""

    async def open(self) -> None:
        """Listen on a free port of loopback for each way."""
        loop = asyncio.get_running_loop()
        for way in self._ways:
            server = await loop.create_server(partial(self._accept, way), LOOPBACK, 0)
            self._servers.append(server)
            self.addresses[way.name] = Address(*server.sockets[0].getsockname())

    def _accept(self, way: Way) -> "Side":
        return Pair(self, way).client

    def close(self) -> None:
        """Listen no more, and close every connection."""
        for server in self._servers:
            server.close()
        for pair in list(self._pairs):
            pair.end()

    def add_rule(self, rule: Rule) -> None:
        """Put a rule in force. ValueError if there is one of that name."""
        self.book.add(rule)
        self._make_reconnect(rule)

    def remove_rule(self, name: str) -> None:
        """Take a rule away; no error if it is gone. Connections that it keeps silent are closed."""
        rule = self.book.remove(name)
        if rule is not None:
            self._make_reconnect(rule)
        for pair in [pair for pair in self._pairs if name in pair.conversation.silenced_by]:
            pair.end()

    def place(self, way: Way) -> Place:
        """Where answers on this way come from, and where its clients find the other brokers."""
        same_rack = {each.broker: self.addresses[each.name] for each in self._ways if each.rack == way.rack}
        return Place(way.broker, same_rack)

    def opened(self, pair: "Pair") -> None:
        """A client has connected."""
        self._pairs.add(pair)

    def ended(self, pair: "Pair") -> None:
        """Both its connections are closed."""
        self._pairs.discard(pair)

    def _make_reconnect(self, rule: Rule) -> None:
        if rule.do in _RENEGOTIATED:
            for pair in [pair for pair in self._pairs if rule.names(pair.conversation.client_id)]:
                pair.end()


class Pair:
    """A client's connection, and the one dialled for it."""

    def __init__(self, proxy: Proxy, way: Way) -> None:
        self._proxy = proxy
        self._way = way
        self._ended = False
        self._dialling: asyncio.Task[None] | None = None
        self.client, self.broker = Side(self), Side(self)
        self._to_client = Lane(self.client.write, self.client.close, partial(self.broker.hold_back, "delayed"))
        self._to_broker = Lane(self.broker.write, self.broker.close, partial(self.client.hold_back, "delayed"))
        self.conversation = Conversation(proxy.book, proxy.place(way), self._to_broker, self._to_client, self.end)

    def connected(self, side: "Side") -> None:
        """A side has its socket; the client's isn't read before the broker's is there."""
        if self._ended:
            side.abort()
        elif side is self.client:
            self._proxy.opened(self)
            side.hold_back("dialling", True)
            self._dialling = asyncio.get_running_loop().create_task(self._dial())
        else:
            self.client.hold_back("dialling", False)

    def received(self, side: "Side", data: bytes) -> None:
        """Bytes from one of the two."""
        try:
            if side is self.client:
                self.conversation.from_client(data)
            else:
                self.conversation.from_broker(data)
        except ProtocolError:
            self.end()

    def crowded(self, side: "Side", is_crowded: bool) -> None:  # noqa: FBT001 -- as asyncio tells it
        """One of the two takes no more for now, or takes more again: the other isn't read meanwhile."""
        (self.broker if side is self.client else self.client).hold_back("crowded", is_crowded)

    def lost(self, side: "Side") -> None:
        """One of the two has ended: the other ends when it has been given what is on its way to it."""
        ours, theirs = (self._to_client, self._to_broker) if side is self.client else (self._to_broker, self._to_client)
        ours.abandon()
        if self.client.is_open or self.broker.is_open:
            theirs.finish()
        else:
            self.end()

    def end(self) -> None:
        """Close both at once."""
        if self._ended:
            return
        self._ended = True
        self._proxy.ended(self)
        if self._dialling:
            self._dialling.cancel()
        for lane in (self._to_client, self._to_broker):
            lane.abandon()
        for side in (self.client, self.broker):
            side.abort()

    async def _dial(self) -> None:
        try:
            async with asyncio.timeout(_DIAL_S):
                await asyncio.get_running_loop().create_connection(lambda: self.broker, *self._way.upstream)
        except OSError:
            self.end()


class Side(asyncio.Protocol):
    """One of the two sockets. Methods that aren't described here are asyncio's."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._transport: asyncio.Transport | None = None
        self._held_by: set[str] = set()
        self.is_open = False

    def write(self, piece: Piece) -> None:
        """Send it; what can't leave at once is kept by the transport, which then says so."""
        if self._transport:
            self._transport.write(piece)

    def close(self) -> None:
        """Close when all that was written has left."""
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport:
            self._transport.abort()

    def hold_back(self, reason: str, is_held: bool) -> None:  # noqa: FBT001 -- what it says is in its name
        """Don't read while there is any reason not to."""
        was_held = bool(self._held_by)
        (self._held_by.add if is_held else self._held_by.discard)(reason)
        if self._transport and was_held != bool(self._held_by):
            (self._transport.resume_reading if was_held else self._transport.pause_reading)()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True
        self._pair.connected(self)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._pair.received(self, data)

    def pause_writing(self) -> None:  # noqa: D102
        self._pair.crowded(self, True)

    def resume_writing(self) -> None:  # noqa: D102
        self._pair.crowded(self, False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002, D102
        self.is_open = False
        self._pair.lost(self)


LINE_BYTES_MAX = 1 << 20


class Control:
    """Listens for orders to one proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._server: asyncio.Server

    async def open(self) -> int:
        """Listen; gives the port."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0, limit=LINE_BYTES_MAX)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Listen no more."""
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):  # gone, or a line that is none
            return
        finally:
            writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            return {"is": self._obey(json.loads(line))}
        except (ValueError, KeyError, TypeError) as error:
            return {"error": str(error)}

    def _obey(self, order: dict[str, Any]) -> object:
        match order["do"]:
            case "add":
                self._proxy.add_rule(rule_from(order["rule"]))
            case "remove":
                self._proxy.remove_rule(order["name"])
            case "rules":
                return self._proxy.book.counters()
            case other:
                raise ValueError(f"{other!r} is no order")
        return None

"""The wire proxy listens for clients, dials the brokers for them, and applies rules to requests and responses.

The wire proxy has one listener for each route (a rack's clients to one broker). The wire proxy reads from a client only
as fast as the broker accepts the data, and from a broker only as fast as the client does. Clients see one difference to
a cluster without the wire proxy, which is that a connection refused by the broker is accepted and closed at once. A
route on which the wire proxy is told not to listen refuses connections.
"""

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from aftershock.errors import ProtocolError
from aftershock.faults.wire_proxy.active_rules import ActiveRules
from aftershock.faults.wire_proxy.connections import Connections
from aftershock.faults.wire_proxy.conversation import Conversation
from aftershock.faults.wire_proxy.fetches import FetchObserver
from aftershock.faults.wire_proxy.responses import BrokerView
from aftershock.faults.wire_proxy.rules import Rule, rule_from
from aftershock.faults.wire_proxy.streams import DelayQueue, Piece
from aftershock.workloads.kafka.wire.connection import Address

LOOPBACK = "127.0.0.1"
_DIAL_S = 10.0


class Route(NamedTuple):
    """Route from the clients of a rack to a broker; ``upstream`` is the address of the route's Toxiproxy listener.

    The address of a ``bootstrap`` route is no broker's advertised address.
    """

    name: str
    rack: str
    broker: int
    upstream: Address
    bootstrap: bool = False


class Proxy:
    """The wire proxy, with all routes of a cluster, and the rules in force on every route."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = routes
        self.pairs: set[Pair] = set()
        """Pairs of connections, each to a client and to a broker."""
        self.active_rules = ActiveRules()
        self.connections = Connections()
        self.observer: FetchObserver | None = None
        """Observer of the connections that are opened from now on."""
        self.addresses: dict[str, Address] = {}
        """Listening address of each route, by its name."""
        self._servers: dict[str, asyncio.Server] = {}
        self._reserved: list[socket.socket] = []

    async def open(self) -> None:
        for route in self.routes:
            # a socket that never listens keeps the port while the route refuses connections
            reserved = socket.socket()
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind((LOOPBACK, 0))
            self._reserved.append(reserved)
            self.addresses[route.name] = Address(*reserved.getsockname())
            await self._listen(route)

    async def _listen(self, route: Route) -> None:
        address = self.addresses[route.name]
        accept = partial(self._accept, route)
        self._servers[route.name] = await asyncio.get_running_loop().create_server(accept, *address, reuse_port=True)

    async def listen(self, name: str, *, on: bool) -> None:
        """Let the kernel refuse new connections of a rack's clients to a broker, or accept them again.

        ``name`` is that of a route; the bootstrap route of the same rack and broker goes with it. Established
        connections stay. Raises ValueError for an unknown name.
        """
        ends = {(route.rack, route.broker) for route in self.routes if route.name == name}
        if not ends:
            raise ValueError(f"no route {name}")
        for route in self.routes:
            if (route.rack, route.broker) not in ends:
                continue
            if not on and route.name in self._servers:
                self._servers.pop(route.name).close()
            elif on and route.name not in self._servers:
                await self._listen(route)

    def _accept(self, route: Route) -> "Side":
        return Pair(self, route).client

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
        for reserved in self._reserved:
            reserved.close()
        for pair in list(self.pairs):
            pair.end()

    def add_rule(self, rule: Rule) -> None:
        """Put a rule in force; raise ValueError if another rule has its name."""
        self.active_rules.add(rule)
        self._end_affected(rule)

    def remove_rule(self, name: str) -> None:
        """Remove a rule; close the connections that the rule keeps silent, or whose requests it holds.

        Do nothing without such a rule.
        """
        rule = self.active_rules.remove(name)
        if rule is not None:
            self._end_affected(rule)
        for pair in [pair for pair in self.pairs if pair.conversation.depends_on(name)]:
            pair.conversation.ended("its rule was removed")
            pair.end()

    def end_of(self, route: Route, pair: "Pair") -> Route | None:
        """Return the route that a new connection takes: its own, or that of a ``lose_bootstrap`` rule; None for none.

        A connection that the rule keeps silent stays open until the rule is removed; otherwise the pair is ended.
        """
        active = self.active_rules.about_bootstrap(route.rack, route.broker) if route.bootstrap else None
        if active is None:
            return route
        rule = active.rule
        if rule.broker >= 0:
            return next(
                (other for other in self.routes if (other.rack, other.broker) == (route.rack, rule.broker)), None
            )
        if rule.connection == "silent":
            pair.conversation.silenced_by.add(rule.name)
        else:
            pair.end()
        return None

    def _end_affected(self, rule: Rule) -> None:
        """Close connections that a rule must not leave as they are.

        After the end of connections with a ``cap_versions`` rule, clients negotiate API versions again. A bootstrap
        address that is lost has no connections; one that leads elsewhere keeps those that it has.
        """
        if rule.do == "lose_bootstrap" and rule.broker < 0:
            for pair in [pair for pair in self.pairs if pair.is_lost_with(rule)]:
                pair.end()
        if rule.do == "cap_versions":
            for pair in [pair for pair in self.pairs if rule.names(pair.conversation.client_id)]:
                pair.end()


class Pair:
    """A client's connection to the wire proxy, and the connection to the broker that the proxy opens for the client."""

    def __init__(self, proxy: Proxy, route: Route) -> None:
        self._proxy = proxy
        self._route = route
        self._observer = proxy.observer
        self._ended = self._is_known = False
        self._dialling: asyncio.Task[None] | None = None
        self.client, self.broker = Side(self), Side(self)
        self.client.peer, self.broker.peer = self.broker, self.client
        same_rack = {
            other.broker: proxy.addresses[other.name]
            for other in proxy.routes
            if other.rack == route.rack and not other.bootstrap
        }
        broker_view = BrokerView(route.broker, same_rack)
        self.conversation = Conversation(
            proxy.active_rules,
            broker_view,
            self.broker.queue,
            self.client.queue,
            self.end,
            self.client.abort,
            self._observer,
        )

    def connected(self, side: "Side") -> None:
        """Handle a new socket; reading from the client's socket starts when the broker's socket exists."""
        if self._ended:
            side.abort()
        elif side is self.client:
            self._proxy.pairs.add(self)
            side.hold_back("dialling", True)
            if (end := self._proxy.end_of(self._route, self)) is not None:
                self._dialling = asyncio.get_running_loop().create_task(self._dial(end.upstream))
        else:
            self.client.hold_back("dialling", False)

    def received(self, side: "Side", data: bytes) -> None:
        try:
            if side is self.client:
                self.conversation.from_client(data)
            else:
                self.conversation.from_broker(data)
        except ProtocolError:
            self.end()
            return
        if not self.client.is_open and not self.conversation.held:
            self.end()  # the broker has answered the last held request of a client that is gone
            return
        client = self.conversation.client_id
        if client and not self._is_known:
            self._is_known = True
            self._proxy.connections.opened(client, self._route.broker)
        if self._observer and client:
            direction = "sent" if side is self.client else "received"
            self._observer.count_bytes(client, self._route.broker, direction, len(data))

    def lost(self, side: "Side") -> None:
        """Close the other socket after the end of a socket, when all data for the other socket has been written.

        The broker's socket stays open while a request of the client is held, or waits for its response.
        """
        side.queue.abandon()
        if side is self.broker:
            self.conversation.ended("the broker's connection ended")
        if side is self.client and self.conversation.held:
            side.peer.queue.muted = True
        elif side.peer.is_open:
            side.peer.queue.finish()
        else:
            self.end()

    def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._proxy.pairs.discard(self)
        self.conversation.ended("the connections were closed")
        if self._dialling:
            self._dialling.cancel()
        for side in (self.client, self.broker):
            side.queue.abandon()
            side.abort()

    def is_lost_with(self, rule: Rule) -> bool:
        """Return True for a connection to a bootstrap address that a ``lose_bootstrap`` rule names."""
        route = self._route
        return route.bootstrap and route.broker in rule.brokers and rule.rack in (None, route.rack)

    async def _dial(self, upstream: Address) -> None:
        try:
            async with asyncio.timeout(_DIAL_S):
                await asyncio.get_running_loop().create_connection(lambda: self.broker, *upstream)
        except OSError:
            self.end()


class Side(asyncio.Protocol):
    """Socket to the client or to the broker; ``queue`` has delayed writes to it, ``peer`` is the other socket.

    If a socket accepts no more data, or if too many bytes for it are delayed, reading from its peer pauses.
    """

    peer: "Side"

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._transport: asyncio.Transport | None = None
        self._held_by: set[str] = set()
        self.is_open = False
        self.queue = DelayQueue(self.write, self.close, lambda is_crowded: self.peer.hold_back("delayed", is_crowded))

    def write(self, piece: Piece) -> None:
        # the transport buffers data that it can't send, and then calls `pause_writing`
        if self._transport:
            self._transport.write(piece)

    def close(self) -> None:
        """Close the socket when all written data has been sent."""
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        if self._transport:
            self._transport.abort()

    def hold_back(self, reason: str, is_held: bool) -> None:  # noqa: FBT001 -- short calls
        """Add or remove a reason to pause reading from the socket; reading is paused while there is any reason."""
        was_held = bool(self._held_by)
        (self._held_by.add if is_held else self._held_by.discard)(reason)
        if self._transport and was_held != bool(self._held_by):
            (self._transport.resume_reading if was_held else self._transport.pause_reading)()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True
        self._pair.connected(self)

    def data_received(self, data: bytes) -> None:
        self._pair.received(self, data)

    def pause_writing(self) -> None:
        self.peer.hold_back("crowded", True)

    def resume_writing(self) -> None:
        self.peer.hold_back("crowded", False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.is_open = False
        self._pair.lost(self)


class Control:
    """Receiver of commands for the wire proxy, lines of JSON over a loopback port, each with one line of answer.

    A command has the key ``do``, with the value ``add`` (and a ``rule``), ``remove`` (and a ``name``), ``rules``,
    ``held``, ``observe`` (new connections, or with ``on`` false none), ``observed`` or ``listen`` (on a ``route``, or
    with ``on`` false not). An answer has the key ``is``: null, or for ``rules`` the counters of each rule by name, for
    ``held`` the events of held requests (``holds.py``), scripted answers and many connections (``connections.py``), and
    for ``observed`` counters and new events (``fetches.py``), null if nothing is observed. The answer to a command that
    fails has the key ``error``.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._server: asyncio.Server

    async def open(self) -> int:
        """Listen on a free loopback port, and return the port."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0, limit=1 << 20)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                try:
                    answer: dict[str, Any] = {"is": await self.execute(json.loads(line))}
                except (ValueError, KeyError, TypeError) as error:
                    answer = {"error": str(error)}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):  # the peer is gone, or the line is too long
            return
        finally:
            writer.close()

    async def execute(self, command: dict[str, Any]) -> Mapping[str, Any] | None:
        """Execute a command, and return what its answer has under the key ``is``."""
        match command["do"]:
            case "add":
                self._proxy.add_rule(rule_from(command["rule"]))
            case "remove":
                self._proxy.remove_rule(command["name"])
            case "rules":
                return self._proxy.active_rules.counters()
            case "held":
                events = [*self._proxy.active_rules.take_events(), *self._proxy.connections.take()]
                return {"events": sorted(events, key=lambda event: int(event["at_ns"]))}
            case "observe":
                self._proxy.observer = FetchObserver() if command["on"] else None
            case "observed":
                observer = self._proxy.observer
                if observer is not None:
                    counters = [(*link, dict(counts)) for link, counts in observer.counters.items()]
                    return {"counters": counters, "events": observer.take()}
            case "listen":
                await self._proxy.listen(command["route"], on=command["on"])
            case unknown:
                known = "add, remove, rules, held, observe, observed or listen"
                raise ValueError(f"unknown command {unknown!r}; use {known}")
        return None

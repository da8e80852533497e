"""One connection that comes and goes: open, being made, or waiting until it may be tried again.

The connections of one client: one a node and purpose, so that a long fetch never delays a heartbeat.

Kafka: ``NetworkClient``, ``ClusterConnectionStates``.

1. A connection is made when it is first wanted, to the address that the metadata gives at that moment. A coordinator
   is dialled where it was found, until that fails.
2. After one failed or was lost, the next attempt waits: 50 ms, twice that each time up to 1 s, with jitter. One that
   was made resets the wait. Either way metadata is asked for: the node may be gone.
3. One Metadata request at a time, to a known node that is connected, one of those with the least in flight; else to
   any that can be reached. The bootstrap addresses serve while no node is known, and again where none can be reached
   (Kafka 4's ``metadata.recovery.strategy=rebootstrap``). It shares the connection that data goes over, as in Kafka,
   unless ``metadata.own.connection`` says otherwise.
4. A connection that nobody used for ``connections.max.idle.ms`` is closed; a bootstrap one, as soon as a node of
   rule 3 is connected.
5. A broker that can't be worked with is passed over as long as others answer.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Literal

from aftershock.errors import ClientError, ProtocolError, UnsupportedError
from aftershock.workloads.kafka.client.requests import METADATA, metadata_request, metadata_response
from aftershock.workloads.kafka.client.settings import ClientSettings
from aftershock.workloads.kafka.client.tasks import Tell
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff, MetadataResponse, Node
from aftershock.workloads.kafka.wire.channel import Channel
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.kafka.wire.security import Security


class Link:
    """The way to one node for one purpose. ``sent_bytes`` and ``received_bytes`` are over all its connections.

    ``address`` is asked at each attempt. ``on_change`` is called when a connection was made, was refused, or was found
    to be lost; ``error`` says why there is none.
    """

    def __init__(
        self,
        address: Callable[[], Address | None],
        *,
        client_id: str,
        security: Security,
        connect_timeout_ms: float,
        backoff: Backoff,
        clock_ms: Callable[[], float],
        on_change: Callable[["Link"], None],
    ) -> None:
        self.used_ms = clock_ms()
        self.error: Exception | None = None
        self._address = address
        self._client_id = client_id
        self._security = security
        self._connect_timeout_ms = connect_timeout_ms
        self._backoff = backoff
        self._clock_ms = clock_ms
        self._on_change = on_change
        self._channel: Channel | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._failures = 0
        self._retry_at_ms = 0.0
        self._bytes = (0, 0)

    @property
    def open(self) -> Channel | None:
        """The channel, while it is open."""
        channel = self._channel
        return channel if channel is not None and not channel.closed else None

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        sent, received = self._bytes
        channel = self._channel
        return (sent, received) if channel is None else (sent + channel.sent_bytes, received + channel.received_bytes)

    def wait_ms(self) -> float:
        """How long until an attempt to connect is allowed; infinite while one is under way or the channel is open."""
        if self._connecting is not None or self.open is not None:
            return float("inf")
        return max(0.0, self._retry_at_ms - self._clock_ms())

    def ready(self) -> Channel | None:
        """The channel if it is open; if it isn't, connect in the background unless that has to wait."""
        if (channel := self.open) is not None:
            self.used_ms = self._clock_ms()
            return channel
        self.look()
        if self.wait_ms() == 0 and self._address() is not None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        return None

    def look(self) -> None:
        """If the channel has been lost, note it: the next attempt waits."""
        if self._channel is not None and self._channel.closed:
            self._retire()
            self._failed(ConnectionResetError("it was lost"))
            self._on_change(self)

    async def channel(self) -> Channel:
        """The open channel, or the one that is being made.

        Raises:
            ConnectionError: it can't be had now.
            ClientError: the peer can't be spoken to (ProtocolError, UnsupportedError).
        """
        channel = self.ready()
        if channel is None and self._connecting is not None:
            await asyncio.wait([self._connecting])
            channel = self.open
        if channel is not None:
            return channel
        if isinstance(self.error, ClientError):
            raise self.error
        raise ConnectionError(f"no connection to {self._address() or 'a node nobody knows'}: {self.error}")

    async def close(self) -> None:
        """End the attempt that is under way, or close the channel. ``ready`` would connect again, without waiting."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
            self._connecting = None
        if (channel := self._retire()) is not None:
            await channel.close()

    def _retire(self) -> Channel | None:
        """There is no channel any more; its bytes still count."""
        channel, self._bytes = self._channel, self.traffic
        self._channel = None
        return channel

    def _failed(self, error: Exception) -> None:
        self.error = error
        self._retry_at_ms = self._clock_ms() + self._backoff.ms(self._failures)
        self._failures += 1

    async def _connect(self) -> None:
        address = self._address()
        try:
            if address is None:
                return
            self._channel = await Channel.open(
                address,
                client_id=self._client_id,
                connect_timeout_ms=self._connect_timeout_ms,
                security=self._security,
            )
            self._failures, self.error = 0, None
        except (OSError, ClientError, ValueError, OverflowError) as error:  # the last two: no such host, no such port
            self._failed(error)
        finally:
            self._connecting = None
        self._on_change(self)


Purpose = Literal["data", "coordinator", "bootstrap", "metadata"]

_IDLE_CHECK_MS = 1_000


class Brokers:
    """Connects, reconnects, refreshes metadata and counts bytes. Belongs to one event loop.

    ``on_change`` is called whenever something that a waiting shell may want to look at has changed: a connection was
    made, refused or lost; metadata came or failed to come. ``unsupported`` is why the last refresh found nobody who can
    be worked with; None once one has.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        client_id: str,
        settings: ClientSettings,
        metadata: Metadata,
        clock_ms: Callable[[], float],
        *,
        tell: Tell,
        draw: random.Random,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.unsupported: UnsupportedError | None = None
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._settings = settings
        self._metadata = metadata
        self._asks: Purpose = "metadata" if settings.metadata_own_connection else "data"
        self._clock_ms = clock_ms
        self._tell = tell
        self._draw = draw
        self._on_change = on_change
        self._backoff = Backoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms, draw)
        self._links: dict[tuple[int, Purpose], Link] = {}
        self._found: dict[int, Address] = {}
        self._refreshing: asyncio.Task[bool] | None = None
        self._dropping: set[asyncio.Task[None]] = set()
        self._idle_check_ms = clock_ms() + _IDLE_CHECK_MS
        self._closed = False

    # -- connections

    def ready(self, node_id: int, purpose: Purpose = "data") -> Channel | None:
        """The open channel to a node, else None; then a connection is being made, or will be once ``wait_ms`` is over.

        Never waits and never raises: for loops that ask again after ``on_change``.
        """
        return None if self._closed else self._link(node_id, purpose).ready()

    def wait_ms(self, node_id: int, purpose: Purpose = "data") -> float:
        """How long until ``ready`` may try to connect again: 0 now, infinite while it is connecting or open."""
        return self._link(node_id, purpose).wait_ms()

    async def channel(self, node_id: int, purpose: Purpose = "data") -> Channel:
        """The open channel to a node, connecting if there is none.

        Raises:
            ConnectionError: refused, unknown node, or still within the reconnect back-off; never waits for longer than
                the connect timeout.
            ClientError: the broker can't be spoken to: ProtocolError, UnsupportedError.
        """
        if self._closed:
            raise ConnectionAbortedError("this client is closed")
        return await self._link(node_id, purpose).channel()

    async def any(self) -> Channel:
        """An open channel to one who can be asked for metadata (rule 3); connects if there is none.

        Raises:
            ConnectionError: nobody can be reached now.
            ClientError: nobody can be spoken to, and this is what the last of them had.
        """
        if at_hand := self._at_hand():
            return min(at_hand, key=lambda channel: (channel.in_flight, self._draw.random()))
        unable: ClientError | None = None
        reason: Exception | None = None
        for node_id, purpose in self._candidates():
            try:
                channel = await self.channel(node_id, purpose)
                METADATA.messages(channel.versions)
            except ConnectionError as error:
                reason = error
            except ClientError as error:
                unable = error
            else:
                return channel
        raise unable or ConnectionError(
            f"none of {', '.join(map(str, self._bootstrap))} or the nodes they named answers; the last said: {reason}"
        )

    def _at_hand(self) -> list[Channel]:
        """What is open of rule 3's connections, to brokers that speak our Metadata."""
        nodes = self._metadata.nodes
        links = (
            link
            for (node_id, purpose), link in self._links.items()
            if (purpose == self._asks and node_id in nodes) or (purpose == "bootstrap" and not nodes)
        )
        return [channel for link in links if (channel := link.open) is not None and _has_metadata(channel)]

    def _candidates(self) -> Iterator[tuple[int, Purpose]]:
        nodes = list(self._metadata.nodes)
        yield from ((node_id, self._asks) for node_id in self._draw.sample(nodes, len(nodes)))
        numbers = range(len(self._bootstrap))
        yield from ((number, "bootstrap") for number in self._draw.sample(numbers, len(numbers)))

    def _link(self, node_id: int, purpose: Purpose) -> Link:
        link = self._links.get((node_id, purpose))
        return link or self._links.setdefault((node_id, purpose), self._new_link(node_id, purpose))

    def _new_link(self, node_id: int, purpose: Purpose) -> Link:
        return Link(
            lambda: self._address(node_id, purpose),
            client_id=self._client_id,
            security=self._settings.security,
            connect_timeout_ms=self._settings.socket_connection_setup_timeout_ms,
            backoff=self._backoff,
            clock_ms=self._clock_ms,
            on_change=lambda link: self._changed(node_id, purpose, link),
        )

    def _address(self, node_id: int, purpose: Purpose) -> Address | None:
        if purpose == "bootstrap":
            return self._bootstrap[node_id]
        if purpose == "coordinator" and node_id in self._found:
            return self._found[node_id]
        node = self._metadata.nodes.get(node_id)
        return Address(node.host, node.port) if node else None

    def found(self, coordinator: Node) -> None:
        """Where FindCoordinator says that a node listens: it is dialled there as a coordinator, until that fails."""
        self._found[coordinator.node_id] = Address(coordinator.host, coordinator.port)

    def _changed(self, node_id: int, purpose: Purpose, link: Link) -> None:
        if link.error is not None:
            self._metadata.request_update()
            self._tell("node_disconnected", node_id=node_id, why=str(link.error))
            if purpose == "coordinator":
                self._found.pop(node_id, None)
        self._on_change()

    # -- metadata

    async def refresh(self) -> bool:
        """Ask for the metadata that is wanted and feed it to ``metadata``; False when nobody answered.

        One at a time: whoever asks while one is under way waits for that one.

        Raises:
            UnsupportedError: those who answer have no version of Metadata that serves us, or none of ApiVersions.
        """
        task = self._refreshing or self._start_refresh()
        await asyncio.wait([task])
        return not task.cancelled() and task.result()

    def refresh_if_due(self) -> float:
        """Start a refresh in the background when one is due; milliseconds until the next (infinite while one runs).

        Connections that were lost meanwhile are noticed here, too.
        """
        now_ms = self._clock_ms()
        for link in self._links.values():
            link.look()
        if now_ms >= self._idle_check_ms:
            self._drop_idle(now_ms)
        if self._refreshing is not None or self._closed:
            return inf
        wait_ms = self._metadata.wait_ms(now_ms)
        if wait_ms > 0:
            return wait_ms
        self._start_refresh()
        return inf

    def _start_refresh(self) -> asyncio.Task[bool]:
        task = self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        task.add_done_callback(self._refreshed)
        return task

    def _refreshed(self, task: "asyncio.Task[bool]") -> None:
        self._refreshing = None
        if not task.cancelled() and isinstance(error := task.exception(), UnsupportedError):
            self.unsupported = error
        self._on_change()

    async def _refresh(self) -> bool:
        try:
            answer, critical = await self._ask_metadata()
            self._metadata.update(answer, self._clock_ms())
        except Exception as error:  # whatever it is: without `failed` nobody would ask again
            self._metadata.failed(self._clock_ms())
            self._tell("metadata_failed", why=str(error) or type(error).__name__)
            if isinstance(error, OSError | ProtocolError):
                return False
            raise
        self.unsupported = None
        self._tell("metadata_refreshed", critical=critical)
        return True

    async def _ask_metadata(self) -> tuple[MetadataResponse, bool]:
        """The answer, and whether the question was critical."""
        channel = await self.any()
        request = metadata_request(METADATA.messages(channel.versions), self._metadata.wanted)
        reply = channel.request(request, timeout_ms=self._settings.request_timeout_ms)
        critical = self._metadata.asked()
        answer = metadata_response((await reply).response)
        if not answer.nodes:
            raise ConnectionError(f"{channel.address} knows no brokers yet")
        return answer, critical

    # -- the rest

    def _drop_idle(self, now_ms: float) -> None:
        """Rule 4."""
        self._idle_check_ms = now_ms + _IDLE_CHECK_MS
        connected = bool(self._metadata.nodes and self._at_hand())
        for (_, purpose), link in self._links.items():
            allowed_ms = 0 if connected and purpose == "bootstrap" else self._settings.connections_max_idle_ms
            if link.open and not link.open.in_flight and now_ms - link.used_ms > allowed_ms:
                task = asyncio.get_running_loop().create_task(link.close())
                self._dropping.add(task)
                task.add_done_callback(self._dropping.discard)

    @property
    def traffic(self) -> Mapping[int, tuple[int, int]]:
        """Node id → bytes sent to it and received from it so far, over all its connections.

        Bytes of the bootstrap connections belong to the node that has the same address, else to node -1.
        """
        nodes = {Address(node.host, node.port): node.node_id for node in self._metadata.nodes.values()}
        sums: dict[int, tuple[int, int]] = {}
        for (number, purpose), link in self._links.items():
            node_id = nodes.get(self._bootstrap[number], UNKNOWN) if purpose == "bootstrap" else number
            sent, received = sums.get(node_id, (0, 0))
            more_sent, more_received = link.traffic
            sums[node_id] = (sent + more_sent, received + more_received)
        return sums

    async def close(self) -> None:
        """Close every channel and end every task; nothing is opened afterwards."""
        self._closed = True
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        await asyncio.gather(*self._dropping, *(link.close() for link in self._links.values()))


def _has_metadata(channel: Channel) -> bool:
    try:
        METADATA.messages(channel.versions)
    except UnsupportedError:
        return False
    return True

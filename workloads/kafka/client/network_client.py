"""Metadata refresh and connections of a client, one per broker and purpose, so that fetches don't delay heartbeats.

Kafka: ``NetworkClient``, ``ClusterConnectionStates``.

1. A connection to a broker is opened for its first request, to the broker's address in the metadata. A coordinator is
   contacted at the address in the FindCoordinator response, until that address fails.
2. After a failed or lost connection the next attempt to connect to the broker waits for ``reconnect.backoff.ms``, and
   metadata is requested, because the broker may be gone.
3. The client sends one Metadata request at a time, to the connected node with the fewest requests in flight, or,
   without a connected node, to any reachable node. Metadata requests go to the bootstrap addresses while no node is
   known, and again when no node can be reached (Kafka 4's ``metadata.recovery.strategy=rebootstrap``). If a Metadata
   response has the error REBOOTSTRAP_REQUIRED, or no Metadata request succeeds for
   ``metadata.recovery.rebootstrap.trigger.ms``, the client closes the connections to all known nodes, and forgets the
   metadata (KIP-1102). As in Kafka, Metadata requests share the connection of Produce or Fetch requests, unless
   ``metadata.own.connection`` is set.
4. A connection that is unused for ``connections.max.idle.ms`` is closed; a bootstrap connection is closed as soon as
   another node can serve Metadata requests.
5. A broker with incompatible API versions receives no Metadata requests while other brokers answer.
6. No Produce or Fetch request is sent while a Metadata request is due and not yet sent (``NetworkClient.isReady``).
   Kafka holds back all requests; here requests to coordinators and for offsets, which have other connections or are
   rare, don't wait.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import Literal

from kio.schema.errors import ErrorCode

from aftershock.errors import ClientError, ProtocolError, UnsupportedError
from aftershock.workloads.kafka.client.requests import METADATA, metadata_request, metadata_response
from aftershock.workloads.kafka.client.settings import ClientSettings
from aftershock.workloads.kafka.client.tasks import EventListener
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff, Node
from aftershock.workloads.kafka.wire.channel import Channel
from aftershock.workloads.kafka.wire.codec import Versions
from aftershock.workloads.kafka.wire.connection import Address


class NodeConnection:
    """Connection to one node for one purpose; ``error`` is the reason why there is no connection, if any.

    ``on_change`` is called when the connection to the node is made, refused, or found to be lost.
    """

    def __init__(
        self,
        address: Callable[[], Address | None],
        *,
        connect: Callable[[Address], Awaitable[Channel]],
        backoff: Backoff,
        clock_ms: Callable[[], float],
        on_change: Callable[["NodeConnection"], None],
    ) -> None:
        self.used_ms = clock_ms()
        self.error: Exception | None = None
        self._address = address
        self._connect_to = connect
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
        channel = self._channel
        return channel if channel is not None and not channel.closed else None

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes (sent, received) on this and all earlier connections to the node."""
        sent, received = self._bytes
        channel = self._channel
        return (sent, received) if channel is None else (sent + channel.sent_bytes, received + channel.received_bytes)

    def wait_ms(self) -> float:
        if self._connecting is not None or self.open is not None:
            return inf
        return max(0.0, self._retry_at_ms - self._clock_ms())

    def ready(self) -> Channel | None:
        """Return the open connection to the node; without a connection, return None and connect in the background."""
        if (channel := self.open) is not None:
            self.used_ms = self._clock_ms()
            return channel
        self.detect_loss()
        if self.wait_ms() == 0 and self._address() is not None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        return None

    def detect_loss(self) -> None:
        if self._channel is not None and self._channel.closed:
            timed_out = self._channel.timed_out
            self._retire()
            self._failed(
                ConnectionAbortedError("a request timed out")
                if timed_out
                else ConnectionResetError("the connection was lost")
            )
            self._on_change(self)

    async def channel(self) -> Channel:
        channel = self.ready()
        if channel is None and self._connecting is not None:
            await asyncio.wait([self._connecting])
            channel = self.open
        if channel is not None:
            return channel
        if isinstance(self.error, ClientError):
            raise self.error
        raise ConnectionError(f"no connection to {self._address() or 'an unknown node'}: {self.error}")

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
            self._connecting = None
        if (channel := self._retire()) is not None:
            await channel.close()

    def _retire(self) -> Channel | None:
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
            self._channel = await self._connect_to(address)
            self._failures, self.error = 0, None
        except (OSError, ClientError, ValueError, OverflowError) as error:  # the last two: invalid host, invalid port
            self._failed(error)
        finally:
            self._connecting = None
        self._on_change(self)


Purpose = Literal["data", "coordinator", "bootstrap", "metadata"]

_IDLE_CHECK_MS = 1_000


class NetworkClient:
    """Connections and metadata refresh of one client, on one asyncio event loop.

    ``on_change`` is called when a connection is made, refused or lost, when a Metadata request is sent, and when a
    metadata refresh ends.
    ``unsupported`` is the error of the latest metadata refresh if only incompatible brokers answered, otherwise None.
    """

    def __init__(
        self,
        settings: ClientSettings,
        metadata: Metadata,
        clock_ms: Callable[[], float],
        *,
        on_event: EventListener,
        draw: random.Random,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.unsupported: UnsupportedError | None = None
        self._bootstrap = settings.bootstrap_servers
        self.settings = settings
        self._connect_to = partial(
            Channel.open,
            client_id=settings.client_id,
            security=settings.security,
            # a proxy accepts connections to dead brokers; Kafka's client then gives up the first request (ApiVersions)
            connect_timeout_ms=min(settings.socket_connection_setup_timeout_ms, settings.request_timeout_ms),
        )
        self.metadata = metadata
        self._metadata_purpose: Purpose = "metadata" if settings.metadata_own_connection else "data"
        self.clock_ms = clock_ms
        self._on_event = on_event
        self._draw = draw
        self._on_change = on_change
        self._backoff = Backoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms, draw)
        self._links: dict[tuple[int, Purpose], NodeConnection] = {}
        self._coordinator_addresses: dict[int, Address] = {}
        self._refreshing: asyncio.Task[bool] | None = None
        self._refresh_since_ms: float | None = None  # when the first of several failed refreshes was due
        self._closing: set[asyncio.Task[None]] = set()
        self._idle_check_ms = clock_ms() + _IDLE_CHECK_MS
        self._closed = False

    def ready(self, node_id: int, *, before_metadata: bool = False) -> Channel | None:
        """Return the open connection to a node; without a connection, return None and connect in the background.

        Returns None as well while a Metadata request is due, which is sent first, unless ``before_metadata``.
        """
        channel = None if self._closed else self._link(node_id, "data").ready()
        return channel if before_metadata or self.metadata.wait_ms(self.clock_ms()) > 0 else None

    def wait_ms(self, node_id: int, purpose: Purpose = "data") -> float:
        """Return the milliseconds until ``ready`` can connect to a node; infinite while connecting or connected."""
        return self._link(node_id, purpose).wait_ms()

    async def channel(self, node_id: int, purpose: Purpose = "data") -> Channel:
        """Return the connection to a node, once it is open.

        Raises ConnectionError if the broker refuses the connection, if the node is unknown, or during the reconnect
        back-off; ProtocolError or UnsupportedError if the broker is incompatible.
        """
        if self._closed:
            raise ConnectionAbortedError("the client is closed")
        return await self._link(node_id, purpose).channel()

    async def any(self) -> Channel:
        """Return the open connection with the fewest requests in flight; connect to a broker if no connection is open.

        Raises ConnectionError if no broker can be reached, ClientError if only incompatible brokers can be reached.
        """
        if channels := self._open_channels():
            return min(channels, key=lambda channel: (channel.in_flight, self._draw.random()))
        incompatible: ClientError | None = None
        reason: Exception | None = None
        nodes, numbers = list(self.metadata.nodes), range(len(self._bootstrap))
        candidates: list[tuple[int, Purpose]] = [
            *((node_id, self._metadata_purpose) for node_id in self._draw.sample(nodes, len(nodes))),
            *((number, "bootstrap") for number in self._draw.sample(numbers, len(numbers))),
        ]
        for node_id, purpose in candidates:
            try:
                channel = await self.channel(node_id, purpose)
                METADATA.messages(channel.versions)
            except ConnectionError as error:
                reason = error
            except ClientError as error:
                incompatible = error
            else:
                return channel
        raise incompatible or ConnectionError(
            f"no broker answers at {', '.join(map(str, self._bootstrap))} or at the addresses in the metadata; "
            f"last error: {reason}"
        )

    def _open_channels(self) -> list[Channel]:
        nodes, channels = self.metadata.nodes, []
        for (node_id, purpose), link in self._links.items():
            usable = not nodes if purpose == "bootstrap" else purpose == self._metadata_purpose and node_id in nodes
            if usable and (channel := link.open) is not None:
                with suppress(UnsupportedError):
                    METADATA.messages(channel.versions)
                    channels.append(channel)
        return channels

    def _link(self, node_id: int, purpose: Purpose) -> NodeConnection:
        link = self._links.get((node_id, purpose))
        if link is None:
            link = self._links[node_id, purpose] = NodeConnection(
                lambda: self._address(node_id, purpose),
                connect=self._connect_to,
                backoff=self._backoff,
                clock_ms=self.clock_ms,
                on_change=lambda connection: self._changed(node_id, purpose, connection),
            )
        return link

    def _address(self, node_id: int, purpose: Purpose) -> Address | None:
        if purpose == "bootstrap":
            return self._bootstrap[node_id]
        if purpose == "coordinator" and node_id in self._coordinator_addresses:
            return self._coordinator_addresses[node_id]
        node = self.metadata.nodes.get(node_id)
        return Address(node.host, node.port) if node else None

    def set_coordinator(self, coordinator: Node) -> None:
        """Connect to a coordinator at the address in the FindCoordinator response, until that address fails."""
        self._coordinator_addresses[coordinator.node_id] = Address(coordinator.host, coordinator.port)

    def _changed(self, node_id: int, purpose: Purpose, link: NodeConnection) -> None:
        if link.error is not None:
            self.metadata.request_update()
            if isinstance(link.error, ConnectionAbortedError):
                self._on_event("request_timed_out", node_id=node_id)
            self._on_event("node_disconnected", node_id=node_id, why=str(link.error))
            if purpose == "coordinator":
                self._coordinator_addresses.pop(node_id, None)
        self._on_change()

    async def refresh(self) -> bool:
        """Update the metadata by a Metadata request; return False if no broker answered.

        Raises UnsupportedError if only brokers without a compatible Metadata or ApiVersions version answered.
        """
        task = self._refreshing or self._start_refresh()
        await asyncio.wait([task])
        return not task.cancelled() and task.result()

    def refresh_if_due(self) -> float:
        """Refresh the metadata in the background if a refresh is due, and close idle connections.

        Returns the milliseconds until the next metadata refresh, infinite during a refresh.
        """
        now_ms = self.clock_ms()
        for link in self._links.values():
            link.detect_loss()
        if now_ms >= self._idle_check_ms:
            self._idle_check_ms = now_ms + _IDLE_CHECK_MS
            connected = bool(self.metadata.nodes and self._open_channels())
            for (_, purpose), link in self._links.items():
                idle_ms_max = 0 if connected and purpose == "bootstrap" else self.settings.connections_max_idle_ms
                if link.open and not link.open.in_flight and now_ms - link.used_ms > idle_ms_max:
                    self._close(link)
        if self._refreshing is not None or self._closed:
            return inf
        wait_ms = self.metadata.wait_ms(now_ms)
        if wait_ms > 0:
            return wait_ms
        if self._refresh_since_ms is None:
            self._refresh_since_ms = now_ms
        elif now_ms - self._refresh_since_ms > self.settings.metadata_recovery_rebootstrap_trigger_ms:
            self._rebootstrap("no Metadata request succeeded within metadata.recovery.rebootstrap.trigger.ms")
            self._refresh_since_ms = now_ms
        self._start_refresh()
        return inf

    def _close(self, link: NodeConnection) -> None:
        task = asyncio.get_running_loop().create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _rebootstrap(self, reason: str) -> None:
        """Close the connections to all known nodes, and forget the metadata (``NetworkClient.handleRebootstrap``)."""
        for (node_id, purpose), link in self._links.items():
            if purpose in ("data", "metadata") and node_id in self.metadata.nodes:
                self._close(link)
        self.metadata.rebootstrap()
        self._on_event("rebootstrapped", reason=reason)

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
            channel = await self.any()
            request = metadata_request(METADATA.messages(channel.versions), self.metadata.request_topics)
            reply = channel.request(request, timeout_ms=self.settings.request_timeout_ms)
            critical = self.metadata.request_sent()
            self._on_change()  # Produce and Fetch requests have waited for the Metadata request
            answer = (await reply).response
            if getattr(answer, "error_code", 0) == ErrorCode.rebootstrap_required:
                self._rebootstrap(f"the broker at {channel.address} answered REBOOTSTRAP_REQUIRED")
                return False
            response = metadata_response(answer)
            if not response.nodes:
                raise ConnectionError(f"the broker at {channel.address} returned metadata without any broker")  # noqa: TRY301  # handled like a refusal
            self.metadata.update(response, self.clock_ms())
        except Exception as error:  # any error: without `failed` there would be no later refresh
            self.metadata.on_failure(self.clock_ms())
            self._on_event("metadata_failed", why=str(error) or type(error).__name__)
            if isinstance(error, OSError | ProtocolError):
                return False
            raise
        self.unsupported = self._refresh_since_ms = None
        self._on_event("metadata_refreshed", critical=critical)
        return True

    @property
    def versions(self) -> list[Versions]:
        """API versions and features of the nodes that are connected now."""
        return [channel.versions for link in self._links.values() if (channel := link.open) is not None]

    @property
    def traffic(self) -> Mapping[int, tuple[int, int]]:
        """Bytes (sent, received) of this client by node id; -1 stands for bootstrap addresses of unknown nodes."""
        nodes = {Address(node.host, node.port): node.node_id for node in self.metadata.nodes.values()}
        sums: dict[int, tuple[int, int]] = {}
        for (number, purpose), link in self._links.items():
            node_id = nodes.get(self._bootstrap[number], UNKNOWN) if purpose == "bootstrap" else number
            sent, received = sums.get(node_id, (0, 0))
            more_sent, more_received = link.traffic
            sums[node_id] = (sent + more_sent, received + more_received)
        return sums

    async def close(self) -> None:
        self._closed = True
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        await asyncio.gather(*self._closing, *(link.close() for link in self._links.values()))

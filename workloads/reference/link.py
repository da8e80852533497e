"""One connection that comes and goes: open, being made, or waiting until it may be tried again."""

import asyncio
from collections.abc import Callable

from aftershock.errors import ClientError
from aftershock.workloads.rules.backoff import Backoff
from aftershock.workloads.wire.channel import Channel
from aftershock.workloads.wire.connection import Address
from aftershock.workloads.wire.security import Security


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

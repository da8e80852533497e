"""Connections that clients open to each broker, counted by second; a second with many of them is an event."""

import time
from collections import deque
from typing import Any

MANY = 10
"""Connections of a client to a broker in a second from which on they are an event: at the shortest default back-off
(50 ms, Kafka's ``reconnect.backoff.ms``) the first attempts take half a second, and later ones wait longer."""
_EVENTS_MAX = 10_000
_SECOND_NS = 1_000_000_000


class Connections:
    """Counts of the connections whose client is known, since its first request."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], tuple[int, int]] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=_EVENTS_MAX)

    def opened(self, client: str, broker: int) -> None:
        """Count a connection of a client to a broker, now."""
        second = time.monotonic_ns() // _SECOND_NS
        counted, n = self._counts.get((client, broker), (second, 0))
        if counted != second:
            self._tell(client, broker, counted, n)
            n = 0
        self._counts[client, broker] = second, n + 1

    def take(self) -> list[dict[str, Any]]:
        """Return the events of seconds that are over, once, with times by ``time.monotonic_ns()``."""
        now = time.monotonic_ns() // _SECOND_NS
        for (client, broker), (second, n) in list(self._counts.items()):
            if second < now:
                self._tell(client, broker, second, n)
                del self._counts[client, broker]
        events = list(self._events)
        self._events.clear()
        return events

    def _tell(self, client: str, broker: int, second: int, n: int) -> None:
        if n >= MANY:
            line = {"event": "connections_opened", "at_ns": second * _SECOND_NS, "worker": client, "node_id": broker}
            self._events.append(line | {"connections": n})

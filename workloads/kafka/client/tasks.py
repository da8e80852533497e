"""Small asyncio tools that all reference clients share."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from itertools import count
from time import monotonic
from typing import Protocol, TypeVar

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.rules.values import Backoff


class Wake:
    """Event that wakes the one waiting task when called or, if no task waits, the next task that waits."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self._event.set()

    async def wait(self, timeout_ms: float) -> None:
        """Wait until the event is called, for at most ``timeout_ms`` milliseconds (may be infinite)."""
        try:
            async with asyncio.timeout(None if timeout_ms == math.inf else timeout_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._event.clear()


class EventListener(Protocol):
    """Callback for ``events.jsonl`` on the event loop's thread, which must not block and must not raise."""

    def __call__(self, event: str, **details: object) -> None:
        """Record a client's event at the current time; the details of an event are JSON types."""


def monotonic_ms() -> float:
    """Return the event loop's clock in milliseconds, which client rules receive as ``now_ms``."""
    return monotonic() * 1000


BURST = 5
REPEAT_MS = 1_000.0


class RateLimitedListener:
    """Listener that drops repeated events: fetches have no back-off, so events may repeat a thousand times a second.

    An event with the same details is passed on for the first BURST times in a row, then once every REPEAT_MS.
    """

    def __init__(self, on_event: EventListener, clock_ms: Callable[[], float]) -> None:
        self._on_event, self._clock_ms = on_event, clock_ms
        self._credit_until_ms: dict[tuple[object, ...], float] = {}

    def __call__(self, event: str, **details: object) -> None:
        """Pass an event on to the listener unless the event repeats too often; ``details`` have hashable values."""
        key, now_ms = (event, *details.items()), self._clock_ms()
        credit_until_ms = max(now_ms, self._credit_until_ms.get(key, now_ms)) + REPEAT_MS
        if credit_until_ms <= now_ms + BURST * REPEAT_MS:
            self._credit_until_ms[key] = credit_until_ms
            self._on_event(event, **details)


A = TypeVar("A")


async def retry_until_answered(attempt: Callable[[], Awaitable[A]], backoff: Backoff) -> A:
    """Return the result of ``attempt``, retried after a back-off while it raises OSError or ProtocolError."""
    failures = count()
    while True:
        try:
            return await attempt()
        except (OSError, ProtocolError):
            await asyncio.sleep(backoff.ms(next(failures)) / 1000)

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
    """Event with one waiter: a call releases the current waiter or, if nothing waits, the next waiter."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self._event.set()

    async def wait(self, timeout_ms: float) -> None:
        """Wait for a call, at most ``timeout_ms`` (may be infinite)."""
        try:
            async with asyncio.timeout(None if timeout_ms == math.inf else timeout_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._event.clear()


class EventListener(Protocol):
    """Callback for ``events.jsonl``. Called on the loop's thread; must not block and must not raise."""

    def __call__(self, event: str, **details: object) -> None:
        """Record ``event`` at the current time. Details are JSON types."""


def monotonic_ms() -> float:
    """Return milliseconds of the event loop's clock, which the rules receive as ``now_ms``."""
    return monotonic() * 1000


BURST = 5
REPEAT_MS = 1_000.0


class RateLimitedListener:
    """Listener that drops repeated events: a fetch has no back-off, so an event may occur a thousand times a second.

    An event with the same details is passed on BURST times in a row, then once in REPEAT_MS.
    """

    def __init__(self, on_event: EventListener, clock_ms: Callable[[], float]) -> None:
        self._on_event, self._clock_ms = on_event, clock_ms
        self._credit_until_ms: dict[tuple[object, ...], float] = {}

    def __call__(self, event: str, **details: object) -> None:
        """Pass ``event`` on unless it repeats too often; the values of ``details`` are hashable."""
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

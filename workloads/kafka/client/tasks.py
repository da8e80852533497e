"""Asyncio tools of the reference clients (waiting, retries and event listeners)."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from itertools import count
from time import monotonic
from typing import Protocol, TypeVar

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.rules.values import Backoff


class Wake:
    """Event for one waiting task; a call wakes the task or, if the task does not wait, ends its next wait at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self._event.set()

    async def wait(self, timeout_ms: float) -> None:
        try:
            async with asyncio.timeout(None if timeout_ms == math.inf else timeout_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._event.clear()


class EventListener(Protocol):
    """Callback that writes an event of a client to ``events.jsonl``, and that must not block or raise."""

    def __call__(self, event: str, **details: object) -> None: ...


def monotonic_ms() -> float:
    return monotonic() * 1000


BURST = 5
REPEAT_MS = 1_000.0


class RateLimitedListener:
    """Event listener that passes on the first BURST events with the same details, then one every REPEAT_MS.

    Fetches have no back-off, so the same event may be repeated a thousand times a second.
    """

    def __init__(self, on_event: EventListener, clock_ms: Callable[[], float]) -> None:
        self._on_event, self._clock_ms = on_event, clock_ms
        self._credit_until_ms: dict[tuple[object, ...], float] = {}

    def __call__(self, event: str, **details: object) -> None:
        key, now_ms = (event, *details.items()), self._clock_ms()
        credit_until_ms = max(now_ms, self._credit_until_ms.get(key, now_ms)) + REPEAT_MS
        if credit_until_ms <= now_ms + BURST * REPEAT_MS:
            self._credit_until_ms[key] = credit_until_ms
            self._on_event(event, **details)


A = TypeVar("A")


async def retry_until_answered(attempt: Callable[[], Awaitable[A]], backoff: Backoff) -> A:
    """Call ``attempt``, and again after a back-off while it raises OSError or ProtocolError; return its result."""
    failures = count()
    while True:
        try:
            return await attempt()
        except (OSError, ProtocolError):
            await asyncio.sleep(backoff.ms(next(failures)) / 1000)

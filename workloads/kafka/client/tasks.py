"""A sleeper that anything may wake.

How a shell tells what happens to it: an event's name and its details, for ``events.jsonl``.

The clock of the shells: what the rules are told as ``now_ms``.

Tells what repeats itself only so often: for what a broker may make happen with every fetch.

There is no back-off for partitions with errors (``fetcher.py``, rule 4), so what happens with each of them may happen a
thousand times a second. The counters count every time; ``events.jsonl`` shall show that it goes on, not each time.

An event with the same details is told ``BURST`` times in a row, and from then on once in ``REPEAT_MS``, until it has
been rare for a while.

Asking until there is an answer: what a connection or a broken answer costs is a back-off, never the question.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from itertools import count
from time import monotonic
from typing import Protocol, TypeVar

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.rules.values import Backoff


class Wake:
    """Calling it wakes whoever waits, or the next who will: nothing that happened before the wait is missed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __call__(self) -> None:
        """Wake."""
        self._event.set()

    async def wait(self, timeout_ms: float) -> None:
        """Until woken, at most ``timeout_ms`` (infinite: for as long as it takes). For one waiter at a time."""
        try:
            async with asyncio.timeout(None if timeout_ms == math.inf else timeout_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._event.clear()


class Tell(Protocol):
    """Called on the loop's thread; must not wait and must not raise."""

    def __call__(self, event: str, **details: object) -> None:
        """``event`` happened now. Details are JSON's own types."""


def monotonic_ms() -> float:
    """Milliseconds of the monotonic clock, which is also the event loop's."""
    return monotonic() * 1000


BURST = 5
REPEAT_MS = 1_000.0


class Sparing:
    """A ``Tell`` that leaves out what it has told enough."""

    def __init__(self, tell: Tell, clock_ms: Callable[[], float]) -> None:
        self._tell, self._clock_ms = tell, clock_ms
        self._paid_until_ms: dict[tuple[object, ...], float] = {}

    def __call__(self, event: str, **details: object) -> None:
        """``event`` happened now; the values of ``details`` are hashable."""
        said, now_ms = (event, *details.items()), self._clock_ms()
        paid_until_ms = max(now_ms, self._paid_until_ms.get(said, now_ms)) + REPEAT_MS
        if paid_until_ms <= now_ms + BURST * REPEAT_MS:
            self._paid_until_ms[said] = paid_until_ms
            self._tell(event, **details)


A = TypeVar("A")


async def until_answered(attempt: Callable[[], Awaitable[A]], backoff: Backoff) -> A:
    """What ``attempt`` gives, tried again after a back-off for as long as it raises OSError or ProtocolError."""
    failures = count()
    while True:
        try:
            return await attempt()
        except (OSError, ProtocolError):
            await asyncio.sleep(backoff.ms(next(failures)) / 1000)

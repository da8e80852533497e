"""Rate-limited events, and the wake-up of a waiting task."""

import asyncio
import math

from aftershock.workloads.kafka.client.tasks import BURST, REPEAT_MS, RateLimitedListener, Wake


class Ear:
    """A listener with a clock."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.heard: list[tuple[str, dict[str, object]]] = []
        self.tell = RateLimitedListener(self._hear, lambda: self.now_ms)

    def _hear(self, event: str, **details: object) -> None:
        self.heard.append((event, details))


def test_repeated_events_are_rate_limited() -> None:
    """A thousand equal events a second for ten seconds: a bounded number is reported, until the end."""
    ear = Ear()
    for ear.now_ms in range(int(10 * REPEAT_MS)):
        ear.tell("switched", partition=0, node_id=2)
    assert BURST + 9 == len(ear.heard)


def test_different_events_are_not_limited() -> None:
    """Another event name, partition or reason is a different event."""
    ear = Ear()
    said = [
        ("switched", {"partition": 0}),
        ("left", {"partition": 0}),
        ("left", {"partition": 1}),
        ("left", {"why": 3}),
    ]
    for _ in range(BURST):
        for event, details in said:
            ear.tell(event, **details)
    assert said * BURST == ear.heard


def test_the_limit_resets_after_a_pause() -> None:
    ear = Ear()
    for _ in range(100):
        ear.tell("switched")
    ear.now_ms = BURST * REPEAT_MS
    for _ in range(100):
        ear.tell("switched")
    assert 2 * BURST == len(ear.heard)


async def test_a_wake_before_the_wait_ends_it() -> None:
    """A wake between two waits ends the next wait, once."""
    wake = Wake()
    wake()
    await wake.wait(math.inf)
    waiting = asyncio.create_task(wake.wait(math.inf))
    await asyncio.sleep(0)
    assert not waiting.done()
    wake()
    await waiting


async def test_a_timeout_ends_the_wait_without_error() -> None:
    await Wake().wait(1)

"""What repeats itself is told only so often; what is new always is."""

import asyncio
import math

from aftershock.workloads.kafka.client.tasks import BURST, REPEAT_MS, RateLimitedListener, Wake


class Ear:
    """Who is told, and the clock."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.heard: list[tuple[str, dict[str, object]]] = []
        self.tell = RateLimitedListener(self._hear, lambda: self.now_ms)

    def _hear(self, event: str, **details: object) -> None:
        self.heard.append((event, details))


def test_a_flood_is_told_a_few_times_and_then_once_a_while() -> None:
    """A thousand times a second for ten seconds: bounded, and seen to go on."""
    ear = Ear()
    for ear.now_ms in range(int(10 * REPEAT_MS)):
        ear.tell("switched", partition=0, node_id=2)
    assert BURST + 9 == len(ear.heard)


def test_what_differs_in_anything_is_news() -> None:
    """Another event, another partition, another reason: none of them is left out for another's sake."""
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


def test_after_a_quiet_while_everything_is_told_again() -> None:
    """The flood of long ago is forgiven."""
    ear = Ear()
    for _ in range(100):
        ear.tell("switched")
    ear.now_ms = BURST * REPEAT_MS
    for _ in range(100):
        ear.tell("switched")
    assert 2 * BURST == len(ear.heard)


async def test_what_happened_before_the_wait_is_not_missed() -> None:
    """A wake between two waits ends the next one; once."""
    wake = Wake()
    wake()
    await wake.wait(math.inf)
    waiting = asyncio.create_task(wake.wait(math.inf))
    await asyncio.sleep(0)
    assert not waiting.done()
    wake()
    await waiting


async def test_the_time_out_ends_a_wait_quietly() -> None:
    """Nobody woke: the wait returns all the same, and raises nothing."""
    await Wake().wait(1)

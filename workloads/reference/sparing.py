"""Tells what repeats itself only so often: for what a broker may make happen with every fetch.

There is no back-off for partitions with errors (``fetcher.py``, rule 4), so what happens with each of them may happen a
thousand times a second. The counters count every time; ``events.jsonl`` shall show that it goes on, not each time.

An event with the same details is told ``BURST`` times in a row, and from then on once in ``REPEAT_MS``, until it has
been rare for a while.
"""

from collections.abc import Callable

from aftershock.workloads.reference.tell import Tell

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

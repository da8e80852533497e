"""How long to wait before trying again: Kafka's exponential back-off, for retries, refreshes and reconnects alike.

1. Attempt ``n``, from 0, waits ``initial_ms * 2**n``, and never more than ``max_ms``.
2. The wait is spread by a factor between 0.8 and 1.2, so that clients which failed together don't come back together.
   What the spread brings above ``max_ms`` is cut off.
3. With ``max_ms`` at or below ``initial_ms`` the wait is ``max_ms``, always the same.

Every call draws anew, as Kafka's clients do: who asks twice gets two answers. Source: KIP-580;
``common/utils/ExponentialBackoff.java``.
"""

from dataclasses import dataclass
from math import log2
from random import Random

SPREAD = 0.2
"""``RETRY_BACKOFF_JITTER`` of ``CommonClientConfigs``: the share of the wait by which a draw may differ."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from ``initial_ms`` to ``max_ms``; ``random`` is the only source of their spread."""

    initial_ms: float
    max_ms: float
    random: Random

    def ms(self, attempt: int) -> float:
        """Milliseconds to wait before attempt ``attempt`` + 1; a new draw each time."""
        if self.max_ms <= self.initial_ms:
            return self.max_ms
        # in doublings and not in milliseconds, so that a large attempt can't overflow
        doublings = min(attempt, log2(self.max_ms / max(self.initial_ms, 1.0)))
        spread = self.random.uniform(1 - SPREAD, 1 + SPREAD)
        return min(self.initial_ms * 2**doublings * spread, self.max_ms)

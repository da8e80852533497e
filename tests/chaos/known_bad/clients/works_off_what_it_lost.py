"""Goes on with the records that it had received from partitions that were revoked since.

The records wait for a pool of workers, which a rebalance does not clear (librdkafka#4108 tells of batches with messages
of revoked partitions).
"""

import time
from collections import deque

from aftershock.tests.chaos.known_bad.catalogue import OF_TWO_OWNERS, KnownBad, put
from aftershock.workloads.adapters import confluent

QUEUE_S = 1.0


class _Queued(confluent.Consumer):
    """Consumer whose records are processed ``QUEUE_S`` after they were received."""

    def __init__(self, *args):
        super().__init__(*args)
        self._queue = deque()

    def poll(self, timeout):
        message = super().poll(min(timeout, QUEUE_S / 10))
        if message is not None:
            self._queue.append((time.monotonic() + QUEUE_S, message))
        return self._queue.popleft()[1] if self._queue and self._queue[0][0] <= time.monotonic() else None


def plant() -> None:
    put(confluent, "Consumer", _Queued)


BAD = KnownBad(
    "members leave and return",
    "integrity/stale_assignment",
    "deliveries",
    plant,
    OF_TWO_OWNERS,
)

"""The run's clock: integer microseconds since the run's origin, the same in every process of the host.

``time.monotonic_ns`` reads Linux's CLOCK_MONOTONIC, which all processes share, so a row written by one process can be
compared with a row written by another.
"""

import time
from collections.abc import Callable

Clock = Callable[[], int]


def run_clock(origin_ns: int) -> Clock:
    """A function that tells the microseconds since ``origin_ns`` (a ``time.monotonic_ns()`` taken once for the run)."""
    monotonic_ns = time.monotonic_ns

    def now_us() -> int:
        return (monotonic_ns() - origin_ns) // 1000

    return now_us

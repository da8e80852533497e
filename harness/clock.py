"""The run's clock: microseconds since the run's origin on the host's monotonic clock, the same in all processes."""

import asyncio
import time
from dataclasses import dataclass

from aftershock.workloads.clock import run_clock


@dataclass(frozen=True)
class RunClock:
    """``origin_ns`` is ``time.monotonic_ns()`` at the start of the run."""

    origin_ns: int

    @classmethod
    def starting_now(cls) -> "RunClock":
        """A clock whose zero is this moment."""
        return cls(time.monotonic_ns())

    def now_us(self) -> int:
        """Microseconds since the origin."""
        return run_clock(self.origin_ns)()

    async def sleep_until_us(self, t_us: int) -> None:
        """Return at ``t_us``, or at once if that has passed."""
        await asyncio.sleep(max(0, t_us - self.now_us()) / 1e6)

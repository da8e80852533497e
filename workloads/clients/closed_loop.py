"""A closed loop: so many are kept under way, and the next is sent when one of them has ended.

For capacity alone. What is sent is intended when it is sent, so its latency is its service time: a system that stalls
stalls the load as well, and nothing corrects for that (coordinated omission). All else is as in ``sending.py``.
"""

from collections.abc import Callable
from typing import NoReturn

from aftershock.workloads.assignment import CommitAssignment
from aftershock.workloads.clients.sending import LOOK_US, Sending
from aftershock.workloads.clock import Clock
from aftershock.workloads.load import US_PER_MS
from aftershock.workloads.orders import Go
from aftershock.workloads.reference.wake import Wake
from aftershock.workloads.status import Status


class ClosedLoop(Sending):
    """``in_flight`` at a time, from ``go`` until ``stop``. ``freed`` is called when another may be sent.

    ``begin`` is for when ``early_us`` has just said that one is due.
    """

    def __init__(self, told: CommitAssignment, clock: Clock, in_flight: int) -> None:
        super().__init__(told, clock)
        self._in_flight, self.freed = in_flight, Wake()
        self._start_us: int | None = None
        self._stop_us: int | None = None
        self._due_us: dict[int, int] = {}
        self._now_us = 0

    def _begins(self, order: Go) -> None:
        self._start_us, self._stop_us = order.start_us, order.stop_us

    def _ends(self, at_us: int) -> None:
        self._stop_us = at_us

    def early_us(self) -> int | None:
        """0 or less while another may be sent; None while none is to come, or so many are under way."""
        self._now_us = now_us = self._clock()
        if self._end is None and self._stop_us is not None and now_us >= self._stop_us:
            self._end = self._next
        if self._start_us is None or self._end is not None or len(self._due_us) == self._in_flight:
            return None
        return self._start_us - now_us

    def begin(self, size_bytes: int) -> tuple[int, int]:
        """The next one is handed to the library now; it was due when ``early_us`` found room for it, before the end."""
        self._due_us[self._next] = self._now_us
        return super().begin(size_bytes)

    def ended(self, seq: int, status: Status, code: int, **told: int) -> None:
        """The final status of ``seq``, now: there is room for another."""
        super().ended(seq, status, code, **told)
        del self._due_us[seq]
        self.freed()

    def _intended_us(self, seq: int) -> int:
        return self._due_us[seq]


async def keep_full(loop: ClosedLoop, send: Callable[[], None]) -> NoReturn:
    """Call ``send`` whenever there is room; for senders that live on an event loop."""
    while True:
        early_us = loop.early_us()
        if early_us is not None and early_us <= 0:
            send()
        else:
            loop.idle()
            await loop.freed.wait(min(LOOK_US, early_us or LOOK_US) / US_PER_MS)

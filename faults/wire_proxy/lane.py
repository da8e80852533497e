"""One direction's way out: pieces leave in their order, each not before its time.

A delay holds up what follows on the same connection, as a slow network or a slow request handler does: Kafka's answers
come in the order of its requests, so one can't be late alone. Delayed pieces wait side by side, so each is late by its
own delay; those sent ``serially`` wait one after the other.
"""

import asyncio
from collections import deque
from collections.abc import Callable

Piece = bytes | memoryview
QUEUED_BYTES_MAX = 1 << 20
"""With more than this waiting, whoever sends is to be held up."""


class Lane:
    """Writes to one socket. ``write`` and ``close`` are its; ``crowded`` is told when too much waits, and when not."""

    def __init__(
        self, write: Callable[[Piece], None], close: Callable[[], None], crowded: Callable[[bool], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._write = write
        self._close = close
        self._crowded = crowded
        self._queue: deque[tuple[float, Piece | None]] = deque()
        self._queued_bytes = 0
        self._serial_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.muted = False
        """What is sent from now on is thrown away."""

    def send(self, piece: Piece, delay_ms: int = 0) -> None:
        """Let it leave so much later, behind what waits already."""
        if self.muted:
            return
        if not delay_ms and not self._queue:
            self._write(piece)
            return
        self._put(piece, self._loop.time() + delay_ms / 1000)

    def send_serially(self, piece: Piece, delay_ms: int) -> None:
        """Let it leave so much later than the last one that was sent this way, or than now."""
        if not self.muted:
            self._serial_until_s = max(self._loop.time(), self._serial_until_s) + delay_ms / 1000
            self._put(piece, self._serial_until_s)

    def finish(self) -> None:
        """Close when all that waits has left; what is sent after this is thrown away."""
        self.muted = True
        if self._queue:
            self._queue.append((0.0, None))
        else:
            self._close()

    def abandon(self) -> None:
        """Nothing leaves any more."""
        self.muted = True
        self._queue.clear()
        if self._timer:
            self._timer.cancel()

    def _put(self, piece: Piece, due_s: float) -> None:
        self._queue.append((due_s, bytes(piece)))
        self._queued_bytes += len(piece)
        if self._queued_bytes > QUEUED_BYTES_MAX:
            self._crowded(True)
        if self._timer is None:
            self._timer = self._loop.call_at(self._queue[0][0], self._release)

    def _release(self) -> None:
        """Write all that is due; the one in front decides when the next look is."""
        self._timer = None
        while self._queue and self._queue[0][0] <= self._loop.time():
            _, piece = self._queue.popleft()
            if piece is None:
                self._close()
                return
            self._queued_bytes -= len(piece)
            self._write(piece)
        if self._queued_bytes <= QUEUED_BYTES_MAX:
            self._crowded(False)
        if self._queue:
            self._timer = self._loop.call_at(self._queue[0][0], self._release)

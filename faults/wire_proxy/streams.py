"""Byte streams of one connection: splitting into frames on the way in, delays on the way out.

``FrameSplitter`` examines each frame once, as soon as its header is complete. Most frames are passed on without being
stored: consecutive frames leave in the same piece of data in which they arrived. Only an incomplete header, or a frame
that a rule needs whole, is kept, and the memory for it grows with the received bytes, never with the announced length.

``DelayQueue`` sends pieces in their order, each not before its time. A delay holds up what follows on the same
connection, as a slow network or a slow request handler does: Kafka's responses come in the order of its requests, so a
single response can't be late alone. Delayed pieces wait side by side, so each is late by its own delay; those sent
serially wait one after the other.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.wire.codec import FRAME_BYTES_MAX, PREFIX, checked_length

T = TypeVar("T")
Piece = bytes | memoryview


class FrameSplitter(Generic[T]):
    """One direction of a connection.

    Args:
        judge: called with the available bytes and the offset of a message in them. It returns None for a frame to pass
            on, else a value that ``take`` gets together with the whole frame. If the message's header is incomplete it
            raises IndexError or struct.error without side effects, and is called again with more bytes.
        take: gets each frame that is needed whole, with its length prefix.
        pass_on: gets everything else.
    """

    def __init__(
        self,
        judge: Callable[[Piece, int], T | None],
        take: Callable[[Piece, T], None],
        pass_on: Callable[[Piece], None],
    ) -> None:
        self._judge = judge
        self._take = take
        self._pass_on = pass_on
        self._left = 0  # remaining bytes of a frame that is being passed on
        self._kept: list[Piece] = []
        self._kept_bytes = 0
        self._needed = 0  # minimum number of kept bytes to continue with
        self._wanted: T | None = None  # result of ``judge`` for the frame at the start of the kept bytes

    def feed(self, data: bytes) -> None:
        """Process the frames that ``data`` completes. ProtocolError: the connection must be closed."""
        piece: Piece = data
        if self._kept:
            self._keep(data)
            if self._kept_bytes < self._needed:
                return
            piece = b"".join(self._kept)
            self._kept, self._kept_bytes = [], 0
        self._cut(piece)

    def _cut(self, piece: Piece) -> None:
        begin, at, size = 0, min(self._left, len(piece)), len(piece)
        self._left -= at
        while at < size:
            end = self._end_of_frame(piece, at)
            if self._wanted is None:
                if end is None or not self._judged(piece, at, end):
                    break
                if self._wanted is None:
                    self._left = max(0, end - size)
                    at = min(end, size)
                    continue
            if end is None or end > size:
                self._needed = (end or size + 1) - at
                break
            self._emit(piece, begin, at)
            wanted, self._wanted = self._wanted, None
            self._take(memoryview(piece)[at:end], wanted)
            begin = at = end
        self._emit(piece, begin, at)
        if at < size:
            self._keep(memoryview(piece)[at:])

    def _end_of_frame(self, piece: Piece, at: int) -> int | None:
        """Return the frame's end, which may be beyond the available bytes; None while its length is unknown."""
        if len(piece) - at < PREFIX.size:
            self._needed = PREFIX.size
            return None
        return at + PREFIX.size + checked_length(piece, at, FRAME_BYTES_MAX)

    def _judged(self, piece: Piece, at: int, end: int) -> bool:
        """Return True if the header was complete."""
        try:
            self._wanted = self._judge(piece, at + PREFIX.size)
        except (IndexError, struct.error):
            if end <= len(piece):
                raise ProtocolError(f"a message of {end - at} bytes ends within its header") from None
            self._needed = len(piece) - at + 1
            return False
        return True

    def _emit(self, piece: Piece, begin: int, end: int) -> None:
        if begin < end:
            self._pass_on(piece if end - begin == len(piece) else memoryview(piece)[begin:end])

    def _keep(self, piece: Piece) -> None:
        self._kept.append(piece)
        self._kept_bytes += len(piece)


TimedPiece = bytes | memoryview
QUEUED_BYTES_MAX = 1 << 20
"""While more bytes than this wait to be written, no data is read from the sender."""


class DelayQueue:
    """Delayed writes to one socket.

    ``write`` and ``close`` are methods of the socket; ``crowded`` is called with True when too many bytes wait to be
    written, and with False when that is over.
    """

    def __init__(
        self, write: Callable[[TimedPiece], None], close: Callable[[], None], crowded: Callable[[bool], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._write = write
        self._close = close
        self._crowded = crowded
        self._queue: deque[tuple[float, TimedPiece | None]] = deque()
        self._queued_bytes = 0
        self._serial_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.muted = False
        """True if everything sent from now on is discarded."""

    def send(self, piece: TimedPiece, delay_ms: int = 0) -> None:
        """Send a piece after the delay, behind what already waits."""
        if self.muted:
            return
        if not delay_ms and not self._queue:
            self._write(piece)
            return
        self._put(piece, self._loop.time() + delay_ms / 1000)

    def send_serially(self, piece: TimedPiece, delay_ms: int) -> None:
        """Send a piece one delay after the previous serial piece, or after now if that is later."""
        if not self.muted:
            self._serial_until_s = max(self._loop.time(), self._serial_until_s) + delay_ms / 1000
            self._put(piece, self._serial_until_s)

    def finish(self) -> None:
        """Close when everything waiting has been sent; later pieces are discarded."""
        self.muted = True
        if self._queue:
            self._queue.append((0.0, None))
        else:
            self._close()

    def abandon(self) -> None:
        """Discard everything waiting, and all later pieces."""
        self.muted = True
        self._queue.clear()
        if self._timer:
            self._timer.cancel()

    def _put(self, piece: TimedPiece, due_s: float) -> None:
        self._queue.append((due_s, bytes(piece)))
        self._queued_bytes += len(piece)
        if self._queued_bytes > QUEUED_BYTES_MAX:
            self._crowded(True)
        if self._timer is None:
            self._timer = self._loop.call_at(self._queue[0][0], self._release)

    def _release(self) -> None:
        """Write all pieces that are due, and set the timer for the next one."""
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

"""Byte streams of one connection, which are split into frames on the way in, and delayed on the way out."""

import asyncio
import math
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.wire.codec import FRAME_BYTES_MAX, PREFIX, checked_length

T = TypeVar("T")
Piece = bytes | memoryview


class FrameSplitter(Generic[T]):
    """Splitter of one direction of a connection into frames (Kafka messages with length prefix).

    Most frames are passed on without being stored. An incomplete header, or a frame to which a rule applies, is stored
    in memory that grows with the received bytes, never with the announced length of the frame.

    The callback ``judge`` gets bytes and the offset of a frame's header; it returns None to pass the frame on
    unchanged, or a value for the callback ``take``. If the frame's header is incomplete, ``judge`` raises IndexError or
    struct.error, and is called again with more bytes. The callback ``take`` gets a whole frame with its length prefix;
    ``pass_on`` gets the bytes of all other frames.
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
        self._bytes_to_pass = 0  # remaining bytes of a frame that is being passed on
        self._stored = bytearray()
        self._stored_bytes_min = 0  # number of stored bytes to continue with
        self._verdict: T | None = None  # result of ``judge`` for the frame at the start of the stored bytes

    def feed(self, data: bytes) -> None:
        """Process data from the socket; raise ProtocolError for data that can't be Kafka messages."""
        piece: Piece = data
        if self._stored:
            self._stored += data
            if len(self._stored) < self._stored_bytes_min:
                return
            piece, self._stored = memoryview(self._stored), bytearray()
        size = len(piece)
        begin, at = 0, min(self._bytes_to_pass, size)  # bytes from begin to at can be passed on
        self._bytes_to_pass -= at
        while at < size:
            if size - at < PREFIX.size:
                self._stored_bytes_min = PREFIX.size
                break
            end = at + PREFIX.size + checked_length(piece, at, FRAME_BYTES_MAX)
            if self._verdict is None:
                try:
                    self._verdict = self._judge(piece, at + PREFIX.size)
                except (IndexError, struct.error):
                    if end <= size:
                        raise ProtocolError(f"a message of {end - at} bytes ends within its header") from None
                    self._stored_bytes_min = size - at + 1
                    break
            if self._verdict is None:
                self._bytes_to_pass = max(0, end - size)
                at = min(end, size)
            elif end > size:
                self._stored_bytes_min = end - at
                break
            else:
                self._pass_range(piece, begin, at)
                verdict, self._verdict = self._verdict, None
                self._take(memoryview(piece)[at:end], verdict)
                begin = at = end
        self._pass_range(piece, begin, at)
        self._stored += memoryview(piece)[at:]

    def _pass_range(self, piece: Piece, begin: int, end: int) -> None:
        if begin < end:
            self._pass_on(piece if end - begin == len(piece) else memoryview(piece)[begin:end])


QUEUED_BYTES_MAX = 1 << 20
"""Limit of the queued bytes for a socket; above the limit, no data is read from the sender."""


@dataclass
class _Entry:
    """Queued piece of data, due at a time of the event loop; None as piece closes the socket."""

    due_s: float
    piece: bytes | None


class DelayQueue:
    """Queue of delayed writes to one socket, which sends pieces of data in their order.

    A delayed piece holds up all later pieces, as a slow network or a slow request handler does, because Kafka's
    responses have the order of the requests. The callback ``crowded`` gets True when more than ``QUEUED_BYTES_MAX``
    bytes are queued, and False when no more than these are queued.
    """

    def __init__(
        self, write: Callable[[Piece], None], close: Callable[[], None], crowded: Callable[[bool], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._write = write
        self._close = close
        self._crowded = crowded
        self._queue: deque[_Entry] = deque()
        self._queued_bytes = 0
        self._serial_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.muted = False
        """True if the queue discards all later pieces of data."""

    def send(self, piece: Piece, delay_ms: int = 0, *, serial: bool = False) -> None:
        """Send a piece of data after the delay, and after all queued pieces.

        With ``serial``, the delay counts from the time at which the previous piece with ``serial`` is sent.
        """
        if self.muted:
            return
        if not delay_ms and not self._queue:
            self._write(piece)
            return
        due_s = self._loop.time() + delay_ms / 1000
        if serial:
            due_s = self._serial_until_s = max(due_s, self._serial_until_s + delay_ms / 1000)
        self._append(_Entry(due_s, bytes(piece)))

    def hold(self, piece: Piece) -> Callable[[], None]:
        """Queue a piece of data, which is sent when the returned function is called; later pieces wait behind it."""
        entry = _Entry(math.inf, bytes(piece))

        def release() -> None:
            entry.due_s = 0.0
            self._release()

        self._append(entry)
        return release

    def _append(self, entry: "_Entry") -> None:
        self._queue.append(entry)
        self._queued_bytes += len(entry.piece or b"")
        if self._queued_bytes > QUEUED_BYTES_MAX:
            self._crowded(True)
        self._wait()

    def finish(self) -> None:
        """Close the socket when all queued pieces of data have been sent; discard later pieces."""
        self.muted = True
        if self._queue:
            self._queue.append(_Entry(0.0, None))
        else:
            self._close()

    def abandon(self) -> None:
        """Discard all queued pieces of data, and all later pieces."""
        self.muted = True
        self._queue.clear()
        if self._timer:
            self._timer.cancel()

    def _release(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        while self._queue and self._queue[0].due_s <= self._loop.time():
            piece = self._queue.popleft().piece
            if piece is None:
                self._close()
                return
            self._queued_bytes -= len(piece)
            self._write(piece)
        if self._queued_bytes <= QUEUED_BYTES_MAX:
            self._crowded(False)
        self._wait()

    def _wait(self) -> None:
        if self._timer is None and self._queue and self._queue[0].due_s < math.inf:
            self._timer = self._loop.call_at(self._queue[0].due_s, self._release)

"""Streams of the wire proxy: delay queues on a simulated clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aftershock.faults.wire_proxy.streams import QUEUED_BYTES_MAX, DelayQueue

if TYPE_CHECKING:
    from collections.abc import Callable


class Loop:
    """The part of an event loop that a delay queue uses, with a simulated clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, call: Callable[[], None]) -> Any:
        self.timers.append((when_s, call))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def run(self) -> None:
        """Advance the time until no timer is left."""
        while self.timers:
            self.now_s, call = self.timers.pop(0)
            call()


class Out:
    """A delay queue, with the bytes that left the queue and their times."""

    def __init__(self, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("asyncio.get_running_loop", lambda: loop)
        self.left: list[tuple[int, bytes]] = []
        self.crowded: list[bool] = []
        self.lane = DelayQueue(
            lambda piece: self.left.append((round(loop.now_s * 1000), bytes(piece))),
            lambda: self.left.append((round(loop.now_s * 1000), b"end")),
            self.crowded.append,
        )


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def out(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Out:
    return Out(loop, monkeypatch)


def test_delays_pass_side_by_side(loop: Loop, out: Out) -> None:
    """Three messages that arrive together have one delay; later messages do not overtake them."""
    for piece in (b"a", b"b", b"c"):
        out.lane.send(piece, 100)
    out.lane.send(b"d")
    loop.run()
    assert [(100, b"a"), (100, b"b"), (100, b"c"), (100, b"d")] == out.left


def test_serial_delays_add_up(loop: Loop, out: Out) -> None:
    """Each delay starts at the end of the previous one, or at once if the queue is empty."""
    for piece in (b"a", b"b", b"c"):
        out.lane.send(piece, 100, serial=True)
    loop.run()
    loop.now_s = 1.0
    out.lane.send(b"d", 100, serial=True)
    loop.run()
    assert [(100, b"a"), (200, b"b"), (300, b"c"), (1100, b"d")] == out.left


def test_the_end_comes_last(loop: Loop, out: Out) -> None:
    """Waiting bytes leave before the socket is closed, and none leave afterwards."""
    out.lane.send(b"a", 100)
    out.lane.finish()
    out.lane.send(b"b")
    loop.run()
    assert [(100, b"a"), (100, b"end")] == out.left


def test_nothing_waits_without_a_delay(out: Out) -> None:
    """Data is written at once, and the end is an end at once."""
    out.lane.send(b"a")
    out.lane.finish()
    assert [(0, b"a"), (0, b"end")] == out.left


def test_a_full_queue_is_signalled(loop: Loop, out: Out) -> None:
    """The sender gets a signal when more bytes wait than the limit, and when fewer do."""
    out.lane.send(bytes(QUEUED_BYTES_MAX + 1), 100)
    assert [True] == out.crowded
    loop.run()
    assert [True, False] == out.crowded


def test_a_held_piece_holds_up_what_follows(loop: Loop, out: Out) -> None:
    """Neither later data nor the end passes it, however long it is held; data before it does."""
    out.lane.send(b"a", 100)
    release = out.lane.hold(b"b")
    out.lane.send(b"c", 50)
    out.lane.finish()
    loop.run()
    assert [(100, b"a")] == out.left
    loop.now_s = 7.0
    release()
    loop.run()
    assert [(100, b"a"), (7000, b"b"), (7000, b"c"), (7000, b"end")] == out.left


def test_a_released_piece_waits_for_what_is_before_it(loop: Loop, out: Out) -> None:
    out.lane.send(b"a", 100)
    first, second = out.lane.hold(b"b"), out.lane.hold(b"c")
    second()
    loop.run()
    assert [(100, b"a")] == out.left
    first()
    assert [b"a", b"b", b"c"] == [piece for _, piece in out.left]
    first()
    assert 3 == len(out.left)


def test_a_held_piece_of_an_abandoned_queue_is_never_written(out: Out) -> None:
    release = out.lane.hold(b"a")
    out.lane.abandon()
    release()
    assert [] == out.left


def test_an_abandoned_queue_writes_nothing(loop: Loop, out: Out) -> None:
    """The queue is dropped with its timer."""
    out.lane.send(b"a", 100)
    out.lane.abandon()
    loop.run()
    assert [] == out.left

"""What leaves when, on a clock that a test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aftershock.faults.wire_proxy.streams import QUEUED_BYTES_MAX, DelayQueue

if TYPE_CHECKING:
    from collections.abc import Callable


class Loop:
    """As much of an event loop as a lane needs."""

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
        """Let time pass until nothing waits any more."""
        while self.timers:
            self.now_s, call = self.timers.pop(0)
            call()


class Out:
    """A lane, and what has left it at which time."""

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
    """Three that came together are late by one delay; what follows isn't let past them."""
    for piece in (b"a", b"b", b"c"):
        out.lane.send(piece, 100)
    out.lane.send(b"d")
    loop.run()
    assert [(100, b"a"), (100, b"b"), (100, b"c"), (100, b"d")] == out.left


def test_serial_delays_add_up(loop: Loop, out: Out) -> None:
    """Each begins when the one before is over, or at once if none is."""
    for piece in (b"a", b"b", b"c"):
        out.lane.send(piece, 100, serial=True)
    loop.run()
    loop.now_s = 1.0
    out.lane.send(b"d", 100, serial=True)
    loop.run()
    assert [(100, b"a"), (200, b"b"), (300, b"c"), (1100, b"d")] == out.left


def test_the_end_comes_last(loop: Loop, out: Out) -> None:
    """What waits leaves before the socket is closed, and nothing after it."""
    out.lane.send(b"a", 100)
    out.lane.finish()
    out.lane.send(b"b")
    loop.run()
    assert [(100, b"a"), (100, b"end")] == out.left


def test_nothing_waits_without_a_delay(out: Out) -> None:
    """It is written at once, and the end is an end at once."""
    out.lane.send(b"a")
    out.lane.finish()
    assert [(0, b"a"), (0, b"end")] == out.left


def test_too_much_is_said_and_taken_back(loop: Loop, out: Out) -> None:
    """Whoever sends is told when more than the limit waits, and when it doesn't any more."""
    out.lane.send(bytes(QUEUED_BYTES_MAX + 1), 100)
    assert [True] == out.crowded
    loop.run()
    assert [True, False] == out.crowded


def test_what_is_abandoned_never_leaves(loop: Loop, out: Out) -> None:
    """The queue is dropped with its timer."""
    out.lane.send(b"a", 100)
    out.lane.abandon()
    loop.run()
    assert [] == out.left

"""Splitting a stream into frames: no bytes are lost, unneeded frames are not buffered, and lengths are checked."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.errors import ProtocolError
from aftershock.faults.wire_proxy.messages import read_head
from aftershock.faults.wire_proxy.streams import FrameSplitter

if TYPE_CHECKING:
    from collections.abc import Sequence


HEAD = struct.Struct(">ib")  # a correlation id, and True if the frame is requested


class Taken:
    """The output of a splitter in order; ``frames`` has the requested frames."""

    def __init__(self) -> None:
        self.out = b""
        self.frames: list[bytes] = []
        self.judged = 0
        self.cutter: FrameSplitter[str] = FrameSplitter(self.judge, self.take, self.pass_on)

    def judge(self, data: bytes | memoryview, at: int) -> str | None:
        _, wanted = HEAD.unpack_from(data, at)
        self.judged += 1
        return "wanted" if wanted else None

    def take(self, frame: bytes | memoryview, _: str) -> None:
        self.frames.append(bytes(frame))
        self.out += frame

    def pass_on(self, piece: bytes | memoryview) -> None:
        self.out += piece


def framed(body: bytes, wanted: bool) -> bytes:
    message = HEAD.pack(7, wanted) + body
    return struct.pack(">i", len(message)) + message


FRAMES = st.lists(st.tuples(st.binary(max_size=60), st.booleans()), max_size=12)


@given(FRAMES, st.lists(st.integers(1, 40), min_size=1, max_size=200))
def test_any_pieces_give_the_same_frames(frames: Sequence[tuple[bytes, bool]], sizes: Sequence[int]) -> None:
    """Every byte comes out once and in order, every requested frame whole, and every frame is judged once."""
    stream = b"".join(framed(*frame) for frame in frames)
    taken, at = Taken(), 0
    for turn in range(len(stream)):
        if at >= len(stream):
            break
        size = sizes[turn % len(sizes)]
        taken.cutter.feed(stream[at : at + size])
        at += size
    assert stream == taken.out
    assert [framed(*frame) for frame in frames if frame[1]] == taken.frames
    assert len(frames) == taken.judged


def test_other_frames_are_not_buffered() -> None:
    """Each piece of a large frame leaves at once, whatever the frame's length is."""
    taken = Taken()
    taken.cutter.feed(struct.pack(">i", 50_000_000) + HEAD.pack(7, False) + b"first")
    assert taken.out.endswith(b"first")
    taken.cutter.feed(b"second")
    assert taken.out.endswith(b"firstsecond")


@pytest.mark.parametrize("length", [-1, 0, 3, 100 * 1024 * 1024 + 1, 2**31 - 1])
def test_invalid_lengths(length: int) -> None:
    """An invalid length ends the connection before memory is allocated."""
    with pytest.raises(ProtocolError, match="invalid message length"):
        Taken().cutter.feed(struct.pack(">i", length) + b"12345678")


def test_a_message_shorter_than_its_header() -> None:
    """Four bytes are a valid length but no complete header, so the connection ends."""
    with pytest.raises(ProtocolError, match="within its header"):
        Taken().cutter.feed(struct.pack(">i", 4) + b"abcd")


def test_an_invalid_varint_in_a_produce_header() -> None:
    """A number of tagged fields that never ends is a protocol error, which closes the connection."""
    cutter = FrameSplitter(read_head, lambda _frame, _head: None, lambda _piece: None)
    message = struct.pack(">hhih", 0, 9, 7, -1) + bytes([0xFF]) * 6
    with pytest.raises(ProtocolError, match="unsigned varint"):
        cutter.feed(struct.pack(">i", len(message)) + message)

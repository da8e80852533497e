"""Framing: messages are read whole and once, however their bytes arrive, and memory never grows with announced
lengths.
"""

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.wire.codec import FRAME_BYTES_MAX, Frames


def framed(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message


@given(st.lists(st.binary(min_size=4, max_size=40)), st.data())
def test_messages_survive_any_cutting(messages: list[bytes], data: st.DataObject) -> None:
    """A stream of messages comes out as it went in, cut at any places, each as soon as its last byte is there."""
    stream = b"".join(map(framed, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    frames, out = Frames(), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        out += frames.feed(stream[begin:end])
        whole, position = 0, 0
        while whole < len(messages) and position + 4 + len(messages[whole]) <= end:
            position += 4 + len(messages[whole])
            whole += 1
        assert whole == len(out)
    assert messages == [bytes(message) for message in out]


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 3, 101, 2**31 - 1])
def test_a_length_that_no_message_has_is_refused(length: int) -> None:
    """Less than a correlation id or more than the limit ends the stream at its prefix, before a byte is kept."""
    with pytest.raises(ProtocolError, match=f"invalid message length {length}; 4 to 100 bytes are allowed"):
        Frames(100).feed(struct.pack(">i", length))
    assert 1 == len(Frames(100).feed(framed(bytes(100))))


def test_a_bad_length_after_good_messages_is_refused() -> None:
    """Each prefix is looked at, also behind a whole message and over two pieces."""
    frames = Frames(100)
    assert [b"abcd"] == frames.feed(framed(b"abcd") + b"\x7f")
    with pytest.raises(ProtocolError):
        frames.feed(b"\xff\xff\xff")


def test_an_announced_length_reserves_no_memory() -> None:
    """The largest frame allowed, of which a hundred bytes arrive singly: memory grows by the received bytes."""
    frames = Frames()
    tracemalloc.start()
    try:
        frames.feed(struct.pack(">i", FRAME_BYTES_MAX))
        for _ in range(100):
            assert [] == frames.feed(b"x")
        assert tracemalloc.get_traced_memory()[1] < 1 << 14
    finally:
        tracemalloc.stop()


def test_a_large_frame_is_kept_once() -> None:
    """Eight MiB in pieces of 64 KiB take eight MiB and the allowance of a growing buffer, not a copy a piece."""
    size, piece = 8 << 20, bytes(1 << 16)
    frames = Frames()
    tracemalloc.start()
    try:
        frames.feed(struct.pack(">i", size))
        out = [message for _ in range(size // len(piece)) for message in frames.feed(piece)]
        assert tracemalloc.get_traced_memory()[1] < 1.5 * size
    finally:
        tracemalloc.stop()
    assert [size] == [len(message) for message in out]


def test_a_message_given_out_is_not_touched_by_what_follows() -> None:
    """A view of the buffer stays what it was while further bytes come in."""
    frames = Frames()
    frames.feed(framed(b"first")[:3])
    (first,) = frames.feed(framed(b"first")[3:] + framed(b"second")[:6])
    frames.feed(framed(b"second")[6:] + bytes(1))
    assert b"first" == first

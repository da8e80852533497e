"""What a record carries, so that whoever reads it knows who sent it, as what, and when it was meant to be sent.

One header, ``aftershock``: producer_id (int32), seq (int64), intended_us (int64), big-endian. The value is filler of
the drawn size and follows from the seq, so that any reader can tell whether it is what was sent. A record without a
header of that very shape is foreign: not ours, and never mistaken for ours.
"""

import random
from struct import Struct
from typing import NamedTuple

HEADER = "aftershock"
_MARK = Struct(">iqq")
_STRIDE = 251  # a prime, so that neighbours differ and a broker's compression finds no free lunch


Headers = list[tuple[str, str | bytes | None]] | None
"""A record's headers as ``Message.headers()`` gives them."""


class Mark(NamedTuple):
    """Who sent a record (``producer_id``, unique in the run), its number there, and its intended time."""

    producer_id: int
    seq: int
    intended_us: int


def pack(producer_id: int, seq: int, intended_us: int) -> bytes:
    """The header's value; ``struct.error`` when a number doesn't fit, which no assignment allows."""
    return _MARK.pack(producer_id, seq, intended_us)


def unpack(headers: Headers) -> Mark | None:
    """The mark in a record's headers, None when the record is foreign."""
    for name, value in headers or ():
        if name == HEADER and isinstance(value, bytes) and len(value) == _MARK.size:
            mark = Mark(*_MARK.unpack(value))
            return mark if mark.producer_id >= 0 and mark.seq >= 0 else None
    return None


class Filler:
    """Makes values: slices of one block of fixed pseudo-random bytes, so a value costs one copy and no drawing."""

    def __init__(self, size_max: int = 0) -> None:
        self._block = _block(size_max)

    def value(self, seq: int, size_bytes: int) -> bytes:
        """The value of record ``seq``: always the same bytes, ``size_bytes`` of them."""
        start = seq % _STRIDE
        return self._block[start : start + size_bytes]

    def is_value(self, seq: int, value: bytes) -> bool:
        """Whether these bytes are the value of record ``seq``, of whatever size; how long it was is not known here."""
        if len(value) + _STRIDE > len(self._block):
            self._block = _block(len(value))
        return value == self.value(seq, len(value))


def _block(size_max: int) -> bytes:
    """Random bytes are drawn in words of four: any two blocks of whole words begin alike."""
    words = -(-(size_max + _STRIDE) // 4)
    return random.Random("aftershock").randbytes(4 * words)  # noqa: S311  # filler, not a secret

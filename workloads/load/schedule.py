"""In which order commits are dealt to groups: by number, or coordinator by coordinator.

Rules. Kafka puts a group into the partition of ``__consumer_offsets`` that its name's hash says, and that partition's
leader coordinates it (``GroupMetadataManager.partitionFor``). Groups in the order of these partitions keep one
coordinator busy for as many commits as it has groups, then the next: so what is written by one is written alone.

The open-loop load: what is sent and when, fixed before anything is sent.

Rules:

1. Record n has an *intended* send time that depends on n alone. A slow system, or a slow generator, moves no record:
   latency counted from the intended time then has no coordinated omission.
2. The size and the key of record n depend on the seed, the workload's name and n. Every arm of a workload sends the
   same records, and asking twice gives the same answer.

What a record carries, so that whoever reads it knows who sent it, as what, and when it was meant to be sent.

One header, ``aftershock``: producer_id (int32), seq (int64), intended_us (int64), big-endian. The value is filler of
the drawn size and follows from the seq, so that any reader can tell whether it is what was sent. A record without a
header of that very shape is foreign: not ours, and never mistaken for ours.
"""

import random
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

_SIGN, _INT = 1 << 31, 1 << 32


def offsets_partition(group: str, partitions: int) -> int:
    """Where Kafka keeps the group's offsets: by Java's ``String.hashCode`` (of ASCII), made positive as Kafka does."""
    hashed = 0
    for letter in group:
        hashed = (31 * hashed + ord(letter)) % _INT
    signed = hashed - _INT if hashed >= _SIGN else hashed
    return 0 if signed == -_SIGN else abs(signed) % partitions


@lru_cache(maxsize=8)
def by_coordinator(prefix: str, groups: int, partitions: int) -> tuple[str, ...]:
    """The names of a client's groups, partition by partition, each partition's in the order of their numbers."""
    names = [f"{prefix}-{number}" for number in range(groups)]
    return tuple(sorted(names, key=lambda name: offsets_partition(name, partitions)))


US_PER_MS = 1_000
US_PER_S = 1_000_000


class Schedule:
    """A constant rate: ``intended_us(n) = start_us + offset_us + n / rate``, in whole microseconds without drift.

    The rate is held as a fraction and every time is computed from n, so rounding never adds up.
    """

    def __init__(self, start_us: int, offset_us: int, rate_per_s: float) -> None:
        rate = Fraction(rate_per_s).limit_denominator(US_PER_S)
        if rate <= 0:
            raise ValueError(f"a rate of {rate_per_s}/s sends nothing: give a rate of at least 0.000001/s")
        self._first_us = start_us + offset_us
        self._up = US_PER_S * rate.denominator
        self._down = rate.numerator

    def intended_us(self, n: int) -> int:
        """When record ``n`` (0, 1, 2 ...) is to be sent."""
        return self._first_us + n * self._up // self._down

    def count_before(self, at_us: int) -> int:
        """How many records are intended before ``at_us``, which is also the number of the first one that isn't."""
        return max(0, -((self._first_us - at_us) * self._down // self._up))


@dataclass(frozen=True)
class Draw:
    """What was drawn for one record: the size of its value, and its key if it has one."""

    size_bytes: int
    key: bytes | None


class Stream:
    """The draws of one workload. ``keys`` is the number of distinct keys, None for records without one."""

    def __init__(self, seed: int, workload: str, size_min: int, size_max: int, keys: int | None) -> None:
        self._name = blake2b(f"{seed}/{workload}".encode()).digest()
        self._size_min, self._span = size_min, size_max - size_min + 1
        self._keys = keys

    def draw(self, n: int) -> Draw:
        """The size and key of record ``n``: sizes uniform in min..max, keys uniform over the distinct keys."""
        bits = blake2b(n.to_bytes(8, "big"), key=self._name, digest_size=16).digest()
        size = self._size_min + (int.from_bytes(bits[:8], "big") * self._span >> 64)
        if self._keys is None:
            return Draw(size, None)
        return Draw(size, b"key-%d" % (int.from_bytes(bits[8:], "big") * self._keys >> 64))


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

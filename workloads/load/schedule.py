"""Open-loop load: a schedule fixed before the first record is sent, and the mark that each record carries.

Record n has an *intended* send time that depends on n alone. A slow Kafka, or a slow producer, shifts no intended time,
so latency that is counted from the intended time has no coordinated omission. Size and key of record n depend only on
the seed, the workload's name and n, so every arm of a workload sends the same records. A record's value is filler that
follows from n, so any consumer can verify that a value is the value that was sent.
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
    """Return the partition of ``__consumer_offsets`` that stores the commits of a consumer group.

    Kafka chooses a group's partition by Java's ``String.hashCode`` of the group's name (here ASCII), made positive.
    """
    hashed = 0
    for letter in group:
        hashed = (31 * hashed + ord(letter)) % _INT
    signed = hashed - _INT if hashed >= _SIGN else hashed
    return 0 if signed == -_SIGN else abs(signed) % partitions


@lru_cache(maxsize=8)
def groups_by_coordinator(prefix: str, groups: int, partitions: int) -> tuple[str, ...]:
    """Return the names of a committer's groups, ordered by their partition of ``__consumer_offsets``, then by number.

    The leader of a group's partition is the group's coordinator (``GroupMetadataManager.partitionFor``), so groups with
    the same coordinator are neighbours in the returned names.
    """
    names = [f"{prefix}-{number}" for number in range(groups)]
    return tuple(sorted(names, key=lambda name: offsets_partition(name, partitions)))


US_PER_MS = 1_000
US_PER_S = 1_000_000


class Schedule:
    """Constant rate: ``intended_us(n) = start_us + offset_us + n / rate``, in whole microseconds without drift."""

    def __init__(self, start_us: int, offset_us: int, rate_per_s: float) -> None:
        rate = Fraction(rate_per_s).limit_denominator(US_PER_S)
        if rate <= 0:
            raise ValueError(f"a rate of {rate_per_s}/s sends nothing; use at least 0.000001/s")
        self._first_us = start_us + offset_us
        self._up = US_PER_S * rate.denominator
        self._down = rate.numerator

    def intended_us(self, n: int) -> int:
        return self._first_us + n * self._up // self._down

    def count_before(self, at_us: int) -> int:
        """Return the number of records whose intended time is before ``at_us``, which is the next record's number."""
        return max(0, -((self._first_us - at_us) * self._down // self._up))


@dataclass(frozen=True)
class Draw:
    size_bytes: int
    key: bytes | None


class Stream:
    """Random sizes and keys of a workload's records; ``keys`` is the number of distinct keys, None for no keys."""

    def __init__(self, seed: int, workload: str, size_min: int, size_max: int, keys: int | None) -> None:
        self._name = blake2b(f"{seed}/{workload}".encode()).digest()
        self._size_min, self._span = size_min, size_max - size_min + 1
        self._keys = keys

    def draw(self, n: int) -> Draw:
        """Return size and key of record ``n``: sizes uniform in min..max, keys uniform over the distinct keys."""
        bits = blake2b(n.to_bytes(8, "big"), key=self._name, digest_size=16).digest()
        size = self._size_min + (int.from_bytes(bits[:8], "big") * self._span >> 64)
        if self._keys is None:
            return Draw(size, None)
        return Draw(size, b"key-%d" % (int.from_bytes(bits[8:], "big") * self._keys >> 64))


HEADER = "aftershock"
"""Name of the only header of a record that a run's producer sends.

A record without a header of exactly this shape is foreign."""

_MARK = Struct(">iqq")
_STRIDE = 251  # a prime, so that neighbouring values differ and do not compress unrealistically well


Headers = list[tuple[str, str | bytes | None]] | None
"""A record's headers as ``Message.headers()`` gives them."""


class Mark(NamedTuple):
    """Value of a record's header ``aftershock``: big-endian int32, int64, int64. ``producer_id`` is unique in a run."""

    producer_id: int
    seq: int
    intended_us: int


def pack(producer_id: int, seq: int, intended_us: int) -> bytes:
    return _MARK.pack(producer_id, seq, intended_us)


def unpack(headers: Headers) -> Mark | None:
    """Return the mark in a record's headers; None for a foreign record, which has no valid mark."""
    for name, value in headers or ():
        if name == HEADER and isinstance(value, bytes) and len(value) == _MARK.size:
            mark = Mark(*_MARK.unpack(value))
            return mark if mark.producer_id >= 0 and mark.seq >= 0 else None
    return None


class Filler:
    """Creates record values as slices of one block of fixed pseudo-random bytes, so a value costs one copy."""

    def __init__(self, size_max: int = 0) -> None:
        self._block = _block(size_max)

    def value(self, seq: int, size_bytes: int) -> bytes:
        """Return the value of record ``seq``: always the same ``size_bytes`` bytes."""
        start = seq % _STRIDE
        return self._block[start : start + size_bytes]

    def is_value(self, seq: int, value: bytes) -> bool:
        """Return True if the bytes ``value`` are a value of record ``seq``, whatever size the value was sent with."""
        if len(value) + _STRIDE > len(self._block):
            self._block = _block(len(value))
        return value == self.value(seq, len(value))


def _block(size_max: int) -> bytes:
    """Return pseudo-random bytes whose number is a multiple of four, so that blocks of any two sizes start alike."""
    words = -(-(size_max + _STRIDE) // 4)
    return random.Random("aftershock").randbytes(4 * words)  # noqa: S311  # filler, not a secret

"""The open-loop load: what is sent and when, fixed before anything is sent.

Rules:

1. Record n has an *intended* send time that depends on n alone. A slow system, or a slow generator, moves no record:
   latency counted from the intended time then has no coordinated omission.
2. The size and the key of record n depend on the seed, the workload's name and n. Every arm of a workload sends the
   same records, and asking twice gives the same answer.
"""

from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b

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

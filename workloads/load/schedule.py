"""Open-loop load, as time, size, key and value of each record, and the mark (a header) that identifies a record.

A slow Kafka, or a slow producer, delays no record's *intended* send time, so latency that is counted from the intended
time has no coordinated omission. Size and key of record n depend only on the seed, the workload's name and n, so every
arm of a workload sends the same records. The value of record n depends only on n, so any consumer can verify the value.
"""

import json
import random
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

from aftershock.names import key_partition


@lru_cache(maxsize=8)
def groups_by_coordinator(prefix: str, groups: int, partitions: int) -> tuple[str, ...]:
    """Return the names of a committer's groups, ordered by their partition of ``__consumer_offsets``, then by number.

    Consumer groups with the same partition of ``__consumer_offsets`` have the same coordinator, which is the
    partition's leader.
    """
    names = [f"{prefix}-{number}" for number in range(groups)]
    return tuple(sorted(names, key=lambda name: key_partition(name, partitions)))


US_PER_MS = 1_000
US_PER_S = 1_000_000


class Schedule:
    """Schedule of a constant rate, in which record n is due at ``start_us + offset_us + n / rate``, in whole us."""

    def __init__(self, start_us: int, offset_us: int, rate_per_s: float) -> None:
        rate = Fraction(rate_per_s).limit_denominator(US_PER_S)
        if rate <= 0:
            raise ValueError(f"a rate of {rate_per_s}/s sends nothing; use at least 0.000001/s")
        self._first_us = start_us + offset_us
        self.period_us = US_PER_S * rate.denominator, rate.numerator  # as a fraction

    def intended_us(self, n: int) -> int:
        up, down = self.period_us
        return self._first_us + n * up // down

    def count_before(self, at_us: int) -> int:
        """Return the number of records whose intended time is before ``at_us``."""
        up, down = self.period_us
        return max(0, -((self._first_us - at_us) * down // up))


class Stream:
    """Random sizes and keys of a workload's records; ``keys`` is the number of distinct keys, None for null keys."""

    def __init__(self, seed: int, workload: str, size_min: int, size_max: int, keys: int | None) -> None:
        self._name = blake2b(f"{seed}/{workload}".encode()).digest()
        self._size_min, self._span = size_min, size_max - size_min + 1
        self._keys = keys

    def draw(self, n: int) -> tuple[int, bytes | None]:
        """Return the size in bytes and the key of record ``n``, both drawn from uniform distributions."""
        bits = blake2b(n.to_bytes(8, "big"), key=self._name, digest_size=16).digest()
        size = self._size_min + (int.from_bytes(bits[:8], "big") * self._span >> 64)
        if self._keys is None:
            return size, None
        return size, b"key-%d" % (int.from_bytes(bits[8:], "big") * self._keys >> 64)


HEADER = "aftershock"
"""Name of the only header of a record that a run's producer sends; its value is the record's mark."""

_MARK = Struct(">iqq")
STRIDE = 251  # a prime, so that neighbouring values differ and do not compress unrealistically well

Headers = list[tuple[str, str | bytes | None]] | None
"""Headers of a record, as ``Message.headers()`` of confluent-kafka returns them."""


class Mark(NamedTuple):
    """Mark of a record, the value of its header ``aftershock``, an int32 and two int64 in big-endian order."""

    producer_id: int
    seq: int
    intended_us: int


def pack(producer_id: int, seq: int, intended_us: int) -> bytes:
    return _MARK.pack(producer_id, seq, intended_us)


def unpack(headers: Headers) -> Mark | None:
    """Return the mark in a record's headers; None for a record that no producer of a run sent."""
    for name, value in headers or ():
        if name == HEADER and isinstance(value, bytes) and len(value) == _MARK.size:
            mark = Mark(*_MARK.unpack(value))
            return mark if mark.producer_id >= 0 and mark.seq >= 0 else None
    return None


def mark_text(mark: Mark) -> str:
    """Return a mark as text, for a record's key or a field of its JSON value: ``3:1580:20034567``."""
    return f"{mark.producer_id}:{mark.seq}:{mark.intended_us}"


def parse_mark(text: object) -> Mark | None:
    """Return the mark that ``mark_text`` wrote; None for any other value."""
    match = _MARK_TEXT.fullmatch(text) if isinstance(text, str) else None
    return Mark(*map(int, match.groups())) if match else None


_MARK_TEXT = re.compile(r"(\d{1,9}):(\d{1,18}):(\d{1,18})", re.ASCII)


def mark_in(place: str, headers: Headers, key: bytes | None, value: bytes | None) -> Mark | None:
    """Return a record's mark, which is at ``place``: ``header``, ``key``, or a JSON path like ``$.id``; else None."""
    if place == "header":
        return unpack(headers)
    if place == "key":
        return parse_mark((key or b"").decode(errors="replace"))
    try:
        found = json.loads(value or b"")
        for name in place.split(".")[1:]:
            found = found[name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return parse_mark(found)


class JsonValue:
    """Creates and recognises the JSON values of records from their template, an object with texts like ``{mark}``."""

    def __init__(self, template: Mapping[str, Any]) -> None:
        self._template = template

    def value(self, mark: Mark, key: bytes | None) -> bytes:
        words = {"mark": mark_text(mark), "key": (key or b"").decode(errors="replace"), "seq": str(mark.seq)}
        return json.dumps(_filled(self._template, words), separators=(",", ":")).encode()

    def is_value(self, mark: Mark, value: bytes) -> bool:
        """Return True if ``value`` is that of the record with this mark, whatever the record's key is."""
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return False
        words = {"mark": mark_text(mark), "seq": str(mark.seq)}
        return _agrees(found, _filled(self._template, words))


def _filled(template: Any, words: Mapping[str, str]) -> Any:
    if isinstance(template, Mapping):
        return {name: _filled(field, words) for name, field in template.items()}
    if isinstance(template, str):
        return _WORD.sub(lambda match: words.get(match[1], match[0]), template)
    return template


def _agrees(found: Any, expected: Any) -> bool:
    if isinstance(expected, Mapping):
        same_names = isinstance(found, dict) and found.keys() == expected.keys()
        return same_names and all(_agrees(found[name], field) for name, field in expected.items())
    if isinstance(expected, str) and "{key}" in expected:
        before, _, after = expected.partition("{key}")
        return isinstance(found, str) and found.startswith(before) and found.endswith(after.rpartition("{key}")[2])
    return bool(found == expected)


_WORD = re.compile(r"\{(mark|key|seq)\}")


class Filler:
    """Creates record values as slices of one block of fixed pseudo-random bytes, so a value costs one copy."""

    def __init__(self, size_max: int = 0) -> None:
        self._block = _block(size_max)

    def value(self, seq: int, size_bytes: int) -> bytes:
        start = seq % STRIDE
        return self._block[start : start + size_bytes]

    def is_value(self, seq: int, value: bytes) -> bool:
        """Return True if the bytes ``value`` are the value of record ``seq`` in any size."""
        if len(value) + STRIDE > len(self._block):
            self._block = _block(len(value))
        return value == self.value(seq, len(value))


def _block(size_max: int) -> bytes:
    # Because the number of bytes is a multiple of four, the larger of two blocks starts with the smaller block.
    words = -(-(size_max + STRIDE) // 4)
    return random.Random("aftershock").randbytes(4 * words)  # noqa: S311  # filler, not a secret

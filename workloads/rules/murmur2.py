"""Murmur2 as Kafka's producers hash keys: the same key must find the same partition whoever sends it.

The numbers are those of Kafka's ``common.utils.Utils.murmur2``: seed 0x9747b28c, multiplier 0x5bd1e995, shift 24, words
of four bytes, little-endian, 32-bit arithmetic. Java's result is signed, and so is ours.
"""

from struct import unpack_from

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
_WORD = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """The hash as Java prints it: a signed 32-bit integer."""
    hashed = _unsigned(key)
    return hashed - (1 << 32) if hashed > 0x7FFFFFFF else hashed  # noqa: PLR2004 (the largest int32)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Where a key goes: its hash without the sign bit (``Utils.toPositive``), over *all* partitions of the topic."""
    return (_unsigned(key) & 0x7FFFFFFF) % partition_count


def _unsigned(key: bytes) -> int:
    length = len(key)
    hashed = SEED ^ length
    for word in unpack_from(f"<{length >> 2}I", key):
        mixed = (word * MULTIPLIER) & _WORD
        mixed = ((mixed ^ (mixed >> 24)) * MULTIPLIER) & _WORD
        hashed = ((hashed * MULTIPLIER) & _WORD) ^ mixed
    if length & 3:
        hashed = ((hashed ^ int.from_bytes(key[length & ~3 :], "little")) * MULTIPLIER) & _WORD
    hashed = ((hashed ^ (hashed >> 13)) * MULTIPLIER) & _WORD
    return hashed ^ (hashed >> 15)

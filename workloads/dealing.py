"""In which order commits are dealt to groups: by number, or coordinator by coordinator.

Rules. Kafka puts a group into the partition of ``__consumer_offsets`` that its name's hash says, and that partition's
leader coordinates it (``GroupMetadataManager.partitionFor``). Groups in the order of these partitions keep one
coordinator busy for as many commits as it has groups, then the next: so what is written by one is written alone.
"""

from functools import lru_cache

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

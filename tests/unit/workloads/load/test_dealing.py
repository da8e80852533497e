"""Which groups share a coordinator, and in which order they are dealt."""

import pytest

from aftershock.workloads.load.schedule import groups_by_coordinator, offsets_partition


@pytest.mark.parametrize(
    ("group", "partition"),
    [("", 0), ("a", 97 % 50), ("hello", 99162322 % 50), ("Hello World", 862545276 % 50), ("polygenelubricants", 0)],
)
def test_as_kafka_does(group: str, partition: int) -> None:
    """Java's well-known hashes: of ``hello``; a negative one; and one that has no positive counterpart."""
    assert partition == offsets_partition(group, 50)


def test_coordinator_by_coordinator() -> None:
    """Every group once, each partition's groups together and in the order of their numbers."""
    names = groups_by_coordinator("commits-plain", 90, 3)
    assert {f"commits-plain-{number}" for number in range(90)} == set(names)
    parts = [offsets_partition(name, 3) for name in names]
    assert parts == sorted(parts)
    assert {0, 1, 2} == set(parts)
    numbers = [int(name.rpartition("-")[2]) for name in names if offsets_partition(name, 3) == 1]
    assert numbers == sorted(numbers)

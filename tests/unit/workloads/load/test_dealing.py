"""Groups by coordinator: the partition of ``__consumer_offsets``, and the order of groups."""

import pytest

from aftershock.workloads.load.schedule import groups_by_coordinator, offsets_partition


@pytest.mark.parametrize(
    ("group", "partition"),
    [("", 0), ("a", 97 % 50), ("hello", 99162322 % 50), ("Hello World", 862545276 % 50), ("polygenelubricants", 0)],
)
def test_as_kafka_does(group: str, partition: int) -> None:
    """Java's known hashes: of ``hello``, a negative one, and the one without a positive counterpart."""
    assert partition == offsets_partition(group, 50)


def test_coordinator_by_coordinator() -> None:
    """Every group occurs once; each partition's groups are adjacent and in numerical order."""
    names = groups_by_coordinator("commits-plain", 90, 3)
    assert {f"commits-plain-{number}" for number in range(90)} == set(names)
    parts = [offsets_partition(name, 3) for name in names]
    assert parts == sorted(parts)
    assert {0, 1, 2} == set(parts)
    numbers = [int(name.rpartition("-")[2]) for name in names if offsets_partition(name, 3) == 1]
    assert numbers == sorted(numbers)

"""Commits read from synthetic logs of the offsets topic: which commit was written in which batch."""

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from kio.schema.errors import ErrorCode

from aftershock.errors import ClusterError
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.harness.kafka.replicas import SHARE_STATE, read_committed
from aftershock.names import OFFSETS_TOPIC
from aftershock.workloads.kafka.wire.batch_builder import build
from aftershock.workloads.load.logread import ReadLimit

BROKERS = tuple(map(BrokerId, (1, 2)))


def key(group: str, number: int = 0, version: int = 1) -> bytes:
    """Return Kafka's OffsetCommitKey, or the key of a group's members (version 2)."""
    text = struct.pack(">hh", version, len(group)) + group.encode()
    return text + struct.pack(">h", 1) + b"t" + struct.pack(">i", number) if version < 2 else text


def value(committed: int) -> bytes:
    """Return the beginning that all versions of OffsetCommitValue share, followed by further bytes."""
    return struct.pack(">hqi", 4, committed, -1) + b"more"


def batch(base: int, commits: list[tuple[bytes, bytes | None]], **traits: Any) -> bytes:
    keys, values = zip(*commits, strict=True)
    return build(values, keys=keys, timestamps_ms=[1] * len(keys), base_offset=base, **traits)


class FakeAdmin:
    """Two partitions, one led by each broker; each Fetch returns one batch."""

    def __init__(self, logs: dict[int, list[bytes]], ends: dict[int, int], topic: str = OFFSETS_TOPIC) -> None:
        self._logs, self._ends, self._topic = logs, ends, topic

    def partitions(self, _topics: Any) -> tuple[PartitionState, ...]:
        return tuple(PartitionState(self._topic, n, BROKERS[n], 1, BROKERS, BROKERS) for n in self._ends)

    def ask(self, request: Any, *, only: BrokerId) -> Any:
        asked = request.topics[0].partitions[0]
        number = getattr(asked, "partition", None)
        if number is None:
            return self._offsets(request, only)
        assert BROKERS[number] == only
        found = [each for each in self._logs[number] if int.from_bytes(each[:8], "big") >= asked.fetch_offset][:1]
        answer = SimpleNamespace(error_code=ErrorCode.none, records=b"".join(found))
        return SimpleNamespace(error_code=ErrorCode.none, responses=[SimpleNamespace(partitions=[answer])])

    def _offsets(self, request: Any, only: BrokerId) -> Any:
        number = BROKERS.index(only)
        offset = 0 if request.topics[0].partitions[0].timestamp == -2 else self._ends[number]
        told = SimpleNamespace(error_code=ErrorCode.none, partition_index=number, offset=offset)
        return SimpleNamespace(topics=[SimpleNamespace(name=self._topic, partitions=[told])])


def read(admin: Any, folder: Path, topic: str = OFFSETS_TOPIC) -> list[dict[str, Any]]:
    read_committed(admin, [topic], folder, ReadLimit(0.2))
    found: list[dict[str, Any]] = pq.read_table(folder).to_pylist()
    return found


def test_commits_know_their_batch_and_their_leader(tmp_path: Path) -> None:
    """Two commits in one flush share a batch; the next flush is another batch; a deleted commit has no offset."""
    first = batch(0, [(key("a"), value(7)), (key("b", 3), value(8))])
    logs = {0: [first, batch(2, [(key("a"), value(9))])], 1: [batch(0, [(key("c"), None)])]}
    rows = read(FakeAdmin(logs, {0: 3, 1: 1}), tmp_path)
    assert [(1, 0, "a", 0, 7), (1, 0, "b", 3, 8), (1, 2, "a", 0, 9), (2, 0, "c", 0, None)] == [
        (row["broker_id"], row["batch"], row["group"], row["topic_partition"], row["committed"]) for row in rows
    ]
    assert [0, 1, 2, 0] == [row["offset"] for row in rows]


def test_records_of_group_members_are_left_out(tmp_path: Path) -> None:
    """The same topic holds the members of groups."""
    logs = {0: [batch(0, [(key("a", version=2), b"members"), (key("a"), value(1))])]}
    assert [1] == [row["committed"] for row in read(FakeAdmin(logs, {0: 2}), tmp_path)]


def test_share_groups(tmp_path: Path) -> None:
    """A share coordinator's snapshots and updates are read, of a topic named by its id; other keys are left out."""
    of_group = {kind: struct.pack(">hh", kind, 1) + b"s" + bytes(16) + struct.pack(">i", 5) for kind in (0, 1, 2)}
    logs = {0: [batch(0, [(of_group[0], b"state"), (of_group[2], b"")]), batch(2, [(of_group[1], b"more")])]}
    rows = read(FakeAdmin(logs, {0: 3}, SHARE_STATE), tmp_path, SHARE_STATE)
    assert [(1, 0, "s", None, 5, None), (1, 2, "s", None, 5, None)] == [
        tuple(row[name] for name in ("broker_id", "batch", "group", "topic", "topic_partition", "committed"))
        for row in rows
    ]


def test_a_log_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    """A partial log would look like lost commits."""
    with pytest.raises(ClusterError, match="read only to offset 1 of 5"):
        read(FakeAdmin({0: [batch(0, [(key("a"), value(1))])]}, {0: 5}), tmp_path)

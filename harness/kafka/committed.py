"""What coordinators wrote of groups' progress, with the batch that each entry was written in.

Rules: each partition is read from its leader, from the first offset to the high watermark. A coordinator's flush is one
batch (KIP-1224), so who counts batches counts flushes. Nothing is missing: Kafka compacts no segment that is still
written to, and no run of ours fills one. Control batches and what isn't a commit (members of groups) are left out; a
null ``committed`` is a commit that was taken back. Of share groups, whose acknowledgements their coordinator writes
down in a topic of its own, only the group and the partition are told. Sources: ``OffsetCommitKey``,
``OffsetCommitValue``, ``ShareSnapshotKey`` and ``ShareUpdateKey`` of Kafka 4.3.
"""

import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from aftershock.errors import ClusterError
from aftershock.faults.values import PartitionState
from aftershock.harness.admin import Admin
from aftershock.harness.kafka.fetching import fetch_from
from aftershock.harness.kafka.records import log_ends
from aftershock.workloads.outcomes import write_whole
from aftershock.workloads.wire.batch import CONTROL, TRANSACTIONAL, Batch, Record
from aftershock.workloads.wire.records import parse

OFFSETS, SHARE_STATE = "__consumer_offsets", "__share_group_state"
SCHEMA = pa.schema(
    [
        ("broker_id", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("batch", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("transactional", pa.bool_()),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("topic_partition", pa.int32()),
        ("committed", pa.int64()),
    ]
)
"""A commit. ``offset`` is its place in that partition of the coordinators' topic, ``batch`` that of its batch's first
record; ``broker_id`` leads the partition now, ``leader_epoch`` is of whoever wrote."""

_KEYS = (0, 1)  # the versions of OffsetCommitKey, where 2 and above are other things; and both of the share coordinator
_VERSION = struct.Struct(">h")
_VALUE = struct.Struct(">hq")
_PARTITION = struct.Struct(">i")
_UUID_BYTES = 16

Row = dict[str, Any]


def read_committed(admin: Admin, topics: Iterable[str], folder: Path, deadline_s: float) -> None:
    """Write ``part-0.parquet`` into ``folder``, which is created, of ``OFFSETS``, ``SHARE_STATE`` or both. Blocks.

    Raises:
        ClusterError: it could not be read to the end in time.
        AdminError: a partition has no leader, or Kafka refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + deadline_s
    rows = [row for topic in topics for row in _written(admin, topic, until_s)]
    columns = {name: [row[name] for row in rows] for name in SCHEMA.names}
    write_whole(folder / "part-0.parquet", SCHEMA, iter([columns] if rows else []))


def _written(admin: Admin, topic: str, until_s: float) -> Iterator[Row]:
    ends = log_ends(admin, topic)
    for state in admin.partitions([topic]):
        for batch in _batches(admin, state, ends[topic, state.partition], until_s):
            same = {"broker_id": state.leader, "partition": state.partition}
            yield from _entries(batch, same, shared=topic == SHARE_STATE)


def _batches(admin: Admin, state: PartitionState, span: tuple[int, int], until_s: float) -> Iterator[Batch]:
    at, end = span
    if state.leader is None:
        raise ClusterError(f"{state.topic}/{state.partition} has no leader to read it from")
    while at < end:
        for batch in parse(fetch_from(admin, state.leader, (state.topic, state.partition), at).records or b""):
            yield batch
            at = batch.last_offset + 1
        if at < end and time.monotonic() > until_s:
            raise ClusterError(f"{state.topic}/{state.partition} was read to offset {at} of {end} in time")


def _entries(batch: Batch, same: Row, *, shared: bool) -> Iterator[Row]:
    header = batch.header
    if header.attributes & CONTROL:
        return
    of_batch = {
        "batch": header.base_offset,
        "leader_epoch": header.leader_epoch,
        "transactional": bool(header.attributes & TRANSACTIONAL),
    }
    for record in batch.records():
        if (told := _entry(record, shared=shared)) is not None:
            yield same | of_batch | told | {"offset": record.offset}


def _entry(record: Record, *, shared: bool) -> Row | None:
    """The key's group, topic (of share groups only an id) and partition, and the offset after the value's version."""
    key = record.key or b""
    if len(key) < _VERSION.size or _VERSION.unpack_from(key)[0] not in _KEYS:
        return None
    group, at = _text(key, _VERSION.size)
    topic, at = (None, at + _UUID_BYTES) if shared else _text(key, at)
    (number,) = _PARTITION.unpack_from(key, at)
    committed = None if shared or record.value is None else _VALUE.unpack_from(record.value)[1]
    return {"group": group, "topic": topic, "topic_partition": number, "committed": committed}


def _text(data: bytes, at: int) -> tuple[str, int]:
    """A string behind its 16-bit length, and where it ends."""
    begin = at + _VERSION.size
    end = begin + int(_VERSION.unpack_from(data, at)[0])
    return data[begin:end].decode(), end

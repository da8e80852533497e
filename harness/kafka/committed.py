"""What group coordinators wrote: every commit in ``__consumer_offsets``, with the batch that it was written in.

Rules: each partition is read from its leader, from the first offset to the high watermark. A coordinator's flush is one
batch (KIP-1224), so who counts batches counts flushes. Nothing is missing: Kafka compacts no segment that is still
written to, and no run of ours fills one. Control batches and what isn't a commit (members of groups) are left out; a
null ``committed`` is a commit that was taken back. Sources: ``OffsetCommitKey``, ``OffsetCommitValue`` of Kafka 4.3.
"""

import struct
import time
from collections.abc import Iterator
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

TOPIC = "__consumer_offsets"
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
"""A commit. ``offset`` is its place in the partition of ``TOPIC``, ``batch`` that of its batch's first record;
``broker_id`` leads the partition now, ``leader_epoch`` is of whoever wrote."""

_KEYS = (0, 1)  # the versions of OffsetCommitKey; 2 and above are other things
_VERSION = struct.Struct(">h")
_VALUE = struct.Struct(">hq")
_PARTITION = struct.Struct(">i")

Row = dict[str, Any]


def read_committed(admin: Admin, folder: Path, deadline_s: float) -> None:
    """Write ``part-0.parquet`` into ``folder``, which is created. Blocks.

    Raises:
        ClusterError: it could not be read to the end in time.
        AdminError: a partition has no leader, or Kafka refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    until_s, ends = time.monotonic() + deadline_s, log_ends(admin, TOPIC)
    rows = [
        row
        for state in admin.partitions([TOPIC])
        for batch in _batches(admin, state, ends[TOPIC, state.partition], until_s)
        for row in _commits(batch, {"broker_id": state.leader, "partition": state.partition})
    ]
    columns = {name: [row[name] for row in rows] for name in SCHEMA.names}
    write_whole(folder / "part-0.parquet", SCHEMA, iter([columns] if rows else []))


def _batches(admin: Admin, state: PartitionState, span: tuple[int, int], until_s: float) -> Iterator[Batch]:
    at, end = span
    if state.leader is None:
        raise ClusterError(f"{TOPIC}/{state.partition} has no leader to read it from")
    while at < end:
        for batch in parse(fetch_from(admin, state.leader, (TOPIC, state.partition), at).records or b""):
            yield batch
            at = batch.last_offset + 1
        if at < end and time.monotonic() > until_s:
            raise ClusterError(f"{TOPIC}/{state.partition} was read to offset {at} of {end} in time")


def _commits(batch: Batch, same: Row) -> Iterator[Row]:
    header = batch.header
    if header.attributes & CONTROL:
        return
    of_batch = {
        "batch": header.base_offset,
        "leader_epoch": header.leader_epoch,
        "transactional": bool(header.attributes & TRANSACTIONAL),
    }
    for record in batch.records():
        if (told := _commit(record)) is not None:
            yield same | of_batch | told | {"offset": record.offset}


def _commit(record: Record) -> Row | None:
    """The key's group, topic and partition, and the offset that the value begins with after its version."""
    key = record.key or b""
    if len(key) < _VERSION.size or _VERSION.unpack_from(key)[0] not in _KEYS:
        return None
    group, at = _text(key, _VERSION.size)
    topic, at = _text(key, at)
    (number,) = _PARTITION.unpack_from(key, at)
    committed = None if record.value is None else _VALUE.unpack_from(record.value)[1]
    return {"group": group, "topic": topic, "topic_partition": number, "committed": committed}


def _text(data: bytes, at: int) -> tuple[str, int]:
    """A string behind its 16-bit length, and where it ends."""
    begin = at + _VERSION.size
    end = begin + int(_VERSION.unpack_from(data, at)[0])
    return data[begin:end].decode(), end

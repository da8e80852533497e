"""Batches of transactional topics, read from the leaders' logs: who wrote them, and how their transactions ended.

Client libraries hide producer ids and transaction markers, so the judge decodes the log itself. The log is read at
isolation level 0, up to the high watermark.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

import pyarrow as pa

from aftershock.errors import ClusterError
from aftershock.faults.targets.values import TopicPartition
from aftershock.harness.kafka.admin import Admin
from aftershock.harness.kafka.replicas import fetch_from, stable_offsets
from aftershock.workloads.kafka.wire.batch import Batch, parse
from aftershock.workloads.load.logread import EndOffsets, ReadLimit, Topic
from aftershock.workloads.load.outcomes import write_whole

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("kafka_producer_id", pa.int64()),
        ("kafka_epoch", pa.int32()),
        ("base_sequence", pa.int32()),
        ("transactional", pa.bool_()),
        ("marker", pa.string()),
        ("coordinator_epoch", pa.int32()),
    ]
)
"""Row of one batch; ``marker`` is ``commit`` or ``abort`` for a control batch that ends a transaction, else null."""

_MARKER_VALUE = Struct(">hi")  # version, coordinator epoch
_POLL_S = 0.2


def wait_until_stable(
    admin: Admin, topics: Sequence[str], limit_s: float, sleep: Callable[[float], None] = time.sleep
) -> dict[TopicPartition, tuple[int, int]]:
    """Wait until no partition has an open transaction.

    Return the last stable offset and the high watermark of those that still have one after ``limit_s``.
    """
    until_s = time.monotonic() + limit_s
    while True:
        unstable = {
            where: offsets
            for topic in topics
            for where, offsets in stable_offsets(admin, topic).items()
            if offsets[0] < offsets[1]
        }
        if not unstable or time.monotonic() >= until_s:
            return unstable
        sleep(_POLL_S)


def read_batches(
    admin: Admin,
    topics: Sequence[Topic],
    ends: EndOffsets,
    folder: Path,
    limit: ReadLimit,
    begin: Mapping[str, Mapping[int, int]],
) -> EndOffsets:
    """Write the batches of each topic, up to ``ends``, to ``part-<topic>.parquet`` in ``folder``.

    ``begin`` has the first offset to read by topic and partition. Return by topic and partition the offset after the
    last record that readers of committed records get, because no client reports that it has passed a marker. Raises
    ClusterError if the ``limit`` is over before a partition is read to its end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    readable: EndOffsets = {}
    for topic in topics:
        rows: list[dict[str, Any]] = []
        for state in admin.partitions([topic.name]):
            at, end = begin.get(topic.name, {}).get(state.partition, 0), ends[topic.name].get(state.partition, 0)
            if state.leader is None and at < end:
                raise ClusterError(f"{topic.name}/{state.partition} has no leader")
            identity = {"topic": topic.name, "topic_id": topic.topic_id, "partition": state.partition}
            first = len(rows)
            while at < end and state.leader is not None:
                answer = fetch_from(admin, state.leader, (topic.name, state.partition), at)
                for batch in parse(answer.records or b""):
                    if batch.last_offset >= at and batch.base_offset < end:
                        rows.append(identity | _row(batch))
                        at = batch.last_offset + 1
                        limit.progressed()
                at = max(at, int(answer.log_start_offset))
                if at < end and (why := limit.why_over()):
                    where = f"{topic.name}/{state.partition}"
                    raise ClusterError(f"the batches of {where} were read only to offset {at} of {end}: {why}")
            of_partition = readable.setdefault(topic.name, {})
            of_partition[state.partition] = max((row["last_offset"] + 1 for row in _committed(rows[first:])), default=0)
        columns = {name: [row[name] for row in rows] for name in SCHEMA.names}
        write_whole(folder / f"part-{topic.name}.parquet", SCHEMA, iter([columns] if rows else []))
    return readable


def _row(batch: Batch) -> dict[str, Any]:
    header, value = batch.header, batch.records[0].value if batch.marker and batch.records else None
    decoded = value is not None and len(value) >= _MARKER_VALUE.size
    return {
        "first_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "leader_epoch": header.leader_epoch,
        "kafka_producer_id": None if header.producer_id < 0 else header.producer_id,
        "kafka_epoch": None if header.producer_id < 0 else header.producer_epoch,
        "base_sequence": None if header.base_sequence < 0 else header.base_sequence,
        "transactional": batch.is_transactional,
        "marker": batch.marker,
        "coordinator_epoch": _MARKER_VALUE.unpack_from(value)[1] if decoded and value is not None else None,
    }


def _committed(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the batches of one partition with records that are committed, or have no transaction, from the last."""
    ends: dict[int, str] = {}
    for row in reversed(rows):
        if row["marker"] is not None:
            ends[row["kafka_producer_id"]] = row["marker"]
        elif not row["transactional"] or ends.get(row["kafka_producer_id"]) == "commit":
            yield row

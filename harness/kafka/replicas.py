"""What each replica holds at the end of a run: whether those of a partition are equal up to the high watermark.

Rules: each replica is asked itself, by a consumer's Fetch without a rack, which a follower answers from version 11 on
(KIP-392) and only up to its own high watermark; that comes to the leader's with its next fetch, so it is waited for.
Replicas keep batches as the leader wrote them: a batch is its base offset, leader epoch and the CRC of what is there
(not the one it claims), and a stretch of STRETCH offsets is the exclusive or of its batches' hashes, so that a
difference is found where it is. A compacted topic is left out, as each replica is cleaned by itself. A replica that
can't be read to the end says so.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Any

import crc32c
import pyarrow as pa

from aftershock.errors import AftershockError, ClusterError
from aftershock.faults.values import BrokerId, PartitionState
from aftershock.harness.admin import TOPIC, Admin
from aftershock.harness.kafka.fetching import fetch_from
from aftershock.workloads.logread import EndOffsets, Topic
from aftershock.workloads.outcomes import write_whole
from aftershock.workloads.wire.batch import AFTER_CRC, BATCH_OVERHEAD, UNTIL_CRC, UNTIL_LENGTH_BYTES, BatchHeader

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("broker_id", pa.int32()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("records", pa.int64()),
        ("fingerprint", pa.int64()),
        ("error", pa.string()),
    ]
)
"""A stretch of one replica of one partition; ``error``, else null: why it could not be read to its end."""

STRETCH = 10_000
_BATCH = Struct(">qiI")

Row = dict[str, Any]


def read_replicas(
    admin: Admin,
    topics: Sequence[Topic],
    ends: EndOffsets,
    folder: Path,
    deadline_s: float,
    begin: Mapping[str, Mapping[int, int]],
) -> None:
    """Write ``part-<topic>.parquet`` for each topic into ``folder``, which is created: every replica up to ``ends``.

    ``begin``: topic -> partition -> the first offset to read, where that isn't the first there is. Blocks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + deadline_s
    for topic in topics:
        if "compact" in (admin.configs(TOPIC, topic.name).get("cleanup.policy") or ""):
            continue
        states = admin.partitions([topic.name])
        rows = [row for state in states for row in _partition(admin, topic, state, ends, until_s, begin)]
        columns = {name: [row[name] for row in rows] for name in SCHEMA.names}
        write_whole(folder / f"part-{topic.name}.parquet", SCHEMA, iter([columns] if rows else []))


def _partition(
    admin: Admin,
    topic: Topic,
    state: PartitionState,
    ends: EndOffsets,
    until_s: float,
    begin: Mapping[str, Mapping[int, int]],
) -> Iterator[Row]:
    """All its replicas, from the leader's first offset on: a follower may not have dropped what the leader has."""
    end = ends[topic.name].get(state.partition, 0)
    reader = _Reader(admin, topic.name, state.partition, until_s)
    start = begin.get(topic.name, {}).get(state.partition, 0)
    if state.leader is not None and end > start:
        start = max(start, reader.log_start(state.leader, end))
    same = {"topic": topic.name, "topic_id": topic.topic_id, "partition": state.partition}
    for replica in state.replicas if end > start else ():
        yield from (same | {"broker_id": int(replica)} | row for row in reader.replica(replica, start, end))


class _Reader:
    """Reads one partition, replica by replica."""

    def __init__(self, admin: Admin, topic: str, partition: int, until_s: float) -> None:
        self._admin, self._topic, self._partition, self._until_s = admin, topic, partition, until_s

    def log_start(self, leader: BrokerId, end: int) -> int:
        """The first offset that the leader has; 0 where it can't be asked, which reading it will tell."""
        try:
            return int(self._fetch(leader, end, at_once=True).log_start_offset)
        except AftershockError:
            return 0

    def replica(self, broker: BrokerId, start: int, end: int) -> list[Row]:
        """Its stretches, and a row with the reason if it could not be read to the end."""
        stretches: dict[int, Row] = {}
        why = None
        try:
            for header in self._headers(broker, start, end):
                _add(stretches, header, end)
        except AftershockError as error:
            why = str(error)
        if why is not None:
            stretches[-1] = _stretch(start, end) | {"records": None, "fingerprint": None, "error": why}
        return list(stretches.values())

    def _headers(self, broker: BrokerId, start: int, end: int) -> Iterator[BatchHeader]:
        at = start
        while at < end:
            answer = self._fetch(broker, at)
            for header in _batches(memoryview(answer.records or b"")):
                if header.base_offset >= end:
                    return
                yield header
                at = header.base_offset + header.last_offset_delta + 1
            if at < end and time.monotonic() > self._until_s:
                raise ClusterError(f"k{broker} was read to offset {at} of {end} in time")

    def _fetch(self, broker: BrokerId, at: int, *, at_once: bool = False) -> Any:
        return fetch_from(self._admin, broker, (self._topic, self._partition), at, at_once=at_once)


def _batches(records: memoryview) -> Iterator[BatchHeader]:
    """Those that are whole, each with the CRC of what is there."""
    at = 0
    while len(records) - at >= BATCH_OVERHEAD:
        header = BatchHeader(*UNTIL_CRC.unpack_from(records, at), *AFTER_CRC.unpack_from(records, at + UNTIL_CRC.size))
        end = at + UNTIL_LENGTH_BYTES + header.length
        if not at + BATCH_OVERHEAD <= end <= len(records):
            return
        yield header._replace(crc=crc32c.crc32c(records[at + UNTIL_CRC.size : end]))
        at = end


def _add(stretches: dict[int, Row], header: BatchHeader, end: int) -> None:
    first = header.base_offset // STRETCH * STRETCH
    row = stretches.setdefault(first, _stretch(first, min(first + STRETCH, end)))
    row["records"] += header.record_count
    row["fingerprint"] ^= _hash(header)


def _stretch(start: int, end: int) -> Row:
    return {"start_offset": start, "end_offset": end, "records": 0, "fingerprint": 0, "error": None}


def _hash(header: BatchHeader) -> int:
    told = _BATCH.pack(header.base_offset, header.leader_epoch, header.crc)
    return int.from_bytes(blake2b(told, digest_size=8).digest(), "big", signed=True)

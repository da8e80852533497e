"""Logs and replicas: log ends, record deletion, replica fingerprints, and committed offsets with their batches.

* **Log ends.** The end is the high watermark: the limit of what consumers may read and of what Kafka deletes on request
  (DeleteRecords, KIP-107). Only a partition's leader answers these requests.
* **Replicas**, compared at the end of a run up to the high watermark. Each replica is read directly by a consumer's
  Fetch without a rack or a session. A follower answers such a Fetch from version 11 on (KIP-392), and only up to its
  own high watermark, which reaches the leader's with its next fetch; so the read waits for it. Replicas keep batches as
  the leader wrote them: a batch is represented by its base offset, leader epoch and the CRC of its actual content (not
  the CRC that it claims). The fingerprint of a stretch of STRETCH offsets is the exclusive or of its batches' hashes,
  so a difference can be located. Compacted topics are skipped, since each replica is cleaned on its own. A replica that
  can't be read to the end has a row with the error.
* **Commits** as written by coordinators, with the batch of each entry. Each partition is read from its leader, from the
  first offset to the high watermark. A coordinator's flush is one batch (KIP-1224), so the number of batches is the
  number of flushes. No entry is missing, because Kafka does not compact the active segment, and no run fills a segment.
  Control batches and entries other than commits (group members) are skipped; a null ``committed`` is a tombstone. For
  share groups, whose acknowledgements are in a separate topic, only group and partition are reported. Sources:
  ``OffsetCommitKey``, ``OffsetCommitValue``, ``ShareSnapshotKey`` and ``ShareUpdateKey`` of Kafka 4.3.
"""

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Any, TypeVar, cast

import crc32c
import pyarrow as pa
from kio.schema.delete_records.v2 import request as delete
from kio.schema.fetch.v12 import request as fetch
from kio.schema.list_offsets.v9 import request as offsets
from kio.static.primitive import i32Timedelta

from aftershock.errors import AdminError, AftershockError, ClusterError
from aftershock.faults.targets.values import BrokerId, PartitionState, TopicPartition
from aftershock.harness.kafka.admin import TIMEOUT, TOPIC, Admin, by_topic, raise_for
from aftershock.workloads.kafka.wire.batch import (
    AFTER_CRC,
    BATCH_OVERHEAD,
    CONTROL,
    TRANSACTIONAL,
    UNTIL_CRC,
    UNTIL_LENGTH_BYTES,
    Batch,
    BatchHeader,
    Record,
    parse,
)
from aftershock.workloads.load.logread import EndOffsets, Topic
from aftershock.workloads.load.outcomes import write_whole

_WAIT = i32Timedelta.parse(timedelta(milliseconds=200))
_BYTES = 4 * 1024 * 1024


def fetch_from(admin: Admin, broker: BrokerId, where: TopicPartition, at: int, *, no_wait: bool = False) -> Any:
    """Fetch from one replica; return the partition's part of the response (``records``, ``log_start_offset``, …).

    ``no_wait``: return at once if there are no records. Raises AdminError for an error code.
    """
    topic_name, number = where
    partition = fetch.FetchPartition(
        partition=cast("Any", number), fetch_offset=cast("Any", at), partition_max_bytes=cast("Any", _BYTES)
    )
    topic = fetch.FetchTopic(topic=cast("Any", topic_name), partitions=(partition,))
    min_bytes = cast("Any", 0 if no_wait else 1)
    response = admin.ask(
        fetch.FetchRequest(max_wait=_WAIT, min_bytes=min_bytes, topics=(topic,), forgotten_topics_data=()), only=broker
    )
    raise_for(response.error_code, f"fetch from k{broker}")
    answer = response.responses[0].partitions[0]
    raise_for(answer.error_code, f"fetch {topic_name}/{number} from k{broker}")
    return answer


T = TypeVar("T")
_EARLIEST, _LATEST = -2, -1
_CONSUMER = -1


def log_ends(admin: Admin, topic: str) -> dict[TopicPartition, tuple[int, int]]:
    """Return (log start, high watermark) of each partition. Raises AdminError if a partition has no leader."""
    numbers = [(topic, state.partition) for state in admin.partitions([topic])]
    starts, ends = _offsets(admin, numbers, _EARLIEST), _offsets(admin, numbers, _LATEST)
    return {where: (starts[where], ends[where]) for where in numbers}


def delete_records(admin: Admin, before: Mapping[TopicPartition, int]) -> None:
    """Raise each log start to the given offset, on the leader; followers learn it with their fetches."""
    for leader, partitions in _by_leader(admin, before):
        topics = tuple(
            delete.DeleteRecordsTopic(
                name=cast("Any", topic),
                partitions=tuple(
                    delete.DeleteRecordsPartition(
                        partition_index=cast("Any", number), offset=cast("Any", before[topic, number])
                    )
                    for number in numbers
                ),
            )
            for topic, numbers in by_topic(partitions)
        )
        _results(
            admin.ask_controller(delete.DeleteRecordsRequest(topics=topics, timeout=TIMEOUT), leader),
            "delete records of",
            lambda result: result.low_watermark,
        )


def _offsets(admin: Admin, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for leader, led in _by_leader(admin, partitions):
        topics = tuple(
            offsets.ListOffsetsTopic(
                name=cast("Any", topic),
                partitions=tuple(
                    offsets.ListOffsetsPartition(partition_index=cast("Any", n), timestamp=cast("Any", timestamp))
                    for n in numbers
                ),
            )
            for topic, numbers in by_topic(led)
        )
        request = offsets.ListOffsetsRequest(
            replica_id=cast("Any", _CONSUMER), isolation_level=cast("Any", 0), topics=topics
        )
        found |= _results(admin.ask(request, only=leader), "list offsets of", lambda result: int(result.offset))
    return found


def _by_leader(admin: Admin, partitions: Iterable[TopicPartition]) -> Iterable[tuple[BrokerId, list[TopicPartition]]]:
    requested = set(partitions)
    led: dict[BrokerId, list[TopicPartition]] = {}
    for state in admin.partitions(sorted({topic for topic, _ in requested})):
        if (where := (state.topic, state.partition)) in requested:
            if state.leader is None:
                raise AdminError(f"{state.topic}/{state.partition} has no leader", "LEADER_NOT_AVAILABLE")
            led.setdefault(state.leader, []).append(where)
    return led.items()


def _results(response: Any, what: str, of: Callable[[Any], T]) -> dict[TopicPartition, T]:
    for topic in response.topics:
        for result in topic.partitions:
            raise_for(result.error_code, f"{what} {topic.name}/{result.partition_index}")
    return {
        (topic.name, result.partition_index): of(result) for topic in response.topics for result in topic.partitions
    }


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
"""A stretch of one replica of one partition; ``error``: the reason why it was not read to its end, else null."""

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
    """Write every replica up to ``ends`` as ``part-<topic>.parquet`` into ``folder``, which is created. Blocks.

    ``begin`` maps topic and partition to the first offset to read, if that is not the start of the log.
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
    """Yield rows of all replicas, from the leader's log start on: followers may lag behind a deletion."""
    end = ends[topic.name].get(state.partition, 0)
    reader = _Reader(admin, topic.name, state.partition, until_s)
    start = begin.get(topic.name, {}).get(state.partition, 0)
    if state.leader is not None and end > start:
        start = max(start, reader.log_start(state.leader, end))
    identity = {"topic": topic.name, "topic_id": topic.topic_id, "partition": state.partition}
    for replica in state.replicas if end > start else ():
        yield from (identity | {"broker_id": int(replica)} | row for row in reader.replica(replica, start, end))


class _Reader:
    """Reads one partition, replica by replica."""

    def __init__(self, admin: Admin, topic: str, partition: int, until_s: float) -> None:
        self._admin, self._topic, self._partition, self._until_s = admin, topic, partition, until_s

    def log_start(self, leader: BrokerId, end: int) -> int:
        """Return the leader's log start; 0 if it does not answer, which the read then reports."""
        try:
            return int(self._fetch(leader, end, no_wait=True).log_start_offset)
        except AftershockError:
            return 0

    def replica(self, broker: BrokerId, start: int, end: int) -> list[Row]:
        """Return a replica's stretches, and a row with the error if it was not read to the end."""
        stretches: dict[int, Row] = {}
        failure = None
        try:
            for header in self._headers(broker, start, end):
                _add(stretches, header, end)
        except AftershockError as error:
            failure = str(error)
        if failure is not None:
            stretches[-1] = _stretch(start, end) | {"records": None, "fingerprint": None, "error": failure}
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

    def _fetch(self, broker: BrokerId, at: int, *, no_wait: bool = False) -> Any:
        return fetch_from(self._admin, broker, (self._topic, self._partition), at, no_wait=no_wait)


def _batches(records: memoryview) -> Iterator[BatchHeader]:
    """Yield the complete batches, each with the CRC of its actual content."""
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


OFFSETS, SHARE_STATE = "__consumer_offsets", "__share_group_state"
COMMITTED_SCHEMA = pa.schema(
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
"""A commit. ``offset`` is its position in that partition of the coordinators' topic, ``batch`` its batch's base offset;
``broker_id`` is the partition's current leader, ``leader_epoch`` the writer's epoch."""

_KEYS = (0, 1)  # versions of OffsetCommitKey (2 and above are other entries), and both of the share coordinator
_VERSION = struct.Struct(">h")
_VALUE = struct.Struct(">hq")
_PARTITION = struct.Struct(">i")
_UUID_BYTES = 16

CommittedRow = dict[str, Any]


def read_committed(admin: Admin, topics: Iterable[str], folder: Path, deadline_s: float) -> None:
    """Write ``part-0.parquet`` of ``OFFSETS``, ``SHARE_STATE`` or both into ``folder``, which is created. Blocks.

    Raises:
        ClusterError: a partition was not read to the end in time.
        AdminError: a partition has no leader, or Kafka refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + deadline_s
    rows = [row for topic in topics for row in _committed_rows(admin, topic, until_s)]
    columns = {name: [row[name] for row in rows] for name in COMMITTED_SCHEMA.names}
    write_whole(folder / "part-0.parquet", COMMITTED_SCHEMA, iter([columns] if rows else []))


def _committed_rows(admin: Admin, topic: str, until_s: float) -> Iterator[CommittedRow]:
    ends = log_ends(admin, topic)
    for state in admin.partitions([topic]):
        for batch in _committed_batches(admin, state, ends[topic, state.partition], until_s):
            identity = {"broker_id": state.leader, "partition": state.partition}
            yield from _entries(batch, identity, shared=topic == SHARE_STATE)


def _committed_batches(admin: Admin, state: PartitionState, span: tuple[int, int], until_s: float) -> Iterator[Batch]:
    at, end = span
    if state.leader is None:
        raise ClusterError(f"{state.topic}/{state.partition} has no leader")
    while at < end:
        for batch in parse(fetch_from(admin, state.leader, (state.topic, state.partition), at).records or b""):
            yield batch
            at = batch.last_offset + 1
        if at < end and time.monotonic() > until_s:
            raise ClusterError(f"{state.topic}/{state.partition} was read to offset {at} of {end} in time")


def _entries(batch: Batch, identity: CommittedRow, *, shared: bool) -> Iterator[CommittedRow]:
    header = batch.header
    if header.attributes & CONTROL:
        return
    batch_columns = {
        "batch": header.base_offset,
        "leader_epoch": header.leader_epoch,
        "transactional": bool(header.attributes & TRANSACTIONAL),
    }
    for record in batch.records():
        if (told := _entry(record, shared=shared)) is not None:
            yield identity | batch_columns | told | {"offset": record.offset}


def _entry(record: Record, *, shared: bool) -> CommittedRow | None:
    """Parse group, topic (for share groups only an id) and partition of the key, and the offset in the value."""
    key = record.key or b""
    if len(key) < _VERSION.size or _VERSION.unpack_from(key)[0] not in _KEYS:
        return None
    group, at = _text(key, _VERSION.size)
    topic, at = (None, at + _UUID_BYTES) if shared else _text(key, at)
    (number,) = _PARTITION.unpack_from(key, at)
    committed = None if shared or record.value is None else _VALUE.unpack_from(record.value)[1]
    return {"group": group, "topic": topic, "topic_partition": number, "committed": committed}


def _text(data: bytes, at: int) -> tuple[str, int]:
    """Read a string with a 16-bit length prefix; return it and its end position."""
    begin = at + _VERSION.size
    end = begin + int(_VERSION.unpack_from(data, at)[0])
    return data[begin:end].decode(), end

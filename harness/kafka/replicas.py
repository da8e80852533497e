"""Contents of logs, with log ends, record deletion, fingerprints of replicas, and commits of offsets.

The end of a log means its high watermark, because consumers can read, and DeleteRecords (KIP-107) can delete, only
records below the high watermark.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import crc32c
import pyarrow as pa
from kio.schema.delete_records.v2 import request as delete
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import request as fetch
from kio.schema.list_offsets.v9 import request as offsets
from kio.static.primitive import i32, i32Timedelta

from aftershock.errors import AdminError, AftershockError, ClusterError
from aftershock.faults.targets.values import BrokerId, TopicPartition
from aftershock.harness.kafka.admin import TIMEOUT, TOPIC, Admin, message, per_topic, raise_for
from aftershock.workloads.kafka.wire.batch import (
    AFTER_CRC,
    BATCH_OVERHEAD,
    CONTROL,
    TRANSACTIONAL,
    UNTIL_CRC,
    UNTIL_LENGTH_BYTES,
    Batch,
    BatchHeader,
    parse,
)
from aftershock.workloads.load.logread import EndOffsets, ReadLimit, Topic
from aftershock.workloads.load.outcomes import write_whole
from aftershock.workloads.load.schedule import unpack

T = TypeVar("T")
_WAIT = i32Timedelta.parse(timedelta(milliseconds=200))
_BYTES = 4 * 1024 * 1024
_EARLIEST, _LATEST = -2, -1
_CONSUMER = -1


def fetch_from(admin: Admin, broker: BrokerId, where: TopicPartition, at: int, *, no_wait: bool = False) -> Any:
    """Fetch from the replica of the partition ``where`` on a broker; return the partition's part of the response.

    With ``no_wait``, the broker answers at once even if there are no records. Raises AdminError if the response has an
    error code.
    """
    topic_name, number = where
    partition = message(fetch.FetchPartition, partition=number, fetch_offset=at, partition_max_bytes=_BYTES)
    topic = message(fetch.FetchTopic, topic=topic_name, partitions=(partition,))
    request = fetch.FetchRequest(
        max_wait=_WAIT, min_bytes=i32(0 if no_wait else 1), topics=(topic,), forgotten_topics_data=()
    )
    response = admin.ask(request, only=broker)
    raise_for(response.error_code, f"fetch from k{broker}")
    answer = response.responses[0].partitions[0]
    raise_for(answer.error_code, f"fetch {topic_name}/{number} from k{broker}")
    return answer


def log_ends(admin: Admin, topic: str) -> dict[TopicPartition, tuple[int, int]]:
    """Return each partition's log start and high watermark; raise AdminError if a partition has no leader."""
    numbers = [(topic, state.partition) for state in admin.partitions([topic])]
    starts, ends = _offsets(admin, numbers, _EARLIEST), _offsets(admin, numbers, _LATEST)
    return {where: (starts[where], ends[where]) for where in numbers}


def stable_offsets(admin: Admin, topic: str) -> dict[TopicPartition, tuple[int, int]]:
    """Return each partition's last stable offset and high watermark; raise AdminError if a partition has no leader."""
    numbers = [(topic, state.partition) for state in admin.partitions([topic])]
    stable, ends = _offsets(admin, numbers, _LATEST, isolation=1), _offsets(admin, numbers, _LATEST)
    return {where: (stable[where], ends[where]) for where in numbers}


def stable_offsets_led_by(
    admin: Admin, broker: BrokerId, topics: Sequence[str]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the last stable offset and high watermark of the partitions that a broker leads, as far as it answers.

    The last stable offset is read first, so that it is never the later one. Raises AdminError if the broker does not
    answer, or does not know a topic.
    """
    states = admin.partitions(topics, seen_by=broker)
    led = [(state.topic, state.partition) for state in states if state.leader == broker]
    if not led:
        return {}
    stable, ends = (
        {
            (topic.name, result.partition_index): int(result.offset)
            for topic in admin.ask(_offsets_request(led, _LATEST, isolation), only=broker).topics
            for result in topic.partitions
            if result.error_code is ErrorCode.none
        }
        for isolation in (1, 0)
    )
    return {where: (stable[where], ends[where]) for where in led if where in stable and where in ends}


def delete_records(admin: Admin, before: Mapping[TopicPartition, int]) -> None:
    """Delete each partition's records below the offset in ``before``; followers delete them after their next fetch."""
    for leader, partitions in _by_leader(admin, before):
        kinds = delete.DeleteRecordsTopic, delete.DeleteRecordsPartition
        topics = per_topic(*kinds, partitions, lambda where: {"offset": before[where]})
        _results(
            admin.ask_controller(delete.DeleteRecordsRequest(topics=topics, timeout=TIMEOUT), leader),
            "delete records of",
            lambda result: result.low_watermark,
        )


def _offsets(
    admin: Admin, partitions: Iterable[TopicPartition], timestamp: int, *, isolation: int = 0
) -> dict[TopicPartition, int]:
    values: dict[TopicPartition, int] = {}
    for leader, led in _by_leader(admin, partitions):
        request = _offsets_request(led, timestamp, isolation)
        values |= _results(admin.ask(request, only=leader), "list offsets of", lambda result: int(result.offset))
    return values


def _offsets_request(partitions: Iterable[TopicPartition], timestamp: int, isolation: int) -> Any:
    kinds = offsets.ListOffsetsTopic, offsets.ListOffsetsPartition
    topics = per_topic(*kinds, partitions, lambda _: {"timestamp": timestamp})
    return message(offsets.ListOffsetsRequest, replica_id=_CONSUMER, isolation_level=isolation, topics=topics)


def _by_leader(admin: Admin, partitions: Iterable[TopicPartition]) -> Iterable[tuple[BrokerId, list[TopicPartition]]]:
    requested = set(partitions)
    led: dict[BrokerId, list[TopicPartition]] = {}
    for state in admin.partitions(sorted({topic for topic, _ in requested})):
        if (where := (state.topic, state.partition)) in requested:
            if state.leader is None:
                raise AdminError(f"{state.topic}/{state.partition} has no leader", "LEADER_NOT_AVAILABLE")
            led.setdefault(state.leader, []).append(where)
    return led.items()


def _results(response: Any, action: str, of: Callable[[Any], T]) -> dict[TopicPartition, T]:
    for topic in response.topics:
        for result in topic.partitions:
            raise_for(result.error_code, f"{action} {topic.name}/{result.partition_index}")
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
"""Row for an offset range of a replica; ``error`` says why the range was not read to its end, otherwise null."""


class Identity(NamedTuple):
    """Producer id and epoch of an idempotent producer, as the batch at a place in the log has them for the first time.

    ``producer_id`` is the producer's number in the run; each id and epoch has sequence numbers of its own.
    """

    producer_id: int
    kafka_producer_id: int
    kafka_epoch: int
    timestamp_ms: int
    topic: str
    partition: int
    offset: int


STRETCH = 10_000
COMMITS_A_GROUP = 32_768
_BATCH = struct.Struct(">qiI")

Row = dict[str, Any]


def read_replicas(
    admin: Admin,
    topics: Sequence[Topic],
    ends: EndOffsets,
    folder: Path,
    limit: ReadLimit,
    begin: Mapping[str, Mapping[int, int]],
) -> list[Identity]:
    """Write fingerprints of all replicas, up to the offsets ``ends``, to ``part-<topic>.parquet`` in ``folder``.

    Return the producers' identities that the leaders' logs have, each with its first batch.

    ``begin`` has the first offset to read by topic and partition; other logs are read from their start. Compacted
    topics get no fingerprints, because Kafka compacts each replica independently. All brokers are read at the same
    time; the reads of a broker share the broker's ``limit``, so a dead broker costs its idle time only once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    limits: dict[BrokerId, ReadLimit] = {}
    identities: dict[tuple[int, int, int], Identity] = {}
    for topic in topics:
        if "compact" in (admin.configs(TOPIC, topic.name).get("cleanup.policy") or ""):
            continue
        # of each broker: (partition, start, end), and whether the broker leads it
        parts: dict[BrokerId, list[tuple[int, int, int, bool]]] = {}
        for state in admin.partitions([topic.name]):
            where = (topic.name, state.partition)
            start = begin.get(topic.name, {}).get(state.partition, 0)
            end = ends[topic.name].get(state.partition, 0)
            if state.leader is not None and end > start:
                # followers may lag behind a deletion; if the leader does not answer, its own row has the error
                with suppress(AftershockError):
                    answer = fetch_from(admin, state.leader, where, end, no_wait=True)
                    start = max(start, int(answer.log_start_offset))
            for replica in state.replicas if end > start else ():
                parts.setdefault(replica, []).append((state.partition, start, end, replica == state.leader))

        def read(broker: BrokerId, topic: Topic = topic, parts: Mapping[BrokerId, Any] = parts) -> list[Row]:
            broker_limit = limits.setdefault(broker, limit.part())
            # an Admin sends one request at a time, so each broker is read by an Admin of its own
            with closing(admin.copy()) as own:
                identity = {"topic": topic.name, "topic_id": topic.topic_id, "broker_id": int(broker)}
                return [
                    identity | {"partition": number} | row
                    for number, start, end, leads in parts[broker]
                    for row in _read_replica(
                        own, (topic.name, number), broker, start, end, broker_limit, identities if leads else None
                    )
                ]

        rows: list[Row] = []
        if parts:
            with ThreadPoolExecutor(len(parts), "replicas") as threads:
                rows = sorted(
                    (row for broker_rows in threads.map(read, parts) for row in broker_rows),
                    key=lambda row: (row["partition"], row["broker_id"], row["start_offset"]),
                )
        columns = {name: [row[name] for row in rows] for name in SCHEMA.names}
        write_whole(folder / f"part-{topic.name}.parquet", SCHEMA, iter([columns] if rows else []))
    return sorted(identities.values(), key=lambda one: (one.producer_id, one.timestamp_ms))


def _read_replica(
    admin: Admin,
    where: TopicPartition,
    broker: BrokerId,
    start: int,
    end: int,
    limit: ReadLimit,
    identities: dict[tuple[int, int, int], Identity] | None = None,
) -> list[Row]:
    """Return a row with a fingerprint for every `STRETCH` offsets of a replica; if a read fails, a row with the error.

    A follower answers a consumer's Fetch request (KIP-392) only up to the high watermark that the follower knows, so
    reads are repeated until the follower has fetched the leader's high watermark.

    Each fingerprint is the exclusive or of the hashes of the batches, so that a difference between replicas can be
    located. A batch is hashed by its base offset, its leader epoch, and a CRC that is computed from its content.
    """
    stretches: dict[int, Row] = {}
    at, known = start, set[tuple[int, int]]()
    try:
        while at < end:
            for header, content_of in _batches(memoryview(fetch_from(admin, broker, where, at).records or b"")):
                if header.base_offset >= end:
                    return list(stretches.values())
                pair = header.producer_id, header.producer_epoch
                if identities is not None and header.producer_id >= 0 and pair not in known:
                    known.add(pair)
                    _note_identity(identities, where, header, content_of)
                first = header.base_offset // STRETCH * STRETCH
                row = stretches.setdefault(first, _stretch(first, min(first + STRETCH, end)))
                row["records"] += header.record_count
                content = _BATCH.pack(header.base_offset, header.leader_epoch, header.crc)
                row["fingerprint"] ^= int.from_bytes(blake2b(content, digest_size=8).digest(), "big", signed=True)
                at = header.base_offset + header.last_offset_delta + 1
                limit.progressed()
            if at < end and (why := limit.why_over()):
                raise ClusterError(f"broker k{broker} served its replica only to offset {at} of {end}: {why}")
    except AftershockError as error:
        stretches[-1] = _stretch(start, end) | {"records": None, "fingerprint": None, "error": str(error)}
    return list(stretches.values())


def _stretch(start: int, end: int) -> Row:
    return {"start_offset": start, "end_offset": end, "records": 0, "fingerprint": 0, "error": None}


def _note_identity(
    identities: dict[tuple[int, int, int], Identity], where: TopicPartition, header: BatchHeader, content: memoryview
) -> None:
    """Note the id and epoch of a batch, with the producer of the run that its first record's mark names.

    Transactions change the epoch each time, so their batches tell nothing about restarts.
    """
    if header.attributes & (CONTROL | TRANSACTIONAL):
        return
    with suppress(AftershockError):  # what can't be read is a failure of the replica's own check
        batch = next(parse(content), None)
        mark = unpack([(name, value) for name, value in batch.records[0].headers]) if batch and batch.records else None
        if mark is None:
            return
        found = Identity(
            mark.producer_id,
            header.producer_id,
            header.producer_epoch,
            header.base_timestamp_ms,
            *where,
            header.base_offset,
        )
        key = found[:3]
        first = identities.get(key)
        if first is None or found.timestamp_ms < first.timestamp_ms:
            identities[key] = found


def _batches(records: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the header of each whole batch, with a CRC that is computed from its content, and the batch's bytes."""
    at = 0
    while len(records) - at >= BATCH_OVERHEAD:
        header = BatchHeader(*UNTIL_CRC.unpack_from(records, at), *AFTER_CRC.unpack_from(records, at + UNTIL_CRC.size))
        end = at + UNTIL_LENGTH_BYTES + header.length
        if not at + BATCH_OVERHEAD <= end <= len(records):
            return
        yield header._replace(crc=crc32c.crc32c(records[at + UNTIL_CRC.size : end])), records[at:end]
        at = end


SHARE_STATE = "__share_group_state"
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
        ("timestamp_ms", pa.int64()),
    ]
)
"""Row of one offset commit, which is a record in a partition of ``__consumer_offsets`` or ``__share_group_state``.

``partition`` and ``offset`` locate that record, ``batch`` is the base offset of its batch, ``broker_id`` the
partition's current leader, and ``leader_epoch`` the writer's epoch. ``committed`` is the committed offset, null for a
tombstone and for share groups."""

_KEYS = (0, 1)  # versions of OffsetCommitKey (2 and above are other entries), and both of the share coordinator
_VERSION = struct.Struct(">h")
_VALUE = struct.Struct(">hq")
_PARTITION = struct.Struct(">i")
_UUID_BYTES = 16


def read_committed(admin: Admin, topics: Iterable[str], folder: Path, limit: ReadLimit) -> None:
    """Write the offset commits in topics of Kafka's coordinators to ``part-0.parquet`` in ``folder``.

    A group coordinator writes one batch for each flush (KIP-1224), so the number of batches is the number of flushes.
    All offset commits of a run are still in the log, because Kafka does not compact the active segment, and a run does
    not fill a segment.

    Raises ClusterError if the ``limit`` is over before a partition is read to its end, or if a partition has no leader;
    AdminError if Kafka refused.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def groups() -> Iterator[dict[str, Any]]:
        rows: list[Row] = []
        for topic in topics:
            ends = log_ends(admin, topic)
            for state in admin.partitions([topic]):
                at, end = ends[topic, state.partition]
                if state.leader is None:
                    raise ClusterError(f"{topic}/{state.partition} has no leader")
                identity = {"broker_id": state.leader, "partition": state.partition}
                while at < end:
                    for batch in parse(fetch_from(admin, state.leader, (topic, state.partition), at).records or b""):
                        rows += [identity | commit for commit in _commits(batch, shared=topic == SHARE_STATE)]
                        at = batch.last_offset + 1
                        limit.progressed()
                    if len(rows) >= COMMITS_A_GROUP:
                        yield {name: [row[name] for row in rows] for name in COMMITTED_SCHEMA.names}
                        rows = []
                    if at < end and (why := limit.why_over()):
                        where = f"{topic}/{state.partition}"
                        raise ClusterError(f"the partition {where} was read only to offset {at} of {end}: {why}")
        if rows:
            yield {name: [row[name] for row in rows] for name in COMMITTED_SCHEMA.names}

    write_whole(folder / "part-0.parquet", COMMITTED_SCHEMA, groups())


def _commits(batch: Batch, *, shared: bool) -> Iterator[Row]:
    """Yield a row for each offset commit of a batch; skip control batches and records about group members.

    Commits have Kafka's formats ``OffsetCommitKey``, ``OffsetCommitValue``, ``ShareSnapshotKey``, ``ShareUpdateKey``.
    """
    header = batch.header
    for record in batch.records if not header.attributes & CONTROL else ():
        key = record.key or b""
        if len(key) < _VERSION.size or _VERSION.unpack_from(key)[0] not in _KEYS:
            continue
        group, at = _text(key, _VERSION.size)
        topic, at = (None, at + _UUID_BYTES) if shared else _text(key, at)
        yield {
            "offset": record.offset,
            "batch": header.base_offset,
            "leader_epoch": header.leader_epoch,
            "transactional": bool(header.attributes & TRANSACTIONAL),
            "group": group,
            "topic": topic,
            "topic_partition": _PARTITION.unpack_from(key, at)[0],
            "timestamp_ms": record.timestamp_ms,
            "committed": None if shared or record.value is None else _VALUE.unpack_from(record.value)[1],
        }


def _text(data: bytes, at: int) -> tuple[str, int]:
    begin = at + _VERSION.size
    end = begin + int(_VERSION.unpack_from(data, at)[0])
    return data[begin:end].decode(), end

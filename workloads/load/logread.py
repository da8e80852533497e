"""Reader of every record of every partition of the run's topics, read from Kafka's log after the load as evidence."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters.security import librdkafka_config
from aftershock.workloads.kafka.wire.security import PLAINTEXT, Security
from aftershock.workloads.load.outcomes import write_whole
from aftershock.workloads.load.schedule import Filler, Headers, unpack
from aftershock.workloads.load.spool import VALUE_CORRUPT

LOG_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("producer_id", pa.int32()),
        ("seq", pa.int64()),
        ("error", pa.string()),
    ]
)
"""Columns of the log: ``producer_id`` and ``seq`` are null for a record that no producer of the run sent; ``error`` is
VALUE_CORRUPT if the record's value differs from the value that was sent."""

ROW_GROUP = 131_072
_REQUEST_S = 2.0
_BATCH = 1000

EndOffsets = dict[str, dict[int, int]]


@dataclass(frozen=True)
class Topic:
    name: str
    topic_id: str
    partitions: int


def end_offsets(
    bootstrap: str, topics: Sequence[Topic], deadline_s: float, security: Security = PLAINTEXT
) -> EndOffsets:
    """Return each partition's high watermark; raise ``WorkloadError`` if one is still unknown after ``deadline_s``."""
    with closing(_consumer(bootstrap, security)) as consumer:
        return _ends(consumer, topics, time.monotonic() + deadline_s)


def read_log(
    bootstrap: str,
    topics: Sequence[Topic],
    log: Path,
    deadline_s: float,
    *,
    security: Security = PLAINTEXT,
    begin: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
) -> EndOffsets:
    """Write the records of each topic to ``part-<topic>.parquet`` in the directory ``log``; return the end offsets.

    A topic is read from its start, or from the offsets in ``begin`` (topic → partition → offset). Reading blocks, so
    call ``read_log`` from a thread. Raises ``WorkloadError`` if a partition is not read to its end within
    ``deadline_s``, because its unread records would look lost.
    """
    log.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + deadline_s
    with closing(_consumer(bootstrap, security)) as consumer:
        ends = _ends(consumer, topics, until_s)
        for topic in topics:
            first = {number: begin.get(topic.name, {}).get(number, 0) for number in ends[topic.name]}
            groups = _row_groups(consumer, topic, first, ends[topic.name], until_s)
            write_whole(log / f"part-{topic.name}.parquet", LOG_SCHEMA, groups)
    return ends


def _consumer(bootstrap: str, security: Security) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "aftershock-log",
            "group.id": "aftershock-log",  # librdkafka requires a group id; nothing is committed
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",  # aborted transactions are part of the log
            "log_level": 2,
            **librdkafka_config(security),
        }
    )


def _ends(consumer: Consumer, topics: Sequence[Topic], until_s: float) -> EndOffsets:
    ends: EndOffsets = {}
    for topic in topics:
        partitions = topic.partitions
        with suppress(KafkaException):  # if no broker answers, reading the ends reports it
            metadata = consumer.list_topics(topic.name, timeout=_REQUEST_S).topics[topic.name]
            partitions = max(partitions, len(metadata.partitions))
        ends[topic.name] = {number: _end(consumer, topic.name, number, until_s) for number in range(partitions)}
    return ends


def _end(consumer: Consumer, topic: str, number: int, until_s: float) -> int:
    while True:
        reason = "no answer"
        try:
            watermarks = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_REQUEST_S)
            if watermarks is not None:
                return watermarks[1]
        except KafkaException as error:
            reason = str(error.args[0])
        if time.monotonic() > until_s:
            raise WorkloadError(
                f"the end of {topic}/{number} was not known in time ({reason}); check that it has a leader"
            )


def _row_groups(
    consumer: Consumer, topic: Topic, first: Mapping[int, int], ends: Mapping[int, int], until_s: float
) -> Iterator[dict[str, Any]]:
    names = "partition", "offset", "producer_id", "seq", "error"
    rows = _rows(consumer, topic.name, first, ends, until_s)
    while group := list(islice(rows, ROW_GROUP)):
        columns: dict[str, Any] = dict(zip(names, zip(*group, strict=True), strict=True))
        yield columns | {"topic": [topic.name] * len(group), "topic_id": [topic.topic_id] * len(group)}


def _rows(
    consumer: Consumer, topic: str, first: Mapping[int, int], ends: Mapping[int, int], until_s: float
) -> Iterator[tuple[object, ...]]:
    """Yield (partition, offset, producer id, seq, error) of each record between the offsets ``first`` and ``ends``."""
    filler = Filler()
    positions = {number: first[number] for number, end in ends.items() if end > first[number]}
    consumer.assign([TopicPartition(topic, number, offset) for number, offset in positions.items()])
    while behind := {number: offset for number, offset in positions.items() if offset < ends[number]}:
        if time.monotonic() > until_s:
            number, offset = next(iter(behind.items()))
            raise WorkloadError(
                f"the log of {topic}/{number} was read only to offset {offset} of {ends[number]} before the time limit"
            )
        for message in consumer.consume(_BATCH, timeout=0.1):
            number, offset, error = cast("int", message.partition()), cast("int", message.offset()), message.error()
            if error is None and offset < ends[number]:
                positions[number] = offset + 1
                mark = unpack(cast("Headers", message.headers()))
                if mark is None:
                    yield number, offset, None, None, None
                else:
                    corrupt = not filler.is_value(mark.seq, message.value() or b"")
                    yield number, offset, mark.producer_id, mark.seq, VALUE_CORRUPT if corrupt else None
            elif error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # librdkafka's own errors
                positions[number] = max(positions[number], offset)

"""Reader of every record of every partition of the run's topics, read from Kafka's log after the load as evidence."""

import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from aftershock.errors import WorkloadError
from aftershock.workloads.kafka.wire.security import PLAINTEXT, Security
from aftershock.workloads.load.outcomes import write_whole
from aftershock.workloads.load.schedule import Filler, Headers, JsonValue, Mark, mark_in
from aftershock.workloads.load.security import librdkafka_config
from aftershock.workloads.load.spool import UNKNOWN, VALUE_CORRUPT

LOG_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("producer_id", pa.int32()),
        ("seq", pa.int64()),
        ("error", pa.string()),
        ("leader_epoch", pa.int32()),
        ("timestamp_ms", pa.int64()),
        ("key_hash", pa.int64()),
    ]
)
"""Columns of the log: ``producer_id`` and ``seq`` are null for a record that no producer of the run sent; ``error`` is
VALUE_CORRUPT if the record's value differs from the value that was sent. ``leader_epoch`` is the partition leader epoch
in the header of the record's batch, which is the epoch of the leader that wrote the batch. Of the inputs and outputs of
a pipe, ``timestamp_ms`` is the record's timestamp (Unix time; of outputs, when the broker wrote it), and ``key_hash`` a
hash of its key, null without a key."""

ROW_GROUP = 131_072
TOPICS_AT_ONCE = 3
_REQUEST_S = 2.0
_BATCH = 1000
_QUEUE_KIB = 4096  # librdkafka's default, 64 MiB for each consumer, would be most of the runner's memory
_FETCH_BYTES = 2_097_152  # a response of librdkafka's default, 50 MB, goes beyond the queue

EndOffsets = dict[str, dict[int, int]]


@dataclass(frozen=True)
class RecordFormat:
    """Form of a topic's records: the place of their marks (``schedule.mark_in``), and the template of JSON values.

    Records ``of_pipe`` are the inputs and outputs of services. Outputs have a ``mark`` of their own, and any value.
    """

    mark: str | None = None
    value: Mapping[str, Any] | None = None
    of_pipe: bool = False


@dataclass(frozen=True)
class Topic:
    name: str
    topic_id: str
    partitions: int


class ReadLimit:
    """Limit of the final reads: a read ends if it makes no progress for ``idle_s``, or if ``stop`` is called.

    There is no limit on the whole time, because a day's records take minutes to read.
    """

    def __init__(self, idle_s: float, whole: "ReadLimit | None" = None) -> None:
        self._idle_s, self._whole, self._stopped = idle_s, whole or self, threading.Event()
        self.records = 0  # read by all parts, for the live display
        self.progressed()

    def part(self) -> "ReadLimit":
        """Return the limit of a part of the read, which makes progress of its own, and stops with the whole."""
        return ReadLimit(self._idle_s, self._whole)

    def progressed(self, records: int = 0) -> None:
        self._whole.records += records
        self._until_s = time.monotonic() + self._idle_s

    def stop(self) -> None:
        self._whole._stopped.set()  # noqa: SLF001 - of the same class

    def why_over(self) -> str:
        """Return why the read must end; empty if it may continue."""
        if self._whole._stopped.is_set():  # noqa: SLF001 - of the same class
            return "the run is ending"
        return f"there was no progress for {self._idle_s:g} s" if time.monotonic() > self._until_s else ""


def end_offsets(bootstrap: str, topics: Sequence[Topic], idle_s: float, security: Security = PLAINTEXT) -> EndOffsets:
    """Return each partition's high watermark; raise ``WorkloadError`` if no broker tells one for ``idle_s``."""
    ends: EndOffsets = {}
    limit = ReadLimit(idle_s)
    with closing(_consumer(bootstrap, security)) as consumer:
        for topic in topics:
            partitions = topic.partitions
            with suppress(KafkaException):  # if no broker answers, reading the ends reports it
                metadata = consumer.list_topics(topic.name, timeout=_REQUEST_S).topics[topic.name]
                partitions = max(partitions, len(metadata.partitions))
            ends[topic.name] = {number: _end(consumer, topic.name, number, limit) for number in range(partitions)}
    return ends


def read_log(
    bootstrap: str,
    topics: Sequence[Topic],
    ends: EndOffsets,
    log: Path,
    limit: ReadLimit,
    *,
    security: Security = PLAINTEXT,
    begin: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
    formats: Mapping[str, RecordFormat] = MappingProxyType({}),
) -> None:
    """Write the records of each topic to ``part-<topic>.parquet`` in the directory ``log``, up to the offsets ``ends``.

    A topic is read from its start, or from the offsets in ``begin`` (topic → partition → offset), a few topics at a
    time. ``formats`` has the topics whose records differ from those of other producers. Reading blocks, so call
    ``read_log`` from a thread. Raises ``WorkloadError`` if the ``limit`` is over before a partition is read to its end,
    because its unread records would look lost.
    """
    log.mkdir(parents=True, exist_ok=True)

    def read(topic: Topic) -> None:
        first = {number: begin.get(topic.name, {}).get(number, 0) for number in ends[topic.name]}
        with closing(_consumer(bootstrap, security)) as consumer:
            own = formats.get(topic.name, RecordFormat())
            groups = _row_groups(consumer, topic, own, first, ends[topic.name], limit.part())
            write_whole(log / f"part-{topic.name}.parquet", LOG_SCHEMA, groups)

    with ThreadPoolExecutor(TOPICS_AT_ONCE, "log") as threads:
        reads = [threads.submit(read, topic) for topic in topics]
        try:
            for done in as_completed(reads):
                done.result()
        except BaseException:
            limit.stop()  # the error counts, so the other topics need not be read
            raise


def _consumer(bootstrap: str, security: Security) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "aftershock-log",
            "group.id": "aftershock-log",  # librdkafka requires a group id; nothing is committed
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": _QUEUE_KIB,
            "fetch.max.bytes": _FETCH_BYTES,
            "fetch.queue.backoff.ms": 20,
            "isolation.level": "read_uncommitted",  # aborted transactions are part of the log
            "log_level": 2,
            **librdkafka_config(security),
        }
    )


def _end(consumer: Consumer, topic: str, number: int, limit: ReadLimit) -> int:
    while True:
        reason = "no answer"
        try:
            watermarks = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_REQUEST_S)
            if watermarks is not None:
                limit.progressed()
                return watermarks[1]
        except KafkaException as error:
            reason = str(error.args[0])
        if why := limit.why_over():
            raise WorkloadError(f"the end of {topic}/{number} is unknown, {why} ({reason}); check that it has a leader")


def _value_check(own: RecordFormat) -> Callable[[Mark, bytes], bool]:
    """Return a function that compares a record's value with the value that was sent."""
    filler = Filler()
    if own.value:
        return JsonValue(own.value).is_value
    if own.mark:
        return lambda _mark, _value: True  # nobody knows what a service makes of an input
    return lambda mark, value: filler.is_value(mark.seq, value)


def _key_hash(key: bytes | None) -> int:
    """Return 63 bits of a key's hash; UNKNOWN without a key."""
    return UNKNOWN if key is None else int.from_bytes(blake2b(key, digest_size=8).digest(), "big") >> 1


def _row_groups(
    consumer: Consumer,
    topic: Topic,
    own: RecordFormat,
    first: Mapping[int, int],
    ends: Mapping[int, int],
    limit: ReadLimit,
) -> Iterator[dict[str, Any]]:
    """Yield the columns of ROW_GROUP records at a time, of the records between the offsets ``first`` and ``ends``."""
    place, is_value = own.mark or "header", _value_check(own)
    positions = {number: first[number] for number, end in ends.items() if end > first[number]}
    consumer.assign([TopicPartition(topic.name, number, offset) for number, offset in positions.items()])
    partitions, producers, offsets, seqs, epochs = array("i"), array("i"), array("q"), array("q"), array("i")
    times, keys = array("q"), array("q")  # of pipes
    corrupt: list[int] = []  # rows of the group

    def columns() -> dict[str, Any]:
        numbers: dict[str, Any] = {
            name: np.frombuffer(values.tobytes(), dtype=values.typecode)
            for name, values in (
                *(("partition", partitions), ("offset", offsets), ("producer_id", producers), ("seq", seqs)),
                ("leader_epoch", epochs),
                *((("timestamp_ms", times), ("key_hash", keys)) if own.of_pipe else ()),
            )
        }
        error = np.full(len(partitions), None)
        error[corrupt] = VALUE_CORRUPT
        names = {name: pa.repeat(value, len(partitions)) for name, value in vars(topic).items() if name != "partitions"}
        del partitions[:], producers[:], offsets[:], seqs[:], epochs[:], times[:], keys[:], corrupt[:]
        return numbers | {"error": error, "topic": names["name"], "topic_id": names["topic_id"]}

    while behind := {number: offset for number, offset in positions.items() if offset < ends[number]}:
        messages = consumer.consume(_BATCH, timeout=0.1)
        if messages:
            limit.progressed(len(messages))
        if why := limit.why_over():
            number, offset = next(iter(behind.items()))
            raise WorkloadError(
                f"the log of {topic.name}/{number} was read only to offset {offset} of {ends[number]}: {why}; check "
                "that the brokers serve their partitions"
            )
        for message in messages:
            number, offset, error = cast("int", message.partition()), cast("int", message.offset()), message.error()
            if error is None and offset < ends[number]:
                positions[number] = offset + 1
                key, value = message.key(), message.value() or b""
                mark = mark_in(place, cast("Headers", message.headers()), key, value)
                partitions.append(number)
                offsets.append(offset)
                producers.append(mark.producer_id if mark else UNKNOWN)
                seqs.append(mark.seq if mark else UNKNOWN)
                epoch = message.leader_epoch()
                epochs.append(UNKNOWN if epoch is None else epoch)
                if own.of_pipe:
                    times.append(message.timestamp()[1])
                    keys.append(_key_hash(key))
                if mark and not is_value(mark, value):
                    corrupt.append(len(seqs) - 1)
                if len(seqs) == ROW_GROUP:
                    yield columns()
            elif error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # librdkafka's own errors
                positions[number] = max(positions[number], offset)
    if partitions:
        yield columns()

"""Workload adapters of confluent-kafka (librdkafka): producer, consumer and committer.

Rules:

* Producer: a record that cannot be queued fails at once and is not retried. No error of the cluster ends the loop.
  The adapter adds no retries or time-outs, because librdkafka's behaviour is under test.
* Consumer: its start offsets are fixed before it reports ready, so it cannot miss records that are produced later. No
  error of the cluster ends the loop.
* Committer: the admin client's ``alter_consumer_group_offsets`` for groups without members, one call per commit, never
  repeated by the adapter. The adapter keeps the deadline itself: an admin call that times out while the coordinator is
  away ends the whole process (an assertion of librdkafka 2.16, its issue 4605). Calls therefore get the longest
  time-out, and a commit without an answer at its deadline is in doubt. librdkafka uses one connection to a coordinator,
  whose requests the broker answers one after the other; the reference committer uses several.
"""

import time
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, cast

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from aftershock.workloads.adapters.confluent_settings import Traffic, committer_config, consumer_config, producer_config
from aftershock.workloads.adapters.receiving import ReceiveRecorder, ReceivingClient, resolve_start_offsets
from aftershock.workloads.adapters.sending import REQUEST_TIMEOUT_S, SendingClient, SendRecorder, retry_until_result
from aftershock.workloads.load.assignment import CommitAssignment, ConsumeAssignment, ProduceAssignment
from aftershock.workloads.load.events import Clock, Events
from aftershock.workloads.load.schedule import HEADER, US_PER_MS, US_PER_S, Filler, Headers, Stream, pack, unpack
from aftershock.workloads.load.spool import UNKNOWN, Status, status_of_code


class ConfluentProducer(SendingClient):
    """``client.Client`` over ``confluent_kafka.Producer``.

    Raises ``KafkaException`` for settings that librdkafka rejects.
    """

    def __init__(self, assignment: ProduceAssignment, clock: Clock, events: Events) -> None:
        self._assignment = assignment
        self._events = events
        self._traffic = Traffic()
        self._stream = Stream(
            assignment.seed,
            assignment.workload,
            assignment.record_size_min,
            assignment.record_size_max,
            assignment.keys,
        )
        self._filler = Filler(assignment.record_size_max)
        self._producer = Producer(
            producer_config(assignment) | {"error_cb": self._on_error, "stats_cb": self._traffic.on_statistics}
        )
        self._sending = SendRecorder(assignment, clock)

    def prepare(self) -> None:
        """Find the leaders in advance, so that this does not delay the first record."""
        retry_until_result(self._topic_known)

    def _topic_known(self) -> bool | None:
        topic = self._producer.list_topics(self._assignment.topic, timeout=REQUEST_TIMEOUT_S).topics[
            self._assignment.topic
        ]
        led = sum(partition.leader >= 0 for partition in topic.partitions.values())
        return True if topic.error is None and led >= self._assignment.partitions else None

    def step(self, wait_us: int) -> None:
        """Send the record that is due; if no record is due, serve delivery reports."""
        early_us = self._sending.early_us()
        if early_us is None:
            self._producer.poll(wait_us / US_PER_S)
        elif early_us <= 0:
            self._send()
            self._producer.poll(0)
        else:
            self._sending.idle()
            rest_us = min(early_us, wait_us)
            # librdkafka waits in whole milliseconds; a shorter wait would spin
            if rest_us >= US_PER_MS:
                self._producer.poll(rest_us // US_PER_MS / 1000)
            else:
                time.sleep(rest_us / US_PER_S)

    def _send(self) -> None:
        assignment, draw = self._assignment, self._stream.draw(self._sending.next)
        seq, intended_us = self._sending.begin(draw.size_bytes)
        try:
            self._producer.produce(
                assignment.topic,
                value=self._filler.value(seq, draw.size_bytes),
                key=draw.key,
                headers=[(HEADER, pack(assignment.producer_id, seq, intended_us))],
                on_delivery=partial(self._on_delivery, seq),
            )
        except BufferError:
            self._sending.ended(seq, Status.FAILED, KafkaError._QUEUE_FULL)  # noqa: SLF001  # librdkafka's local errors are public so
        except KafkaException as refused:
            self._sending.ended(seq, Status.FAILED, refused.args[0].code())

    def _on_delivery(self, seq: int, error: KafkaError | None, message: Message) -> None:
        code = KafkaError.NO_ERROR if error is None else error.code()
        partition, offset = _or_unknown(message.partition()), _or_unknown(message.offset())
        self._sending.ended(seq, status_of_code(code), code, partition=partition, offset=offset)

    def _on_error(self, error: KafkaError) -> None:
        self._events.emit("client_error", error=error.name(), detail=error.str(), fatal=error.fatal())

    def progress(self) -> dict[str, Any]:
        """Return counts, lateness and produce latencies since the last call."""
        return self._sending.tally.progress() | {"traffic": self._traffic.by_broker}

    def close(self) -> None:
        """Do nothing: queued records are in doubt in the spool, and the process is about to exit."""


def _or_unknown(number: int | None) -> int:
    """Return UNKNOWN for each of librdkafka's values for an unknown number: -1, -1001 and None."""
    return UNKNOWN if number is None or number < 0 else number


BATCH = 200  # records per step, so that orders are read under any load


class ConfluentConsumer(ReceivingClient):
    """``client.Client`` over ``confluent_kafka.Consumer``.

    Raises ``KafkaException`` for settings that librdkafka rejects.
    """

    def __init__(self, assignment: ConsumeAssignment, clock: Clock, events: Events) -> None:
        self._assignment, self._events = assignment, events
        self._traffic = Traffic()
        self._consumer = Consumer(
            consumer_config(assignment)
            | {"error_cb": self._on_error, "stats_cb": self._traffic.on_statistics, "on_commit": self._on_commit}
        )
        self._receiving = ReceiveRecorder(assignment, clock, events)
        self._partitions = [TopicPartition(assignment.topic, number) for number in range(assignment.partitions)]

    def prepare(self) -> None:
        """Fix the start offsets, then assign all partitions, or join the group and wait for an assignment."""
        assignment = self._assignment
        starts = self._receiving.begin_at(resolve_start_offsets(assignment))
        if assignment.group is None:
            self._consumer.assign(
                [TopicPartition(assignment.topic, number, offset) for number, offset in starts.items()]
            )
            self._receiving.assigned(starts)
            return
        self._consumer.subscribe(
            [assignment.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        while not self._receiving.assignments:
            self.step(US_PER_S // 10)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._receiving.assigned(_numbers(partitions), consumer.memberid() or "")

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._receiving.revoked(_numbers(partitions))

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if error is None:
            self._receiving.committed(
                (commit.partition, commit.offset)
                for commit in partitions
                if commit.error is None and commit.offset >= 0
            )

    def _on_error(self, error: KafkaError) -> None:
        self._events.emit("client_error", error=error.name(), detail=error.str(), fatal=error.fatal())

    def step(self, wait_us: int) -> None:
        """Take the available records, at most BATCH, or wait for one."""
        message = self._poll(wait_us / US_PER_S)
        if message is None:
            self._receiving.idle()
        for _ in range(BATCH):
            if message is None:
                return
            self._take(message)
            message = self._poll(0)
        if message is not None:
            self._take(message)

    def _poll(self, wait_s: float) -> Message | None:
        try:
            return self._consumer.poll(wait_s)
        except KafkaException as error:
            self._on_error(error.args[0])
            return None

    def _take(self, message: Message) -> None:
        error, partition, offset = message.error(), message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self._on_error(error or KafkaError(KafkaError._BAD_MSG))  # noqa: SLF001  # librdkafka's own errors
            return
        epoch = message.leader_epoch()
        self._receiving.take(
            unpack(cast("Headers", message.headers())),
            partition=partition,
            offset=offset,
            high_watermark=self._high_watermark(partition),
            leader_epoch=UNKNOWN if epoch is None else epoch,
            size_bytes=len(message),
            value=message.value() or b"",
        )

    def _high_watermark(self, partition: int) -> int:
        """Return the value of the latest fetch response, from the client's cache."""
        watermarks = self._consumer.get_watermark_offsets(self._partitions[partition], cached=True)
        return watermarks[1] if watermarks and watermarks[1] >= 0 else UNKNOWN

    def progress(self) -> dict[str, Any]:
        """Return counts and end-to-end latencies since the last call; ``ok`` counts delivered records."""
        return self._receiving.tally.progress() | {"traffic": self._traffic.by_broker}

    def close(self) -> None:
        """Commit and leave the group."""
        self._consumer.close()


def _numbers(partitions: list[TopicPartition]) -> list[int]:
    return [partition.partition for partition in partitions]


_CALL_S = 3_600.0
"""librdkafka's longest ``request_timeout``."""


class ConfluentCommitter(SendingClient):
    """``client.Client`` over ``confluent_kafka.admin.AdminClient``. Raises ``KafkaException`` for rejected settings."""

    def __init__(self, assignment: CommitAssignment, clock: Clock, events: Events) -> None:
        self._assignment = assignment
        self._clock = clock
        self._events = events
        self._traffic = Traffic()
        callbacks: dict[str, Any] = {"error_cb": self._on_error, "stats_cb": self._traffic.on_statistics}
        self._admin = AdminClient(committer_config(assignment) | callbacks)
        self._sending = SendRecorder(assignment, clock)
        self._open: dict[int, int] = {}  # deadline of each commit in flight, in order
        self._done: SimpleQueue[tuple[int, Future[Any]]] = (
            SimpleQueue()
        )  # filled by librdkafka's thread, emptied by this one

    def prepare(self) -> None:
        """Find the topic. librdkafka finds a coordinator when it first needs it."""
        retry_until_result(self._topic_known)

    def _topic_known(self) -> bool | None:
        topic = self._admin.list_topics(self._assignment.topic, timeout=REQUEST_TIMEOUT_S).topics[
            self._assignment.topic
        ]
        return True if topic.error is None and topic.partitions else None

    def step(self, wait_us: int) -> None:
        """Send the commit that is due; if no commit is due, take results."""
        self._admin.poll(0)
        self._expire()
        early_us = self._sending.early_us()
        if early_us is None:
            self._take(wait_us)
        elif early_us <= 0:
            self._send()
            self._take(0)
        else:
            self._sending.idle()
            self._take(min(early_us, wait_us))

    def _send(self) -> None:
        assignment, (seq, intended_us) = self._assignment, self._sending.begin(0)
        target = TopicPartition(assignment.topic, assignment.partition_of(seq), assignment.offset_of(seq))
        offsets = ConsumerGroupTopicPartitions(assignment.group_of(seq), [target])
        try:
            futures = self._admin.alter_consumer_group_offsets([offsets], request_timeout=_CALL_S)
        except KafkaException as refused:
            self._sending.ended(seq, Status.FAILED, refused.args[0].code())
            return
        self._open[seq] = intended_us + assignment.deadline_ms * US_PER_MS
        futures[offsets.group_id].add_done_callback(lambda future: self._done.put((seq, future)))

    def _take(self, wait_us: int) -> None:
        """Take all results, waiting up to ``wait_us`` for the first."""
        try:
            while True:
                seq, future = self._done.get(timeout=wait_us / US_PER_S)
                self._end(seq, _code(future))
                wait_us = 0
        except Empty:
            return

    def _end(self, seq: int, code: int) -> None:
        """Record the result of a commit; later results of the same commit are ignored."""
        if self._open.pop(seq, None) is not None:
            self._sending.ended(seq, status_of_code(code), code)

    def _expire(self) -> None:
        now_us = self._clock()
        while self._open and (oldest := next(iter(self._open.items())))[1] <= now_us:
            self._end(oldest[0], KafkaError._TIMED_OUT)  # noqa: SLF001  # librdkafka's local errors are public so

    def _on_error(self, error: KafkaError) -> None:
        self._events.emit("client_error", error=error.name(), detail=error.str(), fatal=error.fatal())

    def progress(self) -> dict[str, Any]:
        """Return counts, lateness and commit latencies since the last call."""
        return self._sending.tally.progress() | {"traffic": self._traffic.by_broker}

    def close(self) -> None:
        """Do nothing: commits in flight are in doubt in the spool, and the process is about to exit."""


def _code(future: "Future[Any]") -> int:
    """Return librdkafka's error code for the group, or else for its one partition."""
    error = future.exception()
    if isinstance(error, KafkaException):
        return int(error.args[0].code())
    if error is not None:
        raise error
    refused = future.result().topic_partitions[0].error
    return int(KafkaError.NO_ERROR if refused is None else refused.code())

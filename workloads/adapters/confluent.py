"""A confluent-kafka producer under open-loop load.

Rules: a record that can't even be queued fails at once and is not tried again; no error of the cluster ends the loop.
Retries and time-outs are librdkafka's: its conduct is what is under test.

A confluent-kafka consumer that notes every record delivered to it.

Rules: where it begins is settled before it says that it is ready, so nothing produced later can be missed by being
early; no error of the cluster ends the loop.

confluent-kafka's admin client under open-loop load of commits: ``alter_consumer_group_offsets`` of empty groups.

Rules: one call a commit, and none is repeated by us: what librdkafka retries is under test. When to give up is not left
to it: a call of its that times out while the coordinator is away ends the whole process (an assertion of librdkafka
2.16, its issue 4605), so calls last, and a commit without an answer at its deadline is in doubt. librdkafka has one
connection to a coordinator, whose requests the broker answers one after the other; the reference committer has several.
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
from aftershock.workloads.adapters.receiving import Receiving, settle_starts
from aftershock.workloads.adapters.sending import ASK_TIMEOUT_S, Sending, until_answered
from aftershock.workloads.load.assignment import CommitAssignment, ConsumeAssignment, ProduceAssignment
from aftershock.workloads.load.events import Clock, Events
from aftershock.workloads.load.orders import Order
from aftershock.workloads.load.schedule import HEADER, US_PER_MS, US_PER_S, Filler, Headers, Stream, pack, unpack
from aftershock.workloads.load.spool import UNKNOWN, Status, reported


class ConfluentProducer:
    """``client.Client`` over ``confluent_kafka.Producer``; ``KafkaException`` for settings that librdkafka refuses."""

    def __init__(self, assignment: ProduceAssignment, clock: Clock, events: Events) -> None:
        told = self._told = assignment
        self._events = events
        self._traffic = Traffic()
        self._stream = Stream(told.seed, told.workload, told.record_size_min, told.record_size_max, told.keys)
        self._filler = Filler(told.record_size_max)
        self._producer = Producer(
            producer_config(told) | {"error_cb": self._on_error, "stats_cb": self._traffic.on_statistics}
        )
        self._sending = Sending(told, clock)

    def prepare(self) -> None:
        """Come to know the leaders, so that the first record doesn't pay for it."""
        until_answered(self._topic_known)

    def _topic_known(self) -> bool | None:
        topic = self._producer.list_topics(self._told.topic, timeout=ASK_TIMEOUT_S).topics[self._told.topic]
        led = sum(partition.leader >= 0 for partition in topic.partitions.values())
        return True if topic.error is None and led >= self._told.partitions else None

    def obey(self, order: Order) -> None:
        """``go`` starts the schedule, ``stop`` ends it."""
        self._sending.obey(order)

    def step(self, wait_us: int) -> None:
        """Send the record that is due; while none is, serve delivery reports."""
        early_us = self._sending.early_us()
        if early_us is None:
            self._producer.poll(wait_us / US_PER_S)
        elif early_us <= 0:
            self._send()
            self._producer.poll(0)
        else:
            self._sending.idle()
            self._rest(min(early_us, wait_us))

    def _rest(self, rest_us: int) -> None:
        # librdkafka waits in whole milliseconds; asking it for less would spin
        if rest_us >= US_PER_MS:
            self._producer.poll(rest_us // US_PER_MS / 1000)
        else:
            time.sleep(rest_us / US_PER_S)

    def _send(self) -> None:
        told, draw = self._told, self._stream.draw(self._sending.next)
        seq, intended_us = self._sending.begin(draw.size_bytes)
        try:
            self._producer.produce(
                told.topic,
                value=self._filler.value(seq, draw.size_bytes),
                key=draw.key,
                headers=[(HEADER, pack(told.producer_id, seq, intended_us))],
                on_delivery=partial(self._reported, seq),
            )
        except BufferError:
            self._sending.ended(seq, Status.FAILED, KafkaError._QUEUE_FULL)  # noqa: SLF001  # librdkafka's local errors are public so
        except KafkaException as refused:
            self._sending.ended(seq, Status.FAILED, refused.args[0].code())

    def _reported(self, seq: int, error: KafkaError | None, message: Message) -> None:
        code = KafkaError.NO_ERROR if error is None else error.code()
        partition, offset = _known(message.partition()), _known(message.offset())
        self._sending.ended(seq, reported(code), code, partition=partition, offset=offset)

    def _on_error(self, error: KafkaError) -> None:
        self._events.emit("client_error", error=error.name(), detail=error.str(), fatal=error.fatal())

    def answer(self) -> dict[str, Any] | None:
        """After ``stop``: how many records still have no final status."""
        return self._sending.answer()

    def progress(self) -> dict[str, Any]:
        """Counts, lateness and produce latencies since the last call."""
        return self._sending.tally.progress() | {"traffic": self._traffic.by_broker}

    def counters(self) -> dict[str, int]:
        """Records by status; ``sent`` less the others is what got no report."""
        return self._sending.tally.counts()

    def close(self) -> None:
        """Nothing to do: what is still queued is in the spool as in doubt, and the process is about to end."""


def _known(number: int | None) -> int:
    """UNKNOWN for librdkafka's several ways to say that it doesn't know: -1, -1001 and None."""
    return UNKNOWN if number is None or number < 0 else number


BATCH = 200  # records handled in one step, so that orders are heard under any load


class ConfluentConsumer:
    """``client.Client`` over ``confluent_kafka.Consumer``; ``KafkaException`` for settings that librdkafka refuses."""

    def __init__(self, assignment: ConsumeAssignment, clock: Clock, events: Events) -> None:
        self._told, self._events = assignment, events
        self._traffic = Traffic()
        self._consumer = Consumer(
            consumer_config(assignment)
            | {"error_cb": self._on_error, "stats_cb": self._traffic.on_statistics, "on_commit": self._on_commit}
        )
        self._receiving = Receiving(assignment, clock, events)
        self._partitions = [TopicPartition(assignment.topic, number) for number in range(assignment.partitions)]

    def prepare(self) -> None:
        """Settle where every partition begins, then take them all or join the group and wait to be given some."""
        told = self._told
        starts = self._receiving.begin_at(settle_starts(told))
        if told.group is None:
            self._consumer.assign([TopicPartition(told.topic, number, offset) for number, offset in starts.items()])
            self._receiving.assigned(starts)
            return
        self._consumer.subscribe(
            [told.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        while not self._receiving.assignments:
            self.step(US_PER_S // 10)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._receiving.assigned(_numbers(partitions), consumer.memberid() or "")

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._receiving.revoked(_numbers(partitions))

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if error is None:
            told = [each for each in partitions if each.error is None and each.offset >= 0]
            self._receiving.committed((each.partition, each.offset) for each in told)

    def _on_error(self, error: KafkaError) -> None:
        self._events.emit("client_error", error=error.name(), detail=error.str(), fatal=error.fatal())

    def obey(self, order: Order) -> None:
        """``drain`` sets the end."""
        self._receiving.obey(order)

    def step(self, wait_us: int) -> None:
        """Take what is there, at most BATCH records, or wait for one."""
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
        """What the last fetch answer said: asked of the client, not of the cluster."""
        marks = self._consumer.get_watermark_offsets(self._partitions[partition], cached=True)
        return marks[1] if marks and marks[1] >= 0 else UNKNOWN

    def answer(self) -> dict[str, Any] | None:
        """After ``drain``: how many offsets are missing, by partition; none when all were reached."""
        return self._receiving.answer()

    def progress(self) -> dict[str, Any]:
        """Counts and end-to-end latencies since the last call; ``ok`` are the records delivered."""
        return self._receiving.tally.progress() | {"traffic": self._traffic.by_broker}

    def counters(self) -> dict[str, int]:
        """Records delivered, ours and foreign, and how often partitions were assigned."""
        return self._receiving.counters()

    def close(self) -> None:
        """Commit and leave the group."""
        self._consumer.close()


def _numbers(partitions: list[TopicPartition]) -> list[int]:
    return [partition.partition for partition in partitions]


_CALL_S = 3_600.0
"""librdkafka's longest ``request_timeout``."""


class ConfluentCommitter:
    """``client.Client`` over ``confluent_kafka.admin.AdminClient``; ``KafkaException`` for settings it refuses."""

    def __init__(self, assignment: CommitAssignment, clock: Clock, events: Events) -> None:
        self._told = assignment
        self._clock = clock
        self._events = events
        self._traffic = Traffic()
        callbacks: dict[str, Any] = {"error_cb": self._on_error, "stats_cb": self._traffic.on_statistics}
        self._admin = AdminClient(committer_config(assignment) | callbacks)
        self._sending = Sending(assignment, clock)
        self._open: dict[int, int] = {}  # commits under way and their deadlines, in order
        self._done: SimpleQueue[tuple[int, Future[Any]]] = SimpleQueue()  # librdkafka's thread puts, ours takes

    def prepare(self) -> None:
        """Come to know the topic. Coordinators are librdkafka's to find, when it first needs them."""
        until_answered(self._topic_known)

    def _topic_known(self) -> bool | None:
        topic = self._admin.list_topics(self._told.topic, timeout=ASK_TIMEOUT_S).topics[self._told.topic]
        return True if topic.error is None and topic.partitions else None

    def obey(self, order: Order) -> None:
        """``go`` starts the schedule, ``stop`` ends it."""
        self._sending.obey(order)

    def step(self, wait_us: int) -> None:
        """Send the commit that is due; while none is, take what has ended."""
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
        told, (seq, intended_us) = self._told, self._sending.begin(0)
        place = TopicPartition(told.topic, told.partition_of(seq), told.offset_of(seq))
        wanted = ConsumerGroupTopicPartitions(told.group_of(seq), [place])
        try:
            futures = self._admin.alter_consumer_group_offsets([wanted], request_timeout=_CALL_S)
        except KafkaException as refused:
            self._sending.ended(seq, Status.FAILED, refused.args[0].code())
            return
        self._open[seq] = intended_us + told.deadline_ms * US_PER_MS
        futures[wanted.group_id].add_done_callback(partial(self._put, seq))

    def _put(self, seq: int, future: "Future[Any]") -> None:
        self._done.put((seq, future))

    def _take(self, wait_us: int) -> None:
        """Everything that has ended; waits for the first as long as it may."""
        try:
            while True:
                seq, future = self._done.get(timeout=wait_us / US_PER_S)
                self._end(seq, _code(future))
                wait_us = 0
        except Empty:
            return

    def _end(self, seq: int, code: int) -> None:
        """The first end of a commit is the one that counts."""
        if self._open.pop(seq, None) is not None:
            self._sending.ended(seq, reported(code), code)

    def _expire(self) -> None:
        now_us = self._clock()
        while self._open and (oldest := next(iter(self._open.items())))[1] <= now_us:
            self._end(oldest[0], KafkaError._TIMED_OUT)  # noqa: SLF001  # librdkafka's local errors are public so

    def _on_error(self, error: KafkaError) -> None:
        self._events.emit("client_error", error=error.name(), detail=error.str(), fatal=error.fatal())

    def answer(self) -> dict[str, Any] | None:
        """After ``stop``: how many commits still have no final status."""
        return self._sending.answer()

    def progress(self) -> dict[str, Any]:
        """Counts, lateness and commit latencies since the last call."""
        return self._sending.tally.progress() | {"traffic": self._traffic.by_broker}

    def counters(self) -> dict[str, int]:
        """Commits by status; ``sent`` less the others is what got no report."""
        return self._sending.tally.counts()

    def close(self) -> None:
        """Nothing to do: what is still under way is in the spool as in doubt, and the process is about to end."""


def _code(future: "Future[Any]") -> int:
    """The code that librdkafka gives of the group, or else of its one partition."""
    error = future.exception()
    if isinstance(error, KafkaException):
        return int(error.args[0].code())
    if error is not None:
        raise error
    refused = future.result().topic_partitions[0].error
    return int(KafkaError.NO_ERROR if refused is None else refused.code())

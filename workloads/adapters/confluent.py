"""Workload adapters of confluent-kafka (librdkafka), which add no retries, as librdkafka's behaviour is under test."""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
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
from aftershock.workloads.adapters.sending import (
    REQUEST_TIMEOUT_S,
    DueRecord,
    PollingSender,
    ProduceRecorder,
    SendRecorder,
    retry_until_result,
)
from aftershock.workloads.adapters.transacting import (
    DriverThread,
    ProducerFailedError,
    TransactionalClient,
    TransactionDriver,
    TransactionRefusedError,
)
from aftershock.workloads.load.assignment import CommitAssignment, ConsumeAssignment, Place, ProduceAssignment
from aftershock.workloads.load.events import CONNECTIONS, Clock, Events, Reported
from aftershock.workloads.load.schedule import HEADER, US_PER_MS, US_PER_S, Headers, unpack
from aftershock.workloads.load.spool import UNKNOWN, Status, status_of_code


class ConfluentClient:
    """Base class of librdkafka clients, with the callbacks for errors and for statistics."""

    def __init__(self, clock: Clock, events: Events) -> None:
        self._events, self._traffic = events, Traffic(clock, events.emit)
        self._callbacks: dict[str, Any] = {"error_cb": self._on_error, "stats_cb": self._traffic.on_statistics}

    def reports(self) -> Collection[str]:
        return CONNECTIONS

    def _on_error(self, error: KafkaError) -> None:
        self._events.emit("client_error", error=error.name(), detail=error.str(), fatal=error.fatal())


def wait_for_leaders(client: Producer | AdminClient, topic: str, partitions: int) -> None:
    """Wait until the topic exists and at least ``partitions`` of its partitions have leaders."""

    def has_leaders() -> bool | None:
        metadata = client.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
        leaders = sum(partition.leader >= 0 for partition in metadata.partitions.values())
        return True if metadata.error is None and metadata.partitions and leaders >= partitions else None

    retry_until_result(has_leaders)


class ConfluentProducer(ConfluentClient, PollingSender):
    """Workload producer on librdkafka; a record that librdkafka can't queue has failed and is not retried."""

    _sending: ProduceRecorder

    def __init__(self, assignment: ProduceAssignment, clock: Clock, events: Events) -> None:
        super().__init__(clock, events)
        self._assignment = assignment
        self._producer = Producer(producer_config(assignment) | self._callbacks)
        self._sending = ProduceRecorder(assignment, clock)
        self._transactions: ConfluentTransactions | None = None
        if assignment.transaction:
            self._transactions = ConfluentTransactions(assignment, clock, self._sending, self._producer, self._renewed)

    def _renewed(self) -> Producer:
        return Producer(producer_config(self._assignment) | self._callbacks)

    def prepare(self) -> None:
        for topic in self._assignment.topics:
            wait_for_leaders(self._producer, topic.name, topic.partitions)
        if self._transactions is not None:
            self._transactions.start()

    def answer(self) -> dict[str, Any] | None:
        return self._sending.answer(busy=self._transactions is not None and self._transactions.thread.busy)

    def _poll(self, wait_us: int) -> None:
        if self._transactions is not None:
            self._transactions.collect(wait_us)
            return
        # librdkafka waits in whole milliseconds; a shorter wait would spin
        if 0 < wait_us < US_PER_MS:
            time.sleep(wait_us / US_PER_S)
        else:
            self._producer.poll(wait_us // US_PER_MS / 1000)

    def _send(self) -> None:
        if self._transactions is not None:
            self._transactions.thread.records.put(self._sending.begin_record())
            return
        seq, key, value, mark, topic = self._sending.begin_record()
        try:
            self._producer.produce(
                topic,
                value=value,
                key=key,
                headers=[(HEADER, mark)],
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

    def progress(self) -> dict[str, Any]:
        return self._sending.tally.progress() | {"traffic": self._traffic.by_broker}

    def close(self) -> None:
        """Do nothing, because the worker is about to exit; records without a final status are in doubt."""


_TRANSACTION_POLL_S = 0.005  # of the thread of transactions, while no record is due


class ConfluentTransactions(TransactionalClient):
    """Transactions on librdkafka, whose calls block, in a thread of their own.

    Delivery reports come in that thread, and are recorded in the main thread.
    """

    def __init__(
        self,
        assignment: ProduceAssignment,
        clock: Clock,
        sending: ProduceRecorder,
        producer: Producer,
        renewed: Callable[[], Producer],
    ) -> None:
        self._assignment, self._sending, self._producer, self._renewed = assignment, sending, producer, renewed
        self._wait_s = assignment.deadline_ms / 1000
        self._results: SimpleQueue[tuple[int, Status, int, int, int]] = SimpleQueue()
        self.thread = DriverThread(TransactionDriver(assignment, clock, sending, self))

    def start(self) -> None:
        """Initialise the transactions, however long that takes, and start the thread."""
        self._init()
        self.thread.start()

    def _init(self) -> None:
        while True:
            try:
                self._producer.init_transactions(self._wait_s)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return

    def collect(self, wait_us: int) -> None:
        """Record results of records, waiting up to ``wait_us`` for the first; raise the error of the thread."""
        self.thread.check()
        try:
            while True:
                seq, status, code, partition, offset = self._results.get(timeout=max(0, wait_us) / US_PER_S)
                self._sending.ended(seq, status, code, partition=partition, offset=offset)
                wait_us = 0
        except Empty:
            return

    async def next_record(self) -> DueRecord | None:
        while (record := self.thread.take(_TRANSACTION_POLL_S)) is None:
            self._serve_reports()
            if self._sending.over and self.thread.records.empty():
                return None
        return record

    async def begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise ProducerFailedError(error.args[0].code(), in_doubt=False) from error

    def identity(self) -> tuple[int, int, int]:
        return UNKNOWN, UNKNOWN, UNKNOWN  # librdkafka does not tell them

    async def send(self, record: DueRecord) -> None:
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            code = KafkaError.NO_ERROR if error is None else error.code()
            place = _or_unknown(message.partition()), _or_unknown(message.offset())
            self._results.put((record.seq, status_of_code(code), code, *place))

        headers: Any = [(HEADER, record.mark)]
        try:
            self._producer.produce(record.topic, record.value, record.key, headers=headers, on_delivery=on_delivery)
        except BufferError:
            self.reject(record.seq, KafkaError._QUEUE_FULL)  # noqa: SLF001  # librdkafka's local errors are public so
        except KafkaException as refused:
            self.reject(record.seq, refused.args[0].code())
        self._serve_reports()

    def _serve_reports(self) -> None:
        """Let librdkafka call ``on_delivery``, also after a fatal error, which the end of the transaction reports."""
        while True:
            with suppress(KafkaException):  # the fatal error: it is raised once, and ends the call
                self._producer.poll(0)
                return

    def reject(self, seq: int, code: int) -> None:
        self._results.put((seq, Status.FAILED, code, UNKNOWN, UNKNOWN))

    async def flush(self) -> None:
        with suppress(KafkaException):  # after a fatal error, which the end of the transaction reports
            self._producer.flush(self._wait_s)

    async def commit(self) -> None:
        self._end(self._producer.commit_transaction)

    async def abort(self, *, after_commit: bool) -> bool:  # noqa: ARG002  # librdkafka refuses an abort after a commit
        self._end(self._producer.abort_transaction)
        return False

    def _end(self, call: Callable[[float], None]) -> None:
        try:
            call(self._wait_s)
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.txn_requires_abort():
                raise TransactionRefusedError(reason.code()) from error
            if reason.retriable() and not reason.fatal():
                raise TimeoutError from error
            raise ProducerFailedError(reason.code(), in_doubt=True) from error

    async def reopen(self) -> None:
        self._producer.purge()
        self._serve_reports()
        self._producer = self._renewed()
        self._init()


def _places(partitions: Sequence[TopicPartition]) -> list[Place]:
    return [(item.topic, item.partition) for item in partitions]


def _or_unknown(number: int | None) -> int:
    return UNKNOWN if number is None or number < 0 else number


BATCH = 200  # records per step, so that orders are read under any load
STEP_US_MAX = 200 * US_PER_MS


class ConfluentConsumer(ConfluentClient, ReceivingClient):
    """Workload consumer on librdkafka."""

    def __init__(self, assignment: ConsumeAssignment, clock: Clock, events: Events) -> None:
        super().__init__(clock, events)
        self._assignment, self._clock = assignment, clock
        # times of sending by offsets: librdkafka repeats a commit, so results come in another order
        self._commits_sent_us: dict[frozenset[tuple[Place, int]], deque[int]] = {}
        self._consumer = Consumer(consumer_config(assignment) | self._callbacks | {"on_commit": self._on_commit})
        self._receiving = ReceiveRecorder(assignment, clock, events)
        self._partitions: dict[Place, TopicPartition] = {}  # of the records so far

    def prepare(self) -> None:
        """Look up the start offsets, then assign all partitions, or join the group and wait for an assignment.

        A member of several does not wait, because it may get no partitions; the runner waits for the group.
        """
        assignment, starts = self._assignment, self._receiving.begin_at(resolve_start_offsets(self._assignment))
        if assignment.group is None:
            self._consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])
            self._receiving.assigned(starts)
            return

        def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._receiving.assigned(_places(partitions), consumer.memberid() or "")

        def on_revoke(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
            if self._receiving.pending:
                self._commit(self._receiving.pending.take(_places(partitions)), wait=True)
            self._receiving.revoked(_places(partitions))

        def on_lost(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._receiving.lost(_places(partitions))

        # librdkafka takes a name that begins with ^ for a pattern, which need not match the whole name of a topic
        names = [topic.name for topic in assignment.topics]
        names = [f"^({assignment.pattern})$"] if assignment.pattern else names
        self._consumer.subscribe(names, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        while not self._receiving.assignments and self._assignment.members == 1:
            self.step(US_PER_S // 10)

    def _commit(self, positions: Mapping[Place, int], *, wait: bool) -> None:
        """Commit positions by place; the callback ``_on_commit`` gets the results of a commit without ``wait``."""
        if not positions:
            return
        sent_us = self._clock()
        offsets = [TopicPartition(*place, offset) for place, offset in positions.items()]
        try:
            if not wait:
                self._consumer.commit(offsets=offsets, asynchronous=True)
                self._commits_sent_us.setdefault(frozenset(positions.items()), deque()).append(sent_us)
            else:
                self._record_commit(self._consumer.commit(offsets=offsets, asynchronous=False), sent_us)
        except KafkaException as error:
            self._on_error(error.args[0])

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        offsets = frozenset(((item.topic, item.partition), item.offset) for item in partitions)
        sent = self._commits_sent_us.get(offsets)
        sent_us = sent.popleft() if sent else None
        if not sent:
            self._commits_sent_us.pop(offsets, None)
        if error is None:
            self._record_commit(partitions, sent_us)
        elif self._receiving.pending:
            self._on_error(error)

    def _record_commit(self, results: Sequence[TopicPartition] | None, sent_us: int | None) -> None:
        took_us = None if sent_us is None else self._clock() - sent_us
        accepted = [item for item in results or () if item.error is None and item.offset >= 0]
        self._receiving.committed({(item.topic, item.partition): item.offset for item in accepted}, took_us)

    def step(self, wait_us: int) -> None:
        if not self._polls:
            time.sleep(wait_us / US_PER_S)
            return
        until_us = self._clock() + STEP_US_MAX
        for number in range(BATCH):
            if number and self._clock() >= until_us:
                return
            try:
                message = self._consumer.poll(0 if number else wait_us / US_PER_S)
            except KafkaException as error:
                self._on_error(error.args[0])
                message = None
            if self._receiving.pending:
                self._commit(self._receiving.pending.due(), wait=False)
            if message is None:
                if not number:
                    self._receiving.idle()
                return
            problem, topic, partition = message.error(), message.topic(), message.partition()
            offset = message.offset()
            if problem is not None or topic is None or partition is None or offset is None:
                self._on_error(problem or KafkaError(KafkaError._BAD_MSG))  # noqa: SLF001  # librdkafka's own errors
                continue
            if self._assignment.processing_ms:
                time.sleep(self._assignment.processing_ms / 1000)
            epoch = message.leader_epoch()
            # The high watermark of the latest fetch response, from librdkafka's cache.
            place = topic, partition
            if (known := self._partitions.get(place)) is None:
                known = self._partitions[place] = TopicPartition(*place)
            watermarks = self._consumer.get_watermark_offsets(known, cached=True)
            self._receiving.take(
                unpack(cast("Headers", message.headers())),
                place=place,
                offset=offset,
                high_watermark=watermarks[1] if watermarks and watermarks[1] >= 0 else UNKNOWN,
                leader_epoch=UNKNOWN if epoch is None else epoch,
                size_bytes=len(message),
                value=message.value() or b"",
            )

    def progress(self) -> dict[str, Any]:
        return self._receiving.tally.progress() | {"traffic": self._traffic.by_broker}

    def reports(self) -> Collection[str]:
        return *CONNECTIONS, Reported.VALUES

    def close(self) -> None:
        self._consumer.close()  # calls on_revoke, which commits


_CALL_S = 3_600.0
"""Longest ``request_timeout`` that librdkafka accepts."""


class ConfluentCommitter(ConfluentClient, PollingSender):
    """Workload committer on librdkafka, with one call of ``alter_consumer_group_offsets`` for each commit.

    A commit without a response is recorded as in doubt at its deadline. Admin calls get the longest time-out, because
    librdkafka 2.16 aborts the whole process when an admin call times out while the coordinator is away (issue 4605).
    """

    def __init__(self, assignment: CommitAssignment, clock: Clock, events: Events) -> None:
        super().__init__(clock, events)
        self._assignment, self._clock = assignment, clock
        self._admin = AdminClient(committer_config(assignment) | self._callbacks)
        self._sending = SendRecorder(assignment, clock)
        self._open: dict[int, int] = {}  # deadline of each commit in flight, in order
        # librdkafka's thread adds results, and this thread removes the results.
        self._results: SimpleQueue[tuple[int, Future[Any]]] = SimpleQueue()

    def prepare(self) -> None:
        wait_for_leaders(self._admin, self._assignment.topic, 0)

    def step(self, wait_us: int) -> None:
        self._admin.poll(0)
        now_us = self._clock()
        while self._open and (oldest := next(iter(self._open.items())))[1] <= now_us:
            self._end(oldest[0], KafkaError._TIMED_OUT)  # noqa: SLF001  # librdkafka's local errors are public so
        super().step(wait_us)

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
        futures[offsets.group_id].add_done_callback(lambda future: self._results.put((seq, future)))

    def _poll(self, wait_us: int) -> None:
        try:
            while True:
                seq, future = self._results.get(timeout=wait_us / US_PER_S)
                error, code = future.exception(), int(KafkaError.NO_ERROR)
                if isinstance(error, KafkaException):
                    code = int(error.args[0].code())
                elif error is not None:
                    raise error
                elif (refused := future.result().topic_partitions[0].error) is not None:
                    code = int(refused.code())
                self._end(seq, code)
                wait_us = 0
        except Empty:
            return

    def _end(self, seq: int, code: int) -> None:
        """Record the first result of a commit, and ignore later results of the same commit."""
        if self._open.pop(seq, None) is not None:
            self._sending.ended(seq, status_of_code(code), code)

    def progress(self) -> dict[str, Any]:
        return self._sending.tally.progress() | {"traffic": self._traffic.by_broker}

    def close(self) -> None:
        """Do nothing, because the worker is about to exit; commits without a final status are in doubt."""

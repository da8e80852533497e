"""confluent-kafka's admin client under open-loop load of commits: ``alter_consumer_group_offsets`` of empty groups.

Rules: one call a commit, and none is repeated by us: what librdkafka retries is under test. When to give up is not left
to it: a call of its that times out while the coordinator is away ends the whole process (an assertion of librdkafka
2.16, its issue 4605), so calls last, and a commit without an answer at its deadline is in doubt. librdkafka has one
connection to a coordinator, whose requests the broker answers one after the other; the reference committer has several.
"""

from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from aftershock.workloads.assignment import CommitAssignment
from aftershock.workloads.clients.patience import ASK_TIMEOUT_S, until_answered
from aftershock.workloads.clients.sending import Sending
from aftershock.workloads.clock import Clock
from aftershock.workloads.events import Events
from aftershock.workloads.load import US_PER_MS, US_PER_S
from aftershock.workloads.orders import Order
from aftershock.workloads.settings import committer_config
from aftershock.workloads.status import Status, reported
from aftershock.workloads.traffic import Traffic

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

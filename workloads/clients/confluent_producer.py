"""A confluent-kafka producer under open-loop load.

Rules: every record is sent at its intended time, or as soon after as this process gets to it, whatever became of those
before; a record that can't even be queued fails at once and is not tried again; no error of the cluster ends the loop.
Retries and time-outs are librdkafka's: its conduct is what is under test.
"""

import time
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from aftershock.workloads.assignment import ProduceAssignment
from aftershock.workloads.clients.patience import ASK_TIMEOUT_S, until_answered
from aftershock.workloads.clock import Clock
from aftershock.workloads.events import Events
from aftershock.workloads.load import US_PER_MS, US_PER_S, Schedule, Stream
from aftershock.workloads.orders import Go, Order, Stop
from aftershock.workloads.record import HEADER, Filler, pack
from aftershock.workloads.settings import producer_config
from aftershock.workloads.spool import UNKNOWN, ProduceSpool
from aftershock.workloads.status import Status, reported
from aftershock.workloads.tally import Tally
from aftershock.workloads.traffic import Traffic

GRACE_US = 10 * US_PER_S
"""How long after its deadline a record may be without a report. librdkafka looks for expired records once a second."""


class ConfluentProducer:
    """``client.Client`` over ``confluent_kafka.Producer``; ``KafkaException`` for settings that librdkafka refuses."""

    def __init__(self, assignment: ProduceAssignment, clock: Clock, events: Events) -> None:
        told = self._told = assignment
        self._clock, self._events, self._tally = clock, events, Tally()
        self._traffic = Traffic()
        self._stream = Stream(told.seed, told.workload, told.record_size_min, told.record_size_max, told.keys)
        self._filler = Filler(told.record_size_max)
        self._producer = Producer(
            producer_config(told) | {"error_cb": self._on_error, "stats_cb": self._traffic.on_statistics}
        )
        self._spool = ProduceSpool(told.spool, told)
        self._schedule: Schedule | None = None
        self._next = 0
        self._end: int | None = None  # the first record that is not to be sent
        self._give_up_us = 0
        self._answered = False

    def prepare(self) -> None:
        """Come to know the leaders, so that the first record doesn't pay for it."""
        until_answered(self._topic_known)

    def _topic_known(self) -> bool | None:
        topic = self._producer.list_topics(self._told.topic, timeout=ASK_TIMEOUT_S).topics[self._told.topic]
        led = sum(partition.leader >= 0 for partition in topic.partitions.values())
        return True if topic.error is None and led >= self._told.partitions else None

    def obey(self, order: Order) -> None:
        """``go`` starts the schedule, ``stop`` ends it."""
        if isinstance(order, Go):
            self._schedule = Schedule(order.start_us, self._told.offset_us, self._told.rate_per_s)
        elif isinstance(order, Stop):
            self._end = max(self._next, self._schedule.count_before(order.at_us)) if self._schedule else 0
            self._give_up_us = order.at_us + self._told.deadline_ms * US_PER_MS + GRACE_US

    def step(self, wait_us: int) -> None:
        """Send the record that is due; while none is, serve delivery reports."""
        if self._schedule is None or self._next == self._end:
            self._producer.poll(wait_us / US_PER_S)
            return
        early_us = self._schedule.intended_us(self._next) - self._clock()
        if early_us <= 0:
            self._send(self._next, self._schedule.intended_us(self._next))
            self._producer.poll(0)
        else:
            self._spool.idle()
            self._rest(min(early_us, wait_us))

    def _rest(self, rest_us: int) -> None:
        # librdkafka waits in whole milliseconds; asking it for less would spin
        if rest_us >= US_PER_MS:
            self._producer.poll(rest_us // US_PER_MS / 1000)
        else:
            time.sleep(rest_us / US_PER_S)

    def _send(self, seq: int, intended_us: int) -> None:
        told, draw = self._told, self._stream.draw(seq)
        self._next = seq + 1
        sent_us = self._clock()
        self._spool.begin(
            seq,
            intended_us=intended_us,
            deadline_us=intended_us + told.deadline_ms * US_PER_MS,
            sent_us=sent_us,
            size_bytes=draw.size_bytes,
        )
        self._tally.sent_late(sent_us - intended_us)
        try:
            self._producer.produce(
                told.topic,
                value=self._filler.value(seq, draw.size_bytes),
                key=draw.key,
                headers=[(HEADER, pack(told.producer_id, seq, intended_us))],
                on_delivery=partial(self._reported, seq, intended_us),
            )
        except BufferError:
            self._refused(seq, KafkaError._QUEUE_FULL)  # noqa: SLF001  # librdkafka's local errors are public so
        except KafkaException as refused:
            self._refused(seq, refused.args[0].code())

    def _refused(self, seq: int, code: int) -> None:
        self._spool.end(seq, done_us=self._clock(), status=Status.FAILED, code=code, partition=UNKNOWN, offset=UNKNOWN)
        self._tally.ended(Status.FAILED, 0)

    def _reported(self, seq: int, intended_us: int, error: KafkaError | None, message: Message) -> None:
        done_us = self._clock()
        code = KafkaError.NO_ERROR if error is None else error.code()
        status = reported(code)
        self._spool.end(
            seq,
            done_us=done_us,
            status=status,
            code=code,
            partition=_known(message.partition()),
            offset=_known(message.offset()),
        )
        self._tally.ended(status, done_us - intended_us)

    def _on_error(self, error: KafkaError) -> None:
        self._events.emit("client_error", error=error.name(), detail=error.str(), fatal=error.fatal())

    def answer(self) -> dict[str, Any] | None:
        """After ``stop``: how many records still have no final status, which is none unless librdkafka forgot them."""
        if self._end is None or self._answered or self._next < self._end:
            return None
        left = self._tally.sent - self._tally.done
        if left and self._clock() < self._give_up_us:
            return None
        self._answered = True
        return {"did": "stop", "unreported": left}

    def progress(self) -> dict[str, Any]:
        """Counts, lateness and produce latencies since the last call."""
        return self._tally.progress() | {"traffic": self._traffic.by_broker}

    def counters(self) -> dict[str, int]:
        """Records by status; ``sent`` less the others is what got no report."""
        return self._tally.counts()

    def close(self) -> None:
        """Nothing to do: what is still queued is in the spool as in doubt, and the process is about to end."""


def _known(number: int | None) -> int:
    """UNKNOWN for librdkafka's several ways to say that it doesn't know: -1, -1001 and None."""
    return UNKNOWN if number is None or number < 0 else number

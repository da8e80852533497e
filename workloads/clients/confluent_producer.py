"""A confluent-kafka producer under open-loop load.

Rules: a record that can't even be queued fails at once and is not tried again; no error of the cluster ends the loop.
Retries and time-outs are librdkafka's: its conduct is what is under test.
"""

import time
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from aftershock.workloads.assignment import ProduceAssignment
from aftershock.workloads.clients.patience import ASK_TIMEOUT_S, until_answered
from aftershock.workloads.clients.sending import Sending
from aftershock.workloads.clock import Clock
from aftershock.workloads.events import Events
from aftershock.workloads.load import US_PER_MS, US_PER_S, Stream
from aftershock.workloads.orders import Order
from aftershock.workloads.record import HEADER, Filler, pack
from aftershock.workloads.settings import producer_config
from aftershock.workloads.spool import UNKNOWN
from aftershock.workloads.status import Status, reported
from aftershock.workloads.traffic import Traffic


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

"""A small client that sends at a steady rate and keeps the outcome of each record, which shows the effects of
faults.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from aftershock.faults.runtime.record import Clock

TOPIC, PARTITIONS, RATE_PER_S = "probe", 6, 50
DEADLINE_MS = 20_000


@dataclass(frozen=True)
class Ack:
    """One record: its send time, and the latency of its acknowledgement (None without one) or its error."""

    sent_us: int
    latency_ms: float | None
    error: str | None


class Probe:
    """Sends to every partition in turn from a thread, until the block ends."""

    def __init__(self, bootstrap: str, clock: Clock, record_bytes: int) -> None:
        self.acks: list[Ack] = []
        self.clock = clock
        self._value = b"x" * record_bytes
        self._over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 0,
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": DEADLINE_MS,
                "socket.timeout.ms": 6_000,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 2_000,
                "log_level": 0,
            }
        )

    @contextmanager
    def sending(self) -> Iterator["Probe"]:
        """At the end of the block every record has an outcome."""
        thread = threading.Thread(target=self._send, name="probe")
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()
            self._producer.flush(DEADLINE_MS / 1000 + 1)

    def _send(self) -> None:
        number = 0
        while not self._over.wait(1 / RATE_PER_S):
            with_sent_us = self.clock.now_us()
            try:
                self._producer.produce(
                    TOPIC,
                    self._value,
                    partition=number % PARTITIONS,
                    on_delivery=lambda error, message, sent_us=with_sent_us: self._done(error, message, sent_us),
                )
            except (KafkaException, BufferError) as error:
                self.acks.append(Ack(with_sent_us, None, str(error)))
            number += 1
            self._producer.poll(0)

    def _done(self, error: KafkaError | None, _message: Message, sent_us: int) -> None:
        latency_ms = None if error else (self.clock.now_us() - sent_us) / 1000
        self.acks.append(Ack(sent_us, latency_ms, error.name() if error else None))

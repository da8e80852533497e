"""The reference producer under open-loop load: ``client: reference``.

Rules: a record that finds the buffer full waits for room in a task of its own, at most ``max.block.ms``, and holds up
none of those after it. What is ``failed`` and what ``in_doubt`` is the producer's own knowledge: it sees every attempt.
"""

import asyncio
from typing import Any

from aftershock.workloads.assignment import ProduceAssignment
from aftershock.workloads.clients.loop import Loop
from aftershock.workloads.clients.reference_settings import reference_settings
from aftershock.workloads.clients.sending import Sending, pace
from aftershock.workloads.clock import Clock
from aftershock.workloads.events import Events
from aftershock.workloads.load import Stream
from aftershock.workloads.orders import Order
from aftershock.workloads.record import HEADER, Filler, pack
from aftershock.workloads.reference.producer import Delivery, Producer
from aftershock.workloads.reference.settings import ProducerSettings
from aftershock.workloads.spool import UNKNOWN
from aftershock.workloads.status import Status

_CLOSE_MS = 2_000.0


class ReferenceProducer:
    """``client.Client`` over ``reference.producer.Producer``; ``SettingError`` for settings that it doesn't have."""

    def __init__(self, assignment: ProduceAssignment, clock: Clock, events: Events) -> None:
        told = self._told = assignment
        self._stream = Stream(told.seed, told.workload, told.record_size_min, told.record_size_max, told.keys)
        self._filler = Filler(told.record_size_max)
        settings = reference_settings(ProducerSettings, told)
        self._loop = Loop()
        self._producer = self._loop.inside(lambda: Producer(settings, report=self._reported, tell=events.emit))
        self._waiting: set[asyncio.Task[None]] = set()
        self._sending = Sending(told, clock)

    def prepare(self) -> None:
        """Come to know the leaders, and have a producer id."""
        self._loop.run(self._producer.start([self._told.topic]))
        self._loop.start(pace(self._sending, self._send))

    def obey(self, order: Order) -> None:
        """``go`` starts the schedule, ``stop`` ends it."""
        self._sending.obey(order)

    def step(self, wait_us: int) -> None:
        """Let the client work for that long."""
        self._loop.step(wait_us)

    def _send(self) -> None:
        told, draw = self._told, self._stream.draw(self._sending.next)
        seq, intended_us = self._sending.begin(draw.size_bytes)
        value = self._filler.value(seq, draw.size_bytes)
        headers = ((HEADER, pack(told.producer_id, seq, intended_us)),)
        if not self._producer.offer(told.topic, value, key=draw.key, headers=headers, token=seq):
            wait = self._producer.send(told.topic, value, key=draw.key, headers=headers, token=seq)
            task = asyncio.ensure_future(wait)
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    def _reported(self, delivery: Delivery) -> None:
        status = Status.OK if not delivery.error else Status.IN_DOUBT if delivery.in_doubt else Status.FAILED
        base = delivery.base_offset
        for number, seq in enumerate(delivery.tokens):
            self._sending.ended(
                seq,
                status,
                delivery.error,
                partition=delivery.partition,
                offset=base + number if base >= 0 else UNKNOWN,
                leader_epoch=delivery.leader_epoch,
                broker_id=delivery.broker_id,
                attempts=delivery.attempts,
            )

    def answer(self) -> dict[str, Any] | None:
        """After ``stop``: how many records still have no final status."""
        return self._sending.answer()

    def progress(self) -> dict[str, Any]:
        """Counts, lateness and produce latencies since the last call."""
        return self._sending.tally.progress() | {"traffic": self._producer.brokers.traffic}

    def counters(self) -> dict[str, int]:
        """Records by status, and what each rule decided how often."""
        return self._sending.tally.counts() | dict(self._producer.counts)

    def close(self) -> None:
        """Leave in good order."""
        self._loop.close(self._producer.close(_CLOSE_MS))

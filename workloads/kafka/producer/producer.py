"""The reference producer: what an application sees of it.

1. A record is taken if there is room for it and its partition is known, and is then reported exactly once: delivered,
   failed, or in doubt.
2. ``send`` waits up to ``max.block.ms`` for room or metadata; then that record alone has failed. What can't be mended
   by waiting (a record too large, a topic one may not write to) fails at once.
3. Closing sends what can be sent in its time and reports the rest. Cancelling anything leaves the producer as it was.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ClientError, UnsupportedError
from aftershock.workloads.kafka.client.network_client import Brokers
from aftershock.workloads.kafka.client.settings import ProducerSettings
from aftershock.workloads.kafka.client.tasks import Tell, monotonic_ms
from aftershock.workloads.kafka.producer.produce_request import Deliveries, Delivery, ProducerRules, refused
from aftershock.workloads.kafka.producer.sender import Sender
from aftershock.workloads.kafka.rules.accumulator import Taken
from aftershock.workloads.kafka.rules.batch import Headers
from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition
from aftershock.workloads.kafka.wire import codes, compression

__all__ = ["Delivery", "Producer"]

_JOINED, _READY = Taken.JOINED, Taken.READY  # to look one up in its class takes as long as a call


class Producer:
    """A producer with bounded memory. Made and used on one event loop.

    ``report`` is called once for every record that was taken, and for those that ``send`` gave up, a batch at a time;
    it must not raise. ``tell`` hears of events. ``brokers.traffic`` has the bytes by node.

    Raises:
        UnsupportedError: ``compression_type`` isn't installed.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        report: Callable[[Delivery], None],
        tell: Tell,
        draw: random.Random | None = None,
    ) -> None:
        if not compression.available(settings.compression_type):
            raise UnsupportedError(
                f"{settings.compression_type} compression needs the package cramjam, which isn't installed: "
                "pip install aftershock[compression]"
            )
        draw = draw or random.Random()  # noqa: S311  # spreads load and back-offs; nothing secret
        rules = ProducerRules.of(settings, draw)
        self._settings = settings
        self._rules = rules
        self._report = report
        self._append = rules.accumulator.append
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._wall_ms = time.time() * 1000 - monotonic_ms()
        self._closing = False
        self.brokers = Brokers(
            settings.bootstrap_servers,
            settings.client_id,
            settings,
            rules.metadata,
            monotonic_ms,
            tell=tell,
            draw=draw,
            on_change=self._wake,
        )
        self._sender = Sender(
            settings,
            rules,
            self.brokers,
            Deliveries(settings, rules, report),
            tell=tell,
            clock_ms=monotonic_ms,
            on_turn=self._pulse,
        )

    @property
    def counts(self) -> Counter[str]:
        """What its rules have counted so far."""
        return self._rules.counts

    def _wake(self) -> None:
        self._sender.wake()

    # -- start

    async def start(self, topics: Sequence[str]) -> None:
        """Come to where the first record can go: all partitions of ``topics`` have leaders, and there is a producer id.

        Keeps trying for as long as it takes: the caller has the deadline.

        Raises:
            BrokerError: not authorized, or no such topic for longer than ``max_block_ms``.
            UnsupportedError: the brokers lack a version that is needed.
        """
        self._sender.exchange.prepare()
        self._rules.metadata.want(topics)
        self._sender.wake()
        patience_ms = monotonic_ms() + self._settings.max_block_ms
        while not self._is_ready(topics, patient=monotonic_ms() < patience_ms):
            await self._next_change(patience_ms)

    def _is_ready(self, topics: Iterable[str], *, patient: bool) -> bool:
        if (error := self._sender.error or self.brokers.unsupported) is not None:
            raise error
        for topic in topics:
            self._check_topic(topic, patient=patient)
        idempotence = self._rules.idempotence
        return all(map(self._is_led, topics)) and (idempotence is None or not idempotence.needs_id)

    def _check_topic(self, topic: str, *, patient: bool) -> None:
        found = self._rules.metadata.topic(topic)
        code = 0 if found is None else found.error
        if code in codes.HOPELESS or (code == ErrorCode.unknown_topic_or_partition and not patient):
            raise BrokerError(f"topic {topic}: {codes.name(code)}; create it, or grant this client the right", code)

    def _is_led(self, topic: str) -> bool:
        found = self._rules.metadata.topic(topic)
        partitions = found.partitions if found is not None else ()
        leaders = [self._rules.metadata.leader(TopicPartition(topic, each.partition)) for each in partitions]
        return bool(leaders) and all(leader.node_id != UNKNOWN for leader in leaders)

    # -- send

    def offer(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        token: int,
        now_ms: float | None = None,
    ) -> bool:
        """Take a record if that needs no waiting. False: the buffer is full, or the topic or partition isn't known.

        One that can't ever be taken is seen to here, too: it is reported as failed. ``now_ms`` is ``monotonic_ms()``.

        Raises:
            ClientError: the producer is closed.
        """
        now = time.monotonic() * 1000 if now_ms is None else now_ms
        if self._closing or self._sender.error is not None:
            return self._refuse_all(topic, partition, token)
        taken = self._append(topic, value, key, headers, partition, token, int(now + self._wall_ms), now)
        if taken is _JOINED:
            return True
        if taken is _READY:
            self._sender.wake()
            return True
        return self._not_taken(taken, topic, partition, token)

    def _refuse_all(self, topic: str, partition: int | None, token: int) -> bool:
        if self._closing:
            raise ClientError("the producer is closed: make another one")
        self._report(refused(topic, partition, token, self._sender.code))
        return True

    def _not_taken(self, taken: Taken, topic: str, partition: int | None, token: int) -> bool:
        """True if waiting won't help: then the record has failed."""
        found = self._rules.metadata.topic(topic)
        code = 0
        if taken is Taken.TOO_LARGE:
            code = int(ErrorCode.message_too_large)
        elif taken is Taken.NO_PARTITION and found is not None and found.error in codes.HOPELESS:
            code = found.error
        if code:
            self._report(refused(topic, partition, token, code))
        return bool(code)

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        token: int,
    ) -> None:
        """Take a record, waiting up to ``max_block_ms`` for room or metadata; then it alone is reported as failed.

        So it is when the producer is closed meanwhile.

        Raises:
            ClientError: the producer is closed already.
        """
        until_ms = monotonic_ms() + self._settings.max_block_ms
        while not self.offer(topic, value, key=key, headers=headers, partition=partition, token=token):
            await self._wait_for_room(topic, until_ms)
            if self._closing or monotonic_ms() >= until_ms:
                self._report(refused(topic, partition, token, self._why_waiting(topic)))
                return

    async def _wait_for_room(self, topic: str, until_ms: float) -> None:
        """While somebody waits, no batch lingers; and the topic is asked for."""
        accumulator = self._rules.accumulator
        accumulator.waiting += 1
        try:
            self._rules.metadata.want([topic])
            self._sender.wake()
            await self._next_change(until_ms)
        finally:
            accumulator.waiting -= 1

    def _why_waiting(self, topic: str) -> int:
        """What a record that was waited for in vain has failed with: what Metadata says of its topic, else time."""
        found = self._rules.metadata.topic(topic)
        return (found.error if found is not None else 0) or int(ErrorCode.request_timed_out)

    # -- end

    async def flush(self) -> None:
        """Wait until everything taken so far has been reported; nothing lingers meanwhile."""
        accumulator, asked_ms = self._rules.accumulator, monotonic_ms()
        accumulator.flushing += 1
        try:
            self._sender.wake()
            if accumulator.unfinished.oldest_ms <= asked_ms:
                await self._turn_with(lambda: accumulator.unfinished.oldest_ms > asked_ms)
        finally:
            accumulator.flushing -= 1

    async def close(self, timeout_ms: float) -> None:
        """Send what can be sent within ``timeout_ms``, report the rest as failed or in doubt, and leave no task."""
        self._closing = self._rules.accumulator.closing = True
        until_ms = monotonic_ms() + timeout_ms
        try:
            self._sender.wake()
            while len(self._rules.accumulator.unfinished) and monotonic_ms() < until_ms:
                await self._next_change(until_ms)
        finally:
            self._sender.give_up(ClientError("the producer is closed: make another one"), ErrorCode.request_timed_out)
            await self._sender.close()
            await self.brokers.close()

    def _pulse(self) -> None:
        """A turn has ended: whoever waits for what is so now goes on."""
        for waiter, is_so in self._waiters.items():
            if not waiter.done() and is_so():
                waiter.set_result(None)

    async def _turn_with(self, is_so: Callable[[], bool]) -> None:
        """Wait for the end of a turn after which something is so."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = is_so
        try:
            await waiter
        finally:
            del self._waiters[waiter]

    async def _next_change(self, until_ms: float) -> None:
        """Wait for the end of a turn, or the time."""
        try:
            async with asyncio.timeout(max(0.0, until_ms - monotonic_ms()) / 1000):
                await self._turn_with(lambda: True)
        except TimeoutError:
            return

"""Sender of one producer, which decides which broker receives which record batches, and when.

Modelled on Kafka's ``Sender.runOnce`` and ``sendProducerData``. The sender runs after an append, responses, a change of
connections or metadata, or by a timer.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from math import inf

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ClientError, UnsupportedError
from aftershock.workloads.kafka.client.network_client import NetworkClient
from aftershock.workloads.kafka.client.requests import INIT_PRODUCER_ID
from aftershock.workloads.kafka.client.settings import INT32_MAX, ProducerSettings
from aftershock.workloads.kafka.client.tasks import EventListener, retry_until_answered
from aftershock.workloads.kafka.producer.produce_request import (
    BatchCompleter,
    ProduceRequester,
    ProducerRules,
    Responses,
)
from aftershock.workloads.kafka.producer.transaction_requester import TransactionRequester
from aftershock.workloads.kafka.rules.idempotence import Idempotence, ProducerId
from aftershock.workloads.kafka.rules.transaction_manager import TransactionManager
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.channel import Channel

_SOCKET_MS = 1.0  # interval at which a socket with unsent bytes is checked


class Sender:
    """Sender of one producer's record batches; ``on_turn`` is called at the end of each run of the sender.

    ``error``, with Kafka's error ``code``, is the error that stopped the sender for good, if any.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        rules: ProducerRules,
        brokers: NetworkClient,
        deliveries: BatchCompleter,
        *,
        on_event: EventListener,
        clock_ms: Callable[[], float],
        on_turn: Callable[[], None],
    ) -> None:
        self.error: ClientError | None = None
        self.code = 0
        self._settings, self._rules, self._brokers, self._deliveries = settings, rules, brokers, deliveries
        self.requester = ProduceRequester(settings, rules, deliveries, on_event)
        self._on_event, self._clock_ms, self._on_turn = on_event, clock_ms, on_turn
        self._throttled_until_ms: dict[int, float] = {}
        self._responses: Responses = deque()
        self._unwritten: set[Channel] = set()
        self._producer = ProducerId()
        self._id_request: asyncio.Task[None] | None = None
        self._transactions: TransactionRequester | None = None
        if rules.transactions is not None:
            self._transactions = TransactionRequester(settings, rules.transactions, brokers, rules.backoff, self.wake)
        self._scheduled: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """Run the sender in the next iteration of the event loop."""
        if self._scheduled is None and self.error is None:
            self._scheduled = self._loop.call_soon(self._turn)

    def give_up(self, error: ClientError, code: int) -> None:
        self.error, self.code = error, code
        self._deliveries.abandon(code)
        self._on_turn()

    async def close(self) -> None:
        for handle in (self._scheduled, self._timer):
            if handle is not None:
                handle.cancel()
        if self._id_request is not None:
            self._id_request.cancel()
            await asyncio.wait([self._id_request])
        if self._transactions is not None:
            await self._transactions.close()

    def _turn(self, *, timer_fired: bool = False) -> None:
        if timer_fired:
            self._timer = None
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        if self.error is not None:
            return
        now_ms = self._clock_ms()
        try:
            while self._responses:
                node_id, batches, response = self._responses.popleft()
                if throttled_ms := self.requester.on_response(batches, response, now_ms):
                    self._throttled_until_ms[node_id] = now_ms + throttled_ms
                    self._on_event("throttled", node_id=node_id, throttle_ms=throttled_ms)
            self._deliveries.expire(now_ms)
            if (idempotence := self._rules.idempotence) is not None:
                idempotence.settle()
                if code := idempotence.fatal_error:
                    self.give_up(BrokerError(f"the cluster rejects this producer: {codes.name(code)}", code), code)
                    return
                if isinstance(idempotence, TransactionManager):
                    self._advance_transaction(idempotence)
                elif idempotence.needs_id and self._id_request is None:
                    self._id_request = self._loop.create_task(self._obtain_id(idempotence))
                # with version 2 every transaction raises the epoch, which is no event
                is_news = self._transactions is None or idempotence.producer.id != self._producer.id
                if (producer := idempotence.producer) != self._producer and is_news:
                    event = "epoch_bumped" if producer.id == self._producer.id else "producer_id"
                    self._producer = producer
                    self._on_event(event, producer_id=producer.id, epoch=producer.epoch)
            wait_ms = self._send_ready(now_ms)
            while self._unwritten:
                self._unwritten.pop().flush()
            expiry_ms = self._rules.accumulator.unfinished.next_expiry_ms - now_ms
            wait_ms = max(0.0, min(wait_ms, expiry_ms, self._brokers.refresh_if_due()))
        except Exception as error:
            # A bug: release the waiters; the event loop's exception handler shows the traceback.
            self.give_up(
                ClientError(f"the producer failed with an internal error: {error!r}"), ErrorCode.unknown_server_error
            )
            raise
        if wait_ms < inf:
            at_s = self._loop.time() + wait_ms / 1000
            # An earlier timer stays, because an extra run of the sender does no harm.
            if self._timer is None or self._timer.when() > at_s:
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self._loop.call_at(at_s, partial(self._turn, timer_fired=True))
        self._on_turn()

    def _advance_transaction(self, manager: TransactionManager) -> None:
        accumulator = self._rules.accumulator
        if manager.drops_unsent:
            self._deliveries.drop_unsent(manager.error or ErrorCode.transaction_abortable)
        manager.add_partitions(accumulator.loaded)
        accumulator.completing = manager.completing
        if self._transactions is not None:
            self._transactions.send_if_due(incomplete=len(accumulator.unfinished) > 0)

    def _send_ready(self, now_ms: float) -> float:
        """Send ready batches to all brokers that can take one; return the milliseconds until more can be sent."""
        accumulator = self._rules.accumulator
        while True:
            ready = accumulator.ready(now_ms)
            if ready.leaderless:
                self._rules.metadata.request_update(ready.leaderless)
            next_ms, sent = ready.wait_ms, False
            for node_id in ready.nodes:
                channel = self._brokers.ready(node_id)
                if channel is None:
                    wait_ms = self._brokers.wait_ms(node_id) or inf
                elif channel.in_flight >= self._settings.max_in_flight_requests_per_connection:
                    wait_ms = inf
                elif not channel.drained:  # the socket has not accepted the earlier requests
                    wait_ms = _SOCKET_MS
                else:
                    wait_ms = max(0.0, self._throttled_until_ms.get(node_id, 0.0) - now_ms)  # KIP-219
                self._rules.partitioner.node_ready(node_id, now_ms, can_drain=wait_ms == 0)
                if wait_ms or channel is None:
                    next_ms = min(next_ms, wait_ms)
                    continue
                batches = {batch.tp: batch for batch in accumulator.drain(node_id, now_ms)}
                if batches:
                    # The channel runs the sender once after all responses that arrived together.
                    self.requester.send(node_id, channel, batches, now_ms, self._responses)
                    self._unwritten.add(channel)
                    channel.on_answers = self._turn
                    sent = True
            if not sent:
                return next_ms
            if accumulator.is_empty:
                return inf

    async def _obtain_id(self, idempotence: Idempotence) -> None:
        """Request a producer id until a broker returns a producer id or an error that is not retriable."""

        async def request_id() -> ProducerId:
            channel = await self._brokers.any()
            request = INIT_PRODUCER_ID.messages(channel.versions).InitProducerIdRequest(
                transactional_id=None, transaction_timeout=timedelta(milliseconds=INT32_MAX)
            )
            reply = await channel.request(request, timeout_ms=self._settings.request_timeout_ms)
            code = int(reply.response.error_code)
            if code in codes.RETRIABLE:
                raise ConnectionError(f"the broker did not return a producer id yet: {codes.name(code)}")
            if code:
                advice = "correct what the broker refuses, or set enable.idempotence to false"
                raise BrokerError(f"the broker refuses a producer id: {codes.name(code)}; {advice}", code)
            return ProducerId(reply.response.producer_id, reply.response.producer_epoch)

        try:
            producer = await retry_until_answered(request_id, self._rules.backoff)
        except BrokerError as error:
            self.give_up(error, error.code)
        except UnsupportedError as error:
            self.give_up(error, ErrorCode.unsupported_version)
        else:
            idempotence.set_producer(producer.id, producer.epoch)
        self._id_request = None
        self.wake()

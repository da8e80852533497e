"""Sender of one producer: decides which node receives which batches, and when.

Kafka: ``Sender.runOnce``, ``sendProducerData``. A *turn* expires batches, requests a producer id and metadata where
needed, and sends every node its ready batches, in as many requests as the node may have in flight, written together. A
turn happens when records were appended, when responses arrived, when a connection or the metadata changed, and when the
time computed by the previous turn has come.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ClientError, UnsupportedError
from aftershock.workloads.kafka.client.network_client import NetworkClient
from aftershock.workloads.kafka.client.requests import INIT_PRODUCER_ID, init_producer_id_request
from aftershock.workloads.kafka.client.settings import ProducerSettings
from aftershock.workloads.kafka.client.tasks import EventListener, retry_until_answered
from aftershock.workloads.kafka.producer.produce_request import (
    BatchCompleter,
    InFlight,
    ProduceRequester,
    ProducerRules,
)
from aftershock.workloads.kafka.rules.idempotence import Idempotence, ProducerId
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.channel import Channel

_SENT = -1.0
_SOCKET_MS = 1.0  # interval at which a socket with unsent bytes is checked


class Sender:
    """Sending loop of one producer.

    ``error`` and its Kafka ``code`` hold the error that ended it, if any: after that nothing is sent. ``exchange``
    builds its requests. ``on_turn`` is called at the end of each turn.
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
        self.exchange = ProduceRequester(settings, rules, deliveries, on_event)
        self._on_event, self._clock_ms, self._on_turn = on_event, clock_ms, on_turn
        self._throttled_until_ms: dict[int, float] = {}
        self._responses: list[tuple[int, InFlight, Any]] = []
        self._unwritten: set[Channel] = set()
        self._producer = ProducerId()
        self._id_request: asyncio.Task[None] | None = None
        self._scheduled: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    # -- when

    def wake(self) -> None:
        """Schedule a turn as soon as the event loop gets to it."""
        if self._scheduled is None and self.error is None:
            self._scheduled = self._loop.call_soon(self._turn)

    def give_up(self, error: ClientError, code: int) -> None:
        """Stop sending, and report every record without a result."""
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

    def _turn(self) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        if self.error is not None:
            return
        try:
            wait_ms = self._run_once(self._clock_ms())
        except Exception as error:
            # a bug: waiters must be released, and the event loop's handler shows the traceback
            self.give_up(
                ClientError(f"the producer failed with an internal error: {error!r}"), ErrorCode.unknown_server_error
            )
            raise
        if wait_ms < inf:
            at_s = self._loop.time() + wait_ms / 1000
            # an earlier timer stays, because an extra turn does no harm
            if self._timer is None or self._timer.when() > at_s:
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self._loop.call_at(at_s, self._timer_fired)
        self._on_turn()

    def _timer_fired(self) -> None:
        self._timer = None
        self._turn()

    # -- what

    def _run_once(self, now_ms: float) -> float:
        """Run one turn; return the time until the next turn, unless an event comes first."""
        responses, self._responses = self._responses, []
        for node_id, batches, response in responses:
            if throttled_ms := self.exchange.answered(batches, response, now_ms):
                self._throttled_until_ms[node_id] = now_ms + throttled_ms
                self._on_event("throttled", node_id=node_id, throttle_ms=throttled_ms)
        self._deliveries.expire(now_ms)
        if self._rules.idempotence is not None and not self._check_producer_id(self._rules.idempotence):
            return inf
        wait_ms = self._send_ready(now_ms)
        while self._unwritten:
            self._unwritten.pop().flush()
        expiry_ms = self._rules.accumulator.unfinished.next_expiry_ms - now_ms
        return max(0.0, min(wait_ms, expiry_ms, self._brokers.refresh_if_due()))

    def _send_ready(self, now_ms: float) -> float:
        """Send until nothing ready can be sent; return the time until more may be sent."""
        while True:
            ready = self._rules.accumulator.ready(now_ms)
            if ready.leaderless:
                self._rules.metadata.request_update(ready.leaderless)
            waits_ms = [self._send_to(node_id, now_ms) for node_id in ready.nodes]
            if _SENT not in waits_ms:
                return min(ready.wait_ms, *waits_ms, inf)
            if self._rules.accumulator.is_empty:
                return inf

    def _send_to(self, node_id: int, now_ms: float) -> float:
        """Send a node its ready batches; if that is impossible now, return the time until it may be possible."""
        channel = self._brokers.ready(node_id)
        if channel is None:
            wait_ms = self._brokers.wait_ms(node_id) or inf
        elif channel.in_flight >= self._settings.max_in_flight_requests_per_connection:
            wait_ms = inf
        elif not channel.drained:  # earlier requests have not left for the socket
            wait_ms = _SOCKET_MS
        else:
            wait_ms = max(0.0, self._throttled_until_ms.get(node_id, 0.0) - now_ms)  # KIP-219
        self._rules.partitioner.node_ready(node_id, now_ms, can_drain=wait_ms == 0)
        if wait_ms or channel is None:
            return wait_ms
        batches = {batch.tp: batch for batch in self._rules.accumulator.drain(node_id, now_ms)}
        if not batches:
            return inf
        self.exchange.send(node_id, channel, batches, now_ms, partial(self._on_response, node_id, batches))
        self._unwritten.add(channel)
        channel.on_answers = self._turn
        return _SENT

    def _on_response(self, node_id: int, batches: InFlight, response: Any) -> None:
        """Keep a response; the channel triggers a turn after all responses that arrived together."""
        self._responses.append((node_id, batches, response))

    # -- numbers

    def _check_producer_id(self, idempotence: Idempotence) -> bool:
        """Request a producer id if needed. False: the producer has ended with a fatal error."""
        idempotence.settle()
        if idempotence.fatal_error:
            code = idempotence.fatal_error
            self.give_up(BrokerError(f"the cluster rejects this producer: {codes.name(code)}", code), code)
            return False
        if idempotence.needs_id and self._id_request is None:
            self._id_request = self._loop.create_task(self._obtain_id(idempotence))
        producer = idempotence.producer
        if producer != self._producer:
            event = "epoch_bumped" if producer.id == self._producer.id else "producer_id"
            self._producer = producer
            self._on_event(event, producer_id=producer.id, epoch=producer.epoch)
        return True

    async def _obtain_id(self, idempotence: Idempotence) -> None:
        """Request a producer id from any broker, with back-off, until a broker returns one or refuses for good."""

        async def request_id() -> ProducerId:
            channel = await self._brokers.any()
            request = init_producer_id_request(INIT_PRODUCER_ID.messages(channel.versions))
            reply = await channel.request(request, timeout_ms=self._settings.request_timeout_ms)
            code = int(reply.response.error_code)
            if code in codes.RETRIABLE:
                raise ConnectionError(f"no producer id yet: {codes.name(code)}")
            if code:
                advice = "fix the cause, or switch enable.idempotence off"
                raise BrokerError(f"no producer id: {codes.name(code)}; {advice}", code)
            return ProducerId(reply.response.producer_id, reply.response.producer_epoch)

        try:
            producer = await retry_until_answered(request_id, self._rules.backoff)
        except BrokerError as error:
            self.give_up(error, error.code)
        except UnsupportedError as error:
            self.give_up(error, ErrorCode.unsupported_version)
        else:
            idempotence.initialized(producer.id, producer.epoch)
        self._id_request = None
        self.wake()

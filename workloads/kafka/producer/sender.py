"""Gets the id that an idempotent producer numbers its batches under.

The producer's loop: who is sent what, and when.

Kafka: ``Sender.runOnce``, ``sendProducerData``. A *turn* ends the batches whose time is up, asks for a producer id and
for metadata where they are needed, and sends every node what is ready for it, in as many requests as the node may have
in flight, written together. A turn is taken when records were appended, when answers came, when a connection or the
metadata changed, and when the time has come that the last turn found.

1. A node can be sent to if its connection is open, what was sent before has left for the socket, fewer than
   ``max.in.flight.requests.per.connection`` requests are in flight, and no throttle time is running (KIP-219).
2. After an error that is fatal to the producer nothing is sent, and all that was taken is reported.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ClientError, UnsupportedError
from aftershock.workloads.kafka.client.network_client import Brokers
from aftershock.workloads.kafka.client.requests import INIT_PRODUCER_ID, init_producer_id_request
from aftershock.workloads.kafka.client.settings import ProducerSettings
from aftershock.workloads.kafka.client.tasks import Tell, until_answered
from aftershock.workloads.kafka.producer.produce_request import Deliveries, Exchange, InFlight, ProducerRules
from aftershock.workloads.kafka.rules.idempotence import Idempotence, ProducerId
from aftershock.workloads.kafka.rules.values import Backoff
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.channel import Channel


async def ask_producer_id(brokers: Brokers, *, backoff: Backoff, timeout_ms: float) -> ProducerId:
    """Ask any broker, with back-off, until one gives an id.

    Raises:
        BrokerError: a broker refused, and will again.
        UnsupportedError: a broker has no such API.
    """
    return await until_answered(lambda: _ask(brokers, timeout_ms), backoff)


async def _ask(brokers: Brokers, timeout_ms: float) -> ProducerId:
    """ConnectionError for an error that may pass."""
    channel = await brokers.any()
    request = init_producer_id_request(INIT_PRODUCER_ID.messages(channel.versions))
    response = (await channel.request(request, timeout_ms=timeout_ms)).response
    error = int(response.error_code)
    if error in codes.RETRIABLE:
        raise ConnectionError(f"no producer id yet: {codes.name(error)}")
    if error:
        name = codes.name(error)
        raise BrokerError(f"no producer id: {name}; switch enable.idempotence off, or see to what it says", error)
    return ProducerId(response.producer_id, response.producer_epoch)


_SENT = -1.0
_SOCKET_MS = 1.0  # when to look again at a socket that hasn't taken all yet


class Sender:
    """The loop of one producer.

    ``error`` and its Kafka ``code`` say what ended it, if something did; ``exchange`` makes its requests. At the end of
    each turn ``on_turn`` is called.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        rules: ProducerRules,
        brokers: Brokers,
        deliveries: Deliveries,
        *,
        tell: Tell,
        clock_ms: Callable[[], float],
        on_turn: Callable[[], None],
    ) -> None:
        self.error: ClientError | None = None
        self.code = 0
        self._settings = settings
        self._rules = rules
        self._brokers = brokers
        self._deliveries = deliveries
        self.exchange = Exchange(settings, rules, deliveries, tell)
        self._tell = tell
        self._clock_ms = clock_ms
        self._on_turn = on_turn
        self._throttled_until_ms: dict[int, float] = {}
        self._answers: list[tuple[int, InFlight, Any]] = []
        self._unwritten: set[Channel] = set()
        self._producer = ProducerId()
        self._asking: asyncio.Task[None] | None = None
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    # -- when

    def wake(self) -> None:
        """Take a turn as soon as the loop comes to it."""
        if self._soon is None and self.error is None:
            self._soon = self._loop.call_soon(self._turn)

    def give_up(self, error: ClientError, code: int) -> None:
        """Send nothing more, and report everything that has not ended."""
        self.error, self.code = error, code
        self._deliveries.abandon(code)
        self._on_turn()

    async def close(self) -> None:
        """Leave nothing running. To be called after ``give_up``."""
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    def _turn(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self.error is not None:
            return
        try:
            now_ms = self._clock_ms()
            self._take_answers(now_ms)
            wait_ms = self._do_what_is_due(now_ms)
        except Exception as error:
            # a mistake of ours: whoever waits must hear of it, and the loop's handler shows where it was
            self.give_up(ClientError(f"the producer broke: {error!r}"), ErrorCode.unknown_server_error)
            raise
        self._set_timer(wait_ms)
        self._on_turn()

    def _set_timer(self, wait_ms: float) -> None:
        """Be back in time; an earlier timer that is set already stays, for a turn too many does no harm."""
        if wait_ms == inf:
            return
        at_s = self._loop.time() + wait_ms / 1000
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._turn()

    # -- what

    def _do_what_is_due(self, now_ms: float) -> float:
        """One turn; how long until the next one, unless something happens before."""
        self._deliveries.expire(now_ms)
        if self._rules.idempotence is not None and not self._numbers_at_hand(self._rules.idempotence):
            return inf
        wait_ms = self._send_ready(now_ms)
        while self._unwritten:
            self._unwritten.pop().flush()
        expiry_ms = self._rules.accumulator.unfinished.next_expiry_ms - now_ms
        return max(0.0, min(wait_ms, expiry_ms, self._brokers.refresh_if_due()))

    def _send_ready(self, now_ms: float) -> float:
        """Send until nothing that is ready can be sent; how long until more may be."""
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
        """Send a node what is ready; if that can't be now, how long until it may be, whatever else happens before."""
        channel = self._brokers.ready(node_id)
        wait_ms = self._busy_ms(node_id, channel, now_ms) if channel else self._brokers.wait_ms(node_id) or inf
        self._rules.partitioner.node_ready(node_id, now_ms, can_drain=wait_ms == 0)
        if wait_ms or channel is None:
            return wait_ms
        batches = {batch.tp: batch for batch in self._rules.accumulator.drain(node_id, now_ms)}
        if not batches:
            return inf
        self.exchange.send(node_id, channel, batches, now_ms, partial(self._answered, node_id, batches))
        self._unwritten.add(channel)
        channel.on_answers = self._turn
        return _SENT

    def _busy_ms(self, node_id: int, channel: Channel, now_ms: float) -> float:
        """Rule 1, of an open connection."""
        if channel.in_flight >= self._settings.max_in_flight_requests_per_connection:
            return inf
        if not channel.drained:
            return _SOCKET_MS
        return max(0.0, self._throttled_until_ms.get(node_id, 0.0) - now_ms)

    def _answered(self, node_id: int, batches: InFlight, response: Any) -> None:
        """The channel calls for a turn when it has told all answers that came together."""
        self._answers.append((node_id, batches, response))

    def _take_answers(self, now_ms: float) -> None:
        answers, self._answers = self._answers, []
        for node_id, batches, response in answers:
            if throttled_ms := self.exchange.answered(batches, response, now_ms):
                self._throttled_until_ms[node_id] = now_ms + throttled_ms
                self._tell("throttled", node_id=node_id, throttle_ms=throttled_ms)

    # -- numbers

    def _numbers_at_hand(self, idempotence: Idempotence) -> bool:
        """See to the producer id. False: the producer has come to its end."""
        idempotence.settle()
        if idempotence.fatal_error:
            code = idempotence.fatal_error
            self.give_up(BrokerError(f"the cluster refuses this producer: {codes.name(code)}", code), code)
            return False
        if idempotence.needs_id and self._asking is None:
            self._asking = self._loop.create_task(self._ask_id(idempotence))
        if idempotence.producer != self._producer:
            self._tell_numbers(idempotence.producer)
        return True

    def _tell_numbers(self, producer: ProducerId) -> None:
        event = "epoch_bumped" if producer.id == self._producer.id else "producer_id"
        self._producer = producer
        self._tell(event, producer_id=producer.id, epoch=producer.epoch)

    async def _ask_id(self, idempotence: Idempotence) -> None:
        try:
            given = await ask_producer_id(
                self._brokers, backoff=self._rules.backoff, timeout_ms=self._settings.request_timeout_ms
            )
        except BrokerError as error:
            self.give_up(error, error.code)
        except UnsupportedError as error:
            self.give_up(error, ErrorCode.unsupported_version)
        else:
            idempotence.initialized(given.id, given.epoch)
        self._asking = None
        self.wake()

"""Gets the id that an idempotent producer numbers its batches under."""

import asyncio
from itertools import count

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ProtocolError
from aftershock.workloads.reference.brokers import Brokers
from aftershock.workloads.reference.messages import INIT_PRODUCER_ID, init_producer_id_request
from aftershock.workloads.rules.backoff import Backoff
from aftershock.workloads.rules.idempotence import ProducerId
from aftershock.workloads.wire import codes


async def ask_producer_id(brokers: Brokers, *, backoff: Backoff, timeout_ms: float) -> ProducerId:
    """Ask any broker, with back-off, until one gives an id.

    Raises:
        BrokerError: a broker refused, and will again.
        UnsupportedError: a broker has no such API.
    """
    for attempt in count():
        try:
            given, error = await _ask(brokers, timeout_ms)
        except (OSError, ProtocolError):
            error = int(ErrorCode.network_exception)
        if error == ErrorCode.none:
            return given
        if error not in codes.RETRIABLE:
            name = codes.name(error)
            raise BrokerError(f"no producer id: {name}; switch enable.idempotence off, or see to what it says", error)
        await asyncio.sleep(backoff.ms(attempt) / 1000)
    raise AssertionError  # pragma: no cover  # counting never ends


async def _ask(brokers: Brokers, timeout_ms: float) -> tuple[ProducerId, int]:
    channel = await brokers.any()
    request = init_producer_id_request(INIT_PRODUCER_ID.messages(channel.versions))
    response = (await channel.request(request, timeout_ms=timeout_ms)).response
    return ProducerId(response.producer_id, response.producer_epoch), int(response.error_code)

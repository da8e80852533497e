"""Gets the id that an idempotent producer numbers its batches under."""

from aftershock.errors import BrokerError
from aftershock.workloads.reference.brokers import Brokers
from aftershock.workloads.reference.messages import INIT_PRODUCER_ID, init_producer_id_request
from aftershock.workloads.reference.retrying import until_answered
from aftershock.workloads.rules.backoff import Backoff
from aftershock.workloads.rules.idempotence import ProducerId
from aftershock.workloads.wire import codes


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

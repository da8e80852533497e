"""Coordinator of a consumer group or transactional id, with look-up of its broker and requests to that broker.

Modelled on Kafka's ``CoordinatorRequestManager``. The coordinator is looked up again if a broker fails to answer, or
reports that the coordinator has moved. FindCoordinator is sent to the least loaded node like a Metadata request
(``NetworkClientDelegate.doSend``, ``NetworkClient.leastLoadedNode``), so that no look-up waits for a connection to a
broker that stands still while another broker is connected. Two FindCoordinator requests are at least
``retry.backoff.ms`` apart, because brokers may return the old coordinator for a while. The coordinator's address is
taken from the FindCoordinator response, because metadata may be older or lack the node.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ProtocolError
from aftershock.workloads.kafka.client.network_client import NetworkClient
from aftershock.workloads.kafka.client.requests import ApiVersionRange, to_node
from aftershock.workloads.kafka.rules.values import Backoff
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.channel import Channel
from aftershock.workloads.kafka.wire.codec import Api, Versions

FIND_COORDINATOR = ApiVersionRange(Api.FIND_COORDINATOR, 4, 6)
GROUP_KEY, TRANSACTION_KEY = 0, 1
_KINDS = {GROUP_KEY: "group", TRANSACTION_KEY: "transactional id"}
_FORBIDDEN = frozenset({ErrorCode.group_authorization_failed, ErrorCode.transactional_id_authorization_failed})


class Coordinator:
    """Coordinator of one consumer group or transactional id; ``lookups`` counts the FindCoordinator requests."""

    def __init__(self, key: str, brokers: NetworkClient, backoff: Backoff, key_type: int = GROUP_KEY) -> None:
        self.lookups = 0
        self.metadata = brokers.metadata
        self.versions: Versions | None = None  # of the broker that received the latest request
        self._key, self._brokers, self._backoff, self._key_type = key, brokers, backoff, key_type
        self._node_id: int | None = None
        self._not_before_ms = 0.0

    async def ask(self, api: ApiVersionRange, make: Callable[[Any], Any], *, timeout_ms: float | None = None) -> Any:
        """Send the coordinator the request that ``make`` builds from kio's module for ``api``; return the response.

        The response must arrive within ``timeout_ms``, by default ``request.timeout.ms``.

        Raises OSError or ProtocolError if there is no coordinator or no response (then retry after a back-off),
        BrokerError if this client is not authorized for the group or transactional id, UnsupportedError if the broker
        does not support the request.
        """
        node_id = await self.find()
        try:
            return await self._exchange(await self._brokers.channel(node_id, "coordinator"), api, make, timeout_ms)
        except (OSError, ProtocolError):
            self.forget()
            raise

    async def find(self) -> int:
        """Return the coordinator's node id, looked up if it is unknown; raises the same errors as ``ask``."""
        if self._node_id is not None:
            return self._node_id

        def make_request(messages: Any) -> Any:
            return messages.FindCoordinatorRequest(key_type=self._key_type, coordinator_keys=(self._key,))

        await asyncio.sleep(max(0.0, self._not_before_ms - self._brokers.clock_ms()) / 1000)
        self._not_before_ms = self._brokers.clock_ms() + self._backoff.ms(0)
        self.lookups += 1
        response = await self._exchange(await self._brokers.any(), FIND_COORDINATOR, make_request)
        key_name = f"{_KINDS[self._key_type]} {self._key}"
        if not response.coordinators:
            raise ProtocolError(f"FindCoordinator of the {key_name} returned no coordinator")
        coordinator = response.coordinators[0]
        error = int(coordinator.error_code)
        if error in _FORBIDDEN:
            raise BrokerError(f"this client is not authorized for the {key_name}: {codes.name(error)}", error)
        if error:
            raise ConnectionError(f"no coordinator of the {key_name} at present: {codes.name(error)}")
        node = to_node(coordinator)
        self._brokers.set_coordinator(node)
        self._node_id = node.node_id
        return self._node_id

    def forget(self) -> None:
        self._node_id = None

    async def _exchange(
        self, channel: Channel, api: ApiVersionRange, make: Callable[[Any], Any], timeout_ms: float | None = None
    ) -> Any:
        self.versions = channel.versions
        request = make(api.messages(channel.versions))
        limit_ms = self._brokers.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        return (await channel.request(request, timeout_ms=limit_ms)).response

"""The coordinator of a group or a transactional id: found, asked, and looked for again when it has moved.

Rules (Kafka's ``CoordinatorRequestManager``):

1. Any broker knows who coordinates what. It is asked with FindCoordinator on a connection of its own, so that a
   fetch which waits for data doesn't hold it up.
2. The coordinator that was found is kept until it doesn't answer, or says that it isn't the one. Looking for it again
   waits for ``retry.backoff.ms`` since the last time: brokers may go on naming the old one for a while.
   It is dialled where the answer says that it listens: metadata may be older, or not list it.
3. What can't be found now may be found later: the caller backs off. Only what this client may not see is an error for
   good.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ProtocolError
from aftershock.workloads.kafka.client.network_client import Brokers
from aftershock.workloads.kafka.client.requests import Dialect, dialled
from aftershock.workloads.kafka.client.settings import ClientSettings
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.values import Backoff
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.codec import Api

FIND_COORDINATOR = Dialect(Api.FIND_COORDINATOR, 4, 6)
GROUP_KEY, TRANSACTION_KEY = 0, 1
_KINDS = {GROUP_KEY: "group", TRANSACTION_KEY: "transactional id"}
_FORBIDDEN = frozenset({ErrorCode.group_authorization_failed, ErrorCode.transactional_id_authorization_failed})


class Asker(Protocol):
    """What a coordinator needs of the client that it is asked for."""

    @property
    def settings(self) -> ClientSettings:
        """For ``request.timeout.ms``."""

    @property
    def brokers(self) -> Brokers:
        """The connections to ask on."""

    @property
    def metadata(self) -> Metadata:
        """The brokers there are."""

    @property
    def backoff(self) -> Backoff:
        """Between two look-ups."""

    @property
    def clock_ms(self) -> Callable[[], float]:
        """The monotonic clock."""


class Coordinator:
    """Whom to ask about one key: a group, or a transactional id. ``lookups`` counts how often it was looked for."""

    def __init__(self, key: str, shared: Asker, key_type: int = GROUP_KEY) -> None:
        self.lookups = 0
        self._key, self._shared, self._key_type = key, shared, key_type
        self._node_id: int | None = None
        self._turn, self._not_before_ms = 0, 0.0

    async def ask(self, dialect: Dialect, make: Callable[[Any], Any]) -> Any:
        """Ask the coordinator what ``make`` makes of the messages of ``dialect``; its response.

        Raises:
            OSError, ProtocolError: there was no answer, or there is no coordinator now. Back off and ask again.
            BrokerError: this client may not see the group, or use the transactional id.
            UnsupportedError: the broker can't be asked that.
        """
        node_id = await self.find()
        try:
            return await self._ask(node_id, dialect, make)
        except (OSError, ProtocolError):
            self.forget()
            raise

    async def find(self) -> int:
        """Its node id; asks for it if it isn't known. Raises as ``ask``."""
        if self._node_id is None:
            self._node_id = await self._find()
        return self._node_id

    def forget(self) -> None:
        """It isn't the one any more: look for it before the next question."""
        self._node_id = None

    async def _find(self) -> int:
        def question(messages: Any) -> Any:
            return messages.FindCoordinatorRequest(key_type=self._key_type, coordinator_keys=(self._key,))

        await asyncio.sleep(max(0.0, self._not_before_ms - self._shared.clock_ms()) / 1000)
        self._not_before_ms = self._shared.clock_ms() + self._shared.backoff.ms(0)
        self.lookups += 1
        response = await self._ask(self._anybody(), FIND_COORDINATOR, question)
        if not response.coordinators:
            raise ProtocolError(f"FindCoordinator of the {self._what} was answered without a coordinator")
        found = response.coordinators[0]
        error = int(found.error_code)
        if error in _FORBIDDEN:
            raise BrokerError(f"the {self._what} may not be seen by this client: {codes.name(error)}", error)
        if error:
            raise ConnectionError(f"no coordinator of the {self._what} now: {codes.name(error)}")
        node = dialled(found)
        self._shared.brokers.found(node)
        return node.node_id

    @property
    def _what(self) -> str:
        return f"{_KINDS[self._key_type]} {self._key}"

    def _anybody(self) -> int:
        """The brokers in turn, for some of them may be down."""
        nodes = sorted(self._shared.metadata.nodes)
        if not nodes:
            raise ConnectionError("no broker is known yet")
        self._turn += 1
        return nodes[self._turn % len(nodes)]

    async def _ask(self, node_id: int, dialect: Dialect, make: Callable[[Any], Any]) -> Any:
        channel = await self._shared.brokers.channel(node_id, "coordinator")
        request = make(dialect.messages(channel.versions))
        return (await channel.request(request, timeout_ms=self._shared.settings.request_timeout_ms)).response

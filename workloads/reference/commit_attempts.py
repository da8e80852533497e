"""One attempt at one commit on the wire, as plain OffsetCommit; ``transactional_attempts.py`` has the other kind."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, UnsupportedError
from aftershock.workloads.reference.brokers import Brokers
from aftershock.workloads.reference.commit_messages import OFFSET_COMMIT, commit_error, offset_commit
from aftershock.workloads.reference.committer_settings import CommitterSettings
from aftershock.workloads.reference.coordinator import Coordinator
from aftershock.workloads.rules.backoff import Backoff
from aftershock.workloads.rules.commit_errors import MOVED
from aftershock.workloads.rules.commits import Target
from aftershock.workloads.rules.metadata import Metadata


class Lane(NamedTuple):
    """The connections that some targets share; all lanes of a committer know the same metadata."""

    settings: CommitterSettings
    brokers: Brokers
    metadata: Metadata
    backoff: Backoff
    clock_ms: Callable[[], float]


class Attempts(Protocol):
    """How one target's commits get done."""

    @property
    def lookups(self) -> int:
        """How often a coordinator was looked for."""

    async def prepare(self) -> None:
        """Find whom to ask, connect, and see that it can be asked. Raises as ``Coordinator.ask``."""

    async def make(self, offset: int) -> int:
        """Commit ``offset``: Kafka's code. OSError or ProtocolError: there was no answer; back off."""


class PlainAttempts:
    """``sent`` is told the coordinator's node id just before a commit goes to the wire."""

    def __init__(self, target: Target, lane: Lane, sent: Callable[[int], None]) -> None:
        self._target, self._lane, self._sent = target, lane, sent
        self._coordinator = Coordinator(target.group, lane)

    @property
    def lookups(self) -> int:
        """How often the group's coordinator was looked for."""
        return self._coordinator.lookups

    async def prepare(self) -> None:
        """Find the coordinator and connect to it."""
        channel = await self._lane.brokers.channel(await self._coordinator.find(), "coordinator")
        OFFSET_COMMIT.messages(channel.versions)

    async def make(self, offset: int) -> int:
        """Commit ``offset``: see ``Attempts``."""
        try:
            node_id = await self._coordinator.find()
            error = commit_error(await self._coordinator.ask(OFFSET_COMMIT, self._request(offset, node_id)))
        except BrokerError as refused:
            return refused.code
        except UnsupportedError:
            return int(ErrorCode.unsupported_version)
        if error in MOVED:
            self._coordinator.forget()
        return error

    def _request(self, offset: int, node_id: int) -> Callable[[Any], Any]:
        def request(messages: Any) -> Any:
            self._sent(node_id)
            return offset_commit(messages, self._target, offset, "m" * self._lane.settings.commit_metadata_bytes)

        return request

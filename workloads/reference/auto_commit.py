"""``enable.auto.commit``: positions are committed by ``poll``, before partitions are given up, and at the end.

A position is behind what earlier polls handed over, and nothing else, so what is committed has reached the application
(Kafka's ``CommitRequestManager.AutoCommitState``). A commit that fails is told and left: the next one says it again.
"""

import asyncio

from aftershock.errors import ClientError
from aftershock.workloads.reference.consumer_settings import ConsumerSettings
from aftershock.workloads.reference.offset_store import Committed, OffsetStore
from aftershock.workloads.reference.tell import Tell
from aftershock.workloads.rules.positions import Positions
from aftershock.workloads.rules.values import TopicPartition


def consumed(positions: Positions) -> dict[TopicPartition, Committed]:
    """What may be committed now."""
    valid = {tp: positions.valid_position(tp) for tp in positions}
    return {tp: Committed(at.offset, at.offset_epoch) for tp, at in valid.items() if at is not None}


class AutoCommit:
    """The automatic commits of one consumer; none where they are switched off."""

    def __init__(self, store: OffsetStore, positions: Positions, settings: ConsumerSettings, tell: Tell) -> None:
        self._store, self._positions, self._tell = store, positions, tell
        self._enabled, self._interval_ms = settings.enable_auto_commit, settings.auto_commit_interval_ms
        self._due_ms: float | None = None
        self._task: asyncio.Task[None] | None = None

    def polled(self, now_ms: float) -> None:
        """A poll begins: everything handed over so far has been dealt with. Commit it if it is time."""
        if not self._enabled:
            return
        if self._due_ms is None:
            self._due_ms = now_ms + self._interval_ms
        if now_ms >= self._due_ms and (self._task is None or self._task.done()):
            self._due_ms = now_ms + self._interval_ms
            self._task = asyncio.create_task(self.commit())

    async def commit(self) -> None:
        """Commit everything consumed, now."""
        if not self._enabled:
            return
        offsets = consumed(self._positions)
        try:
            await self._store.commit(offsets)
        except (OSError, ClientError) as error:
            self._tell("commit_failed", reason=str(error) or type(error).__name__)

    async def close(self) -> None:
        """End what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

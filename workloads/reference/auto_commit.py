"""``enable.auto.commit``: positions are committed by ``poll``, before partitions are given up, and at the end.

A position is behind what earlier polls handed over, and nothing else, so what is committed has reached the application
(Kafka's ``CommitRequestManager.AutoCommitState``). A commit that fails is told and left: the next one says it again.
"""

import asyncio
from collections.abc import Mapping

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
        self._tasks: set[asyncio.Task[None]] = set()

    def polled(self, now_ms: float) -> None:
        """A poll begins: everything handed over so far has been dealt with. Commit it if it is time."""
        if not self._enabled:
            return
        if self._due_ms is None:
            self._due_ms = now_ms + self._interval_ms
        if now_ms >= self._due_ms and not self._tasks:
            self._due_ms = now_ms + self._interval_ms
            self.begin()

    def begin(self) -> asyncio.Task[None] | None:
        """Start to commit everything consumed up to now; None where commits aren't automatic."""
        if not self._enabled:
            return None
        task = asyncio.create_task(self._commit(consumed(self._positions)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        try:
            await self._store.commit(offsets)
        except (OSError, ClientError) as error:
            self._tell("commit_failed", reason=str(error) or type(error).__name__)
        else:
            if offsets:
                self._tell("committed", offsets=[[tp.topic, tp.partition, at.offset] for tp, at in offsets.items()])

    async def finish(self) -> None:
        """Commit everything consumed, and wait for all that is under way."""
        self.begin()
        await asyncio.gather(*self._tasks)

    def cancel(self) -> None:
        """Nothing that is under way may be committed any more: the partitions are lost."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """End what is under way."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

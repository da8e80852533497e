"""Partitions that a group has assigned to a consumer, with callbacks, commits before revocations, and start positions.

The coordinators of both group protocols decide which partitions come and go; here is what that means for a consumer:

1. Before partitions are revoked, the positions are committed (if commits are automatic). Meanwhile these partitions are
   neither fetched nor delivered, and ``poll`` delivers records of the others. Then ``on_revoked`` is called.
2. Partitions that are lost (the group has excluded the member) are neither committed nor revoked, because another
   member may own them already: ``on_lost`` is called.
3. A new partition is read from its committed offset, or else from where ``auto.offset.reset`` says.

Callbacks are called from ``poll`` and ``close``, and never with an empty list, unlike Kafka's ``onPartitionsAssigned``.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from aftershock.errors import BrokerError, ClientError
from aftershock.workloads.kafka.consumer.commit_request_manager import AutoCommit, CommittedOffsets
from aftershock.workloads.kafka.consumer.shared import ConsumerContext
from aftershock.workloads.kafka.rules.consumer_group import FENCED_CODES
from aftershock.workloads.kafka.rules.subscription_state import FetchPosition, State
from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition
from aftershock.workloads.kafka.wire import codes

OnPartitions = Callable[[Sequence[TopicPartition]], None]
"""Callback of the application for assigned, revoked or lost partitions, called from ``poll`` and ``close``."""


class RebalanceListener(NamedTuple):
    """Callbacks of the application (Kafka's ``ConsumerRebalanceListener``)."""

    on_assigned: OnPartitions = lambda _: None
    on_revoked: OnPartitions = lambda _: None
    on_lost: OnPartitions = lambda _: None


class AssignedPartitions:
    """Assigned partitions of one consumer, and its commits to the group's offsets (``store``)."""

    def __init__(self, shared: ConsumerContext, store: CommittedOffsets) -> None:
        self.store, self._shared = store, shared
        self.commits = AutoCommit(store, shared.positions, shared.settings, shared.on_event)
        self.listener = RebalanceListener()
        self._revocation_commit: asyncio.Task[None] | None = None
        self._restoring: asyncio.Task[None] | None = None

    def begin_revocation(self, partitions: Sequence[TopicPartition]) -> None:
        """Start to commit the positions, and stop to fetch and deliver ``partitions``."""
        self._revocation_commit = self.commits.begin(before_revocation=True)
        if self._revocation_commit is not None:
            self._revocation_commit.add_done_callback(lambda _: self._shared.on_change())
        self._shared.positions.revoking(partitions)

    @property
    def is_committed(self) -> bool:
        """True if the commit before the revocation has ended, or there is none."""
        return self._revocation_commit is None or self._revocation_commit.done()

    def revoke(self, partitions: Sequence[TopicPartition]) -> None:
        self._revocation_commit = None
        self._remove(partitions)
        if partitions:
            self.listener.on_revoked(partitions)

    def lose(self, member_id: str) -> None:
        """Release all partitions without a commit, because the group has excluded the member ``member_id``."""
        self.commits.cancel()
        self._revocation_commit = None
        lost = sorted(self._shared.positions)
        self._remove(lost)
        if lost:
            listed = [[tp.topic, tp.partition] for tp in lost]
            self._shared.on_event("partitions_lost", partitions=listed, member_id=member_id)
            self.listener.on_lost(lost)

    def add(self, partitions: Sequence[TopicPartition]) -> None:
        """Add partitions, and let the next automatic commit wait for its interval."""
        self.commits.restart(self._shared.clock_ms())
        self._shared.positions.assign([*self._shared.positions, *partitions])
        if partitions:
            self.listener.on_assigned(partitions)

    def _remove(self, partitions: Sequence[TopicPartition]) -> None:
        removed = set(partitions)
        self._shared.assign([tp for tp in self._shared.positions if tp not in removed])

    def restore_positions(self) -> None:
        """Start to look up the committed offsets of partitions without a position, unless a look-up is under way."""
        if self._without_position() and (self._restoring is None or self._restoring.done()):
            self._restoring = asyncio.create_task(self._restore_positions())

    def _without_position(self) -> list[TopicPartition]:
        return [tp for tp in self._shared.positions.initializing() if tp not in self._shared.buffer]

    async def _restore_positions(self) -> None:
        positions, metadata, buffer = self._shared.positions, self._shared.metadata, self._shared.buffer
        while missing := self._without_position():
            try:
                committed = await self.store.committed(missing)
            except TimeoutError:
                continue
            except ClientError as error:
                if isinstance(error, BrokerError) and error.code in FENCED_CODES:
                    # The response to the next heartbeat excludes the member.
                    await asyncio.sleep(self._shared.backoff.ms(0) / 1000)
                    continue
                for tp in missing:
                    buffer.fail(tp, error)
                self._shared.on_change()
                continue
            for tp in missing:
                if positions.state(tp) is not State.INITIALIZING:
                    continue
                if (commit := committed.get(tp)) is not None:
                    if commit.epoch != UNKNOWN:
                        metadata.update_epoch(tp, commit.epoch)
                    positions.seek(tp, FetchPosition(commit.offset, commit.epoch, metadata.leader(tp)))
                elif positions.policy != "none":
                    positions.reset(tp)
                else:
                    problem = f"the consumer group has no committed offset of {tp}, and auto.offset.reset is none"
                    advice = "commit an offset, or set auto.offset.reset to earliest or latest"
                    buffer.fail(tp, BrokerError(f"{problem}; {advice}", codes.OFFSET_OUT_OF_RANGE))
            self._shared.on_change()

    async def close(self) -> None:
        await self.commits.close()
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.wait([self._restoring])

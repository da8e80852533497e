"""What a consumer does when its group gives it partitions or takes them away (KIP-848).

Rules (the state machine is ``consumer_group.py``'s; Kafka's ``AsyncKafkaConsumer``, ``ConsumerMembershipManager``):

1. Whatever concerns the application happens in ``settle``, which ``poll`` calls: partitions that are taken away are
   fetched and handed over no more, then committed (if that is automatic), then given up with ``on_revoked``; only then
   are new ones taken with ``on_assigned``. Nobody waits for the commit: partitions that stay are read meanwhile.
2. A member that was thrown out has lost its partitions: ``on_revoked``, and nothing is committed, be it under way.
3. A new partition goes on from what the group has committed; without that, the reset policy says where.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from aftershock.errors import BrokerError, ClientError
from aftershock.workloads.reference.auto_commit import AutoCommit
from aftershock.workloads.reference.offset_store import Committed, OffsetStore
from aftershock.workloads.reference.shared import Shared
from aftershock.workloads.reference.wake import Wake
from aftershock.workloads.rules.consumer_group import FENCED_CODES, AssignedPartition, GroupMember, MemberState, Step
from aftershock.workloads.rules.position import FetchPosition, State
from aftershock.workloads.rules.values import UNKNOWN, TopicPartition
from aftershock.workloads.wire.codes import OFFSET_OUT_OF_RANGE

OnPartitions = Callable[[Sequence[TopicPartition]], None]


class Callbacks(NamedTuple):
    """The application's. They are called from ``poll`` and ``close`` only, and must not wait."""

    on_assigned: OnPartitions
    on_revoked: OnPartitions


class Rebalance:
    """The assignment of one member: ``settle`` from poll, ``give_all_up`` at the end. Until it joins there is none."""

    def __init__(
        self, shared: Shared, member: GroupMember, store: OffsetStore, commits: AutoCommit, acknowledge: Wake
    ) -> None:
        self.callbacks = Callbacks(_ignore, _ignore)
        self._shared, self._member, self._store, self._commits = shared, member, store, commits
        self._acknowledge = acknowledge
        self._step: Step | None = None
        self._committing: asyncio.Task[None] | None = None
        self._names: dict[UUID, str] = {}
        self._restoring: asyncio.Task[None] | None = None

    # ---- the assignment

    def settle(self) -> None:
        """Carry out what the group wants changed, if anything, as far as that can be done now (rule 1)."""
        if self._member.state is MemberState.FENCED:
            self._lose()
        self._learn_names()
        if self._step is None:
            self._begin(self._member.reconcile(self._names))
        if self._step is not None and (self._committing is None or self._committing.done()):
            self._finish(self._step)
            self._step = None
        if self._unplaced() and (self._restoring is None or self._restoring.done()):
            self._restoring = asyncio.create_task(self._restore())

    def _learn_names(self) -> None:
        for topic_id in self._member.unresolved - self._names.keys():
            name = self._shared.metadata.name_of(topic_id)
            if name is None:
                self._shared.metadata.request_update()
            else:
                self._names[topic_id] = name

    def _begin(self, step: Step | None) -> None:
        """Nothing more is handed over of what goes; what was is committed."""
        self._step, self._committing = step, None
        if step is None or not step.revoke:
            return
        self._committing = self._commits.begin()
        if self._committing is not None:
            self._committing.add_done_callback(lambda _: self._shared.on_change())
        self._shared.positions.revoking(self._named(step.revoke))

    def _finish(self, step: Step) -> None:
        taken = self._named(step.take)
        self._drop(self._named(step.revoke))
        self._shared.positions.assign([*self._shared.positions, *taken])
        if taken:
            self.callbacks.on_assigned(taken)
        self._member.reconciled()
        self._acknowledge()

    def _named(self, partitions: Iterable[AssignedPartition]) -> list[TopicPartition]:
        return sorted(TopicPartition(self._names[each.topic_id], each.partition) for each in partitions)

    def _lose(self) -> None:
        """Rule 2."""
        self._commits.cancel()
        lost = sorted(self._shared.positions)
        self._drop(lost)
        listed = [[tp.topic, tp.partition] for tp in lost]
        self._shared.tell("partitions_lost", partitions=listed, member_id=self._member.member_id)
        self._step = None
        self._member.released()
        self._acknowledge()

    def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        gone = set(partitions)
        self._shared.assign([tp for tp in self._shared.positions if tp not in gone])
        if partitions:
            self.callbacks.on_revoked(partitions)

    # ---- where new partitions begin

    def _unplaced(self) -> list[TopicPartition]:
        return [tp for tp in self._shared.positions.initializing() if tp not in self._shared.buffer]

    async def _restore(self) -> None:
        """Rule 3, for whatever has no position; until nothing is left without one."""
        while asked := self._unplaced():
            try:
                committed = await self._store.committed(asked)
            except TimeoutError:
                continue
            except ClientError as error:
                await self._not_restored(asked, error)
                continue
            for tp in asked:
                self._place(tp, committed.get(tp))
            self._shared.on_change()

    async def _not_restored(self, partitions: Sequence[TopicPartition], error: ClientError) -> None:
        """A member that was thrown out will hear of it by heartbeat; all else is for the application to hear."""
        if isinstance(error, BrokerError) and error.code in FENCED_CODES:
            await asyncio.sleep(self._shared.backoff.ms(0) / 1000)
            return
        for tp in partitions:
            self._shared.buffer.fail(tp, error)
        self._shared.on_change()

    def _place(self, tp: TopicPartition, committed: Committed | None) -> None:
        positions, metadata = self._shared.positions, self._shared.metadata
        if positions.state(tp) is not State.INITIALIZING:
            return
        if committed is not None:
            if committed.epoch != UNKNOWN:
                metadata.saw_epoch(tp, committed.epoch)
            positions.seek(tp, FetchPosition(committed.offset, committed.epoch, metadata.leader(tp)))
        elif positions.policy != "none":
            positions.reset(tp)
        else:
            self._shared.buffer.fail(tp, _nothing_committed(tp))

    # ---- the end

    async def give_all_up(self) -> None:
        """Commit if that is automatic, then have nothing any more."""
        if self._member.state is MemberState.FENCED:
            self._commits.cancel()
        else:
            await self._commits.finish()
        self._drop(sorted(self._shared.positions))

    async def close(self) -> None:
        """End what is under way."""
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.wait([self._restoring])


def _ignore(_partitions: Sequence[TopicPartition]) -> None:
    """Nobody asked to be called."""


def _nothing_committed(tp: TopicPartition) -> BrokerError:
    return BrokerError(
        f"the group has no offset of {tp} and auto.offset.reset is none: commit one, or set the policy",
        OFFSET_OUT_OF_RANGE,
    )

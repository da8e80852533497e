"""A consumer's side of its group: committed offsets, and membership if it subscribes.

Without ``group.id`` there is no ``Group``. With one, a consumer that assigns commits as nobody in particular; one that
subscribes is a member, with heartbeats in the background for as long as ``run`` runs.
"""

import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from aftershock.errors import ClientError
from aftershock.workloads.reference.auto_commit import AutoCommit
from aftershock.workloads.reference.coordinator import Coordinator
from aftershock.workloads.reference.heartbeats import Heartbeats
from aftershock.workloads.reference.offset_store import Membership, OffsetStore
from aftershock.workloads.reference.rebalance import Callbacks, Rebalance
from aftershock.workloads.reference.shared import Shared
from aftershock.workloads.rules.consumer_group import GroupMember, MemberState


class Group:
    """One consumer and its group. ``run`` in the background once it has joined; ``polled`` and ``settle`` from poll."""

    def __init__(self, group_id: str, shared: Shared) -> None:
        settings = shared.settings
        coordinator = Coordinator(group_id, shared)
        self._shared = shared
        self._member = GroupMember(
            str(uuid.uuid4()),
            backoff=shared.backoff,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            rack=settings.client_rack,
            assignor=settings.group_remote_assignor,
        )
        self.store = OffsetStore(
            group_id, coordinator, shared.backoff, settings.default_api_timeout_ms, self._membership
        )
        self._commits = AutoCommit(self.store, shared.positions, shared.settings, shared.tell)
        self._heartbeats = Heartbeats(group_id, self._member, coordinator, shared)
        self._rebalance = Rebalance(shared, self._member, self.store, self._commits, self._heartbeats.wake)

    @property
    def counts(self) -> Counter[str]:
        """The member's counters."""
        return self._member.counts

    @property
    def member_id(self) -> str:
        """What the group knows this consumer by, once it has joined."""
        return self._membership().member_id

    def _membership(self) -> Membership:
        unsubscribed = self._member.state is MemberState.UNSUBSCRIBED
        return Membership() if unsubscribed else Membership(self._member.member_id, self._member.epoch)

    def join(self, topics: Sequence[str], callbacks: Callbacks) -> None:
        """Want to be a member for these topics."""
        self._rebalance.callbacks = callbacks
        self._member.subscribe(tuple(topics))
        self._heartbeats.wake()

    async def run(self) -> None:
        """The heartbeats, for ever; a ``ClientError`` when the membership can't go on."""
        await self._heartbeats.run()

    def polled(self) -> None:
        """A poll begins: what earlier ones handed over may be committed."""
        self._commits.polled(self._shared.clock_ms())

    def settle(self) -> None:
        """Carry out what the group wants changed."""
        self._rebalance.settle()

    async def leave(self) -> None:
        """Commit if that is automatic, give everything up and tell the group; ``run`` must have ended."""
        await self._rebalance.give_all_up()
        if self._member.leave():
            with suppress(ClientError):  # a group that couldn't be joined can't be left either
                await self._heartbeats.beat()

    async def close(self) -> None:
        """End what is under way."""
        await self._commits.close()
        await self._rebalance.close()

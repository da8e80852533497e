"""``elect``: elect the leaders of a topic, by Kafka's leader election (KIP-460).

``preferred``: the first replica of every partition becomes the leader. It has an effect only where another replica
leads. ``unclean``: in a partition without a leader, any live replica becomes the leader, even if it was not in sync.
Records that only the lost replicas had are gone, acknowledged ones too, and offsets are used again. It has an effect
only in partitions without a leader; an existing leader is never replaced.

An election can't be undone (the leaders stay), so there is no ``for``.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Family,
    Fault,
    FieldPath,
    Impact,
    Injection,
    InjectionContext,
    Report,
    TargetKind,
)
from aftershock.faults.runtime.record import NOTHING, Targets, Witness
from aftershock.faults.runtime.undo import elect_preferred_leaders
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, wait_until
from aftershock.faults.targets.values import PartitionState

ELECTED_DEADLINE_MS = 30_000
Election = Literal["preferred", "unclean"]
TRUNCATES = ("lost", "duplicate", "order")
"""Integrity rules that don't apply once a log was truncated to that of a replica out of sync."""


class Elect(Fault):
    """Elect the preferred leaders of a topic, or any leader where there is none."""

    family: ClassVar[Family] = "Kafka"
    band: ClassVar[Band] = Band("#17becf", "elect")
    proof: ClassVar[str] = "leaders that moved to the preferred replica, or partitions that have a leader again"
    permanent_effect: ClassVar[str | None] = (
        "the leaders where they were elected; unclean: without the records of the lost replicas"
    )
    remedy: ClassVar[str] = "nothing: the leaders stay where they were elected"
    exposure_target: ClassVar[TargetKind] = "topics"
    closes_connections: ClassVar[bool] = True  # the former leader answers with an error
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("assignment", "topics"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["elect"] = "elect"
    topic: str
    election: Election = "preferred"

    def impact(self) -> Impact:
        """Return ``leaders`` for preferred leaders, which are in sync."""
        return "leaders" if self.election == "preferred" else "unknown"

    def topics(self) -> dict[FieldPath, str]:
        """Return the topic."""
        return {("topic",): self.topic}

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """Resolve the partitions; raise FaultError if there is no such topic or, if unclean, all have leaders."""
        before = tuple(await context.world.partitions([self.topic]))
        if not before:
            raise FaultError(f"there is no topic {self.topic}; check the fault's target")
        if self.election == "preferred":
            return PreferredInjection(context, self.topic, before)
        if all(state.leader is not None for state in before):
            raise FaultError(f"every partition of {self.topic} has a leader, and an unclean election deposes none")
        return UncleanInjection(context, self.topic, before)


class ElectInjection(Injection):
    """Election of a topic. ``due``: the partitions that need it."""

    undo = NOTHING

    def __init__(
        self, context: InjectionContext, topic: str, before: Sequence[PartitionState], due: Sequence[int]
    ) -> None:
        self.context = context
        self.topic = topic
        self.before = {state.partition: state for state in before}
        self.due = sorted(due)

    async def now(self) -> dict[int, PartitionState]:
        """Return the current state of the topic's partitions."""
        states = await retry_refused(self._states, self.context.clock, READ_DEADLINE_MS)
        return {state.partition: state for state in states}

    async def _states(self) -> Sequence[PartitionState]:
        return await self.context.world.partitions([self.topic])


class PreferredInjection(ElectInjection):
    """Preferred election of all partitions."""

    def __init__(self, context: InjectionContext, topic: str, before: Sequence[PartitionState]) -> None:
        super().__init__(context, topic, before, [s.partition for s in before if s.leader != s.replicas[0]])
        self.targets = Targets(topics=(topic,), roles={"election": "preferred", "astray": len(self.due)})

    async def inject(self) -> None:
        """Request elections until the preferred replicas lead."""
        partitions = frozenset((self.topic, partition) for partition in self.before)
        world, clock = self.context.world, self.context.clock
        await wait_until(lambda: elect_preferred_leaders(partitions, world), clock, ELECTED_DEADLINE_MS)

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report that preferred leaders replaced all other leaders, at least one, at a higher epoch."""
        now = await self.now()
        moved = [p for p in self.due if p in now and _elected(self.before[p], now[p])]
        ok = bool(self.due) and len(moved) == len(self.due)
        what = f"leaders of {self.topic} that moved to their preferred replica, of those that had strayed from it"
        report(Witness(what, max(1, len(self.due)), len(moved), "partitions", len(now), ok))


class UncleanInjection(ElectInjection):
    """Unclean election of the partitions without a leader."""

    def __init__(self, context: InjectionContext, topic: str, before: Sequence[PartitionState]) -> None:
        super().__init__(context, topic, before, [s.partition for s in before if s.leader is None])
        roles = {"election": "unclean", "leaderless": self.due, "permits": TRUNCATES}
        self.targets = Targets(topics=(topic,), roles=roles)

    async def inject(self) -> None:
        """Request unclean elections until every partition has a leader."""

        async def leaderless() -> str | None:
            states = await self._states()
            pending = [(self.topic, s.partition) for s in states if s.partition in self.due and s.leader is None]
            if not pending:
                return None
            await self.context.world.elect_unclean(pending)
            return f"{len(pending)} of {len(self.due)} partitions have no leader"

        await wait_until(leaderless, self.context.clock, ELECTED_DEADLINE_MS)

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report that each has a leader, at a higher epoch, that was not in sync before."""
        now = await self.now()
        led = [p for p in self.due if p in now and _led_again(self.before[p], now[p])]
        what = f"partitions of {self.topic} without a leader that have one now, which was not in sync"
        report(Witness(what, len(self.due), len(led), "partitions", len(now), len(led) == len(self.due)))


def _elected(before: PartitionState, now: PartitionState) -> bool:
    return now.leader == now.replicas[0] and now.leader_epoch > before.leader_epoch


def _led_again(before: PartitionState, now: PartitionState) -> bool:
    return now.leader is not None and now.leader not in before.isr and now.leader_epoch > before.leader_epoch

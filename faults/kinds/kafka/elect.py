"""``elect``: elect the leaders of a topic, by Kafka's own leader election (KIP-460).

``preferred``: the first replica of every partition is to lead. It does something only where leaders have strayed.
``unclean``: where a partition has no leader, any live replica is to lead, though it was not in sync: records that only
the lost replicas had are gone, acknowledged ones too, and offsets are used again. It does something only where a
partition has none; a leader in office is never deposed.

It has no inverse (the leaders stay) and so no ``for``.
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
"""What integrity rules can't hold once a log was cut to that of a replica out of sync."""


class Elect(Fault):
    """Elect the preferred leaders of a topic, or any leader where there is none."""

    family: ClassVar[Family] = "Kafka"
    band: ClassVar[Band] = Band("#17becf", "elect")
    proof: ClassVar[str] = "leaders that moved to the preferred replica, or partitions that have a leader again"
    permanent_effect: ClassVar[str | None] = (
        "the leaders where they were elected; unclean: without what the lost replicas had"
    )
    remedy: ClassVar[str] = "nothing: the leaders stay where they were elected"
    exposure_target: ClassVar[TargetKind] = "topics"
    closes_connections: ClassVar[bool] = True  # a replica that leads no more says so
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("assignment", "topics"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["elect"] = "elect"
    topic: str
    election: Election = "preferred"

    def impact(self) -> Impact:
        """Preferred leaders are taken from those in sync."""
        return "leaders" if self.election == "preferred" else "unknown"

    def topics(self) -> dict[FieldPath, str]:
        """The topic."""
        return {("topic",): self.topic}

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """FaultError if there is no such topic, or nobody to be replaced by an unclean leader."""
        before = tuple(await context.world.partitions([self.topic]))
        if not before:
            raise FaultError(f"there is no topic {self.topic}; check the fault's target")
        if self.election == "preferred":
            return PreferredInjection(context, self.topic, before)
        if all(state.leader is not None for state in before):
            raise FaultError(f"every partition of {self.topic} has a leader, and an unclean election deposes none")
        return UncleanInjection(context, self.topic, before)


class ElectInjection(Injection):
    """One election. ``due``: the partitions that it is for."""

    undo = NOTHING

    def __init__(
        self, context: InjectionContext, topic: str, before: Sequence[PartitionState], due: Sequence[int]
    ) -> None:
        self.context = context
        self.topic = topic
        self.before = {state.partition: state for state in before}
        self.due = sorted(due)

    async def now(self) -> dict[int, PartitionState]:
        """The topic's partitions as they are."""
        states = await retry_refused(self._states, self.context.clock, READ_DEADLINE_MS)
        return {state.partition: state for state in states}

    async def _states(self) -> Sequence[PartitionState]:
        return await self.context.world.partitions([self.topic])


class PreferredInjection(ElectInjection):
    """The preferred leaders of all partitions."""

    def __init__(self, context: InjectionContext, topic: str, before: Sequence[PartitionState]) -> None:
        super().__init__(context, topic, before, [s.partition for s in before if s.leader != s.replicas[0]])
        self.targets = Targets(topics=(topic,), roles={"election": "preferred", "astray": len(self.due)})

    async def inject(self) -> None:
        """Ask until the preferred replicas lead."""
        wanted = frozenset((self.topic, partition) for partition in self.before)
        await wait_until(lambda: elect_preferred_leaders(wanted, self.context.world), self.context.clock, ELECTED_DEADLINE_MS)

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Every leader that had strayed must be the preferred one, at a higher epoch; and there must have been one."""
        now = await self.now()
        moved = [p for p in self.due if p in now and _elected(self.before[p], now[p])]
        ok = bool(self.due) and len(moved) == len(self.due)
        what = f"leaders of {self.topic} that moved to their preferred replica, of those that had strayed from it"
        report(Witness(what, max(1, len(self.due)), len(moved), "partitions", len(now), ok))


class UncleanInjection(ElectInjection):
    """A leader for each partition that has none."""

    def __init__(self, context: InjectionContext, topic: str, before: Sequence[PartitionState]) -> None:
        super().__init__(context, topic, before, [s.partition for s in before if s.leader is None])
        roles = {"election": "unclean", "leaderless": self.due, "permits": TRUNCATES}
        self.targets = Targets(topics=(topic,), roles=roles)

    async def inject(self) -> None:
        """Ask until they all have one."""
        await wait_until(self._leaderless, self.context.clock, ELECTED_DEADLINE_MS)

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Each has a leader, at a higher epoch, that was not in sync before."""
        now = await self.now()
        led = [p for p in self.due if p in now and _led_again(self.before[p], now[p])]
        what = f"partitions of {self.topic} without a leader that have one now, which was not in sync"
        report(Witness(what, len(self.due), len(led), "partitions", len(now), len(led) == len(self.due)))

    async def _leaderless(self) -> str | None:
        states = await self._states()
        without = [(self.topic, s.partition) for s in states if s.partition in self.due and s.leader is None]
        if not without:
            return None
        await self.context.world.elect_unclean(without)
        return f"{len(without)} of {len(self.due)} partitions have no leader"


def _elected(before: PartitionState, now: PartitionState) -> bool:
    return now.leader == now.replicas[0] and now.leader_epoch > before.leader_epoch


def _led_again(before: PartitionState, now: PartitionState) -> bool:
    return now.leader is not None and now.leader not in before.isr and now.leader_epoch > before.leader_epoch

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
from aftershock.faults.kinds.fault import Among, Band, Draws, Family, Fault, Place, Report, Scene, Stake, Strike, Takes
from aftershock.faults.runtime.record import NOTHING, Targets, Witness
from aftershock.faults.runtime.undo import led_by_preferred
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, patiently, until
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
    leaves: ClassVar[str | None] = "the leaders where they were elected; unclean: without what the lost replicas had"
    remedy: ClassVar[str] = "nothing: the leaders stay where they were elected"
    met_by: ClassVar[Among] = "topics"
    told: ClassVar[bool] = True  # a replica that leads no more says so
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("assignment", "topics"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["elect"] = "elect"
    topic: str
    election: Election = "preferred"

    def takes(self) -> Takes:
        """Preferred leaders are taken from those in sync."""
        return "leaders" if self.election == "preferred" else "unknown"

    def topics(self) -> dict[Place, str]:
        """The topic."""
        return {("topic",): self.topic}

    async def aim(self, scene: Scene, _draws: Draws) -> Strike:
        """FaultError if there is no such topic, or nobody to be replaced by an unclean leader."""
        before = tuple(await scene.world.partitions([self.topic]))
        if not before:
            raise FaultError(f"there is no topic {self.topic}; check the fault's target")
        if self.election == "preferred":
            return PreferredStrike(scene, self.topic, before)
        if all(state.leader is not None for state in before):
            raise FaultError(f"every partition of {self.topic} has a leader, and an unclean election deposes none")
        return UncleanStrike(scene, self.topic, before)


class ElectStrike(Strike):
    """One election. ``due``: the partitions that it is for."""

    undo = NOTHING

    def __init__(self, scene: Scene, topic: str, before: Sequence[PartitionState], due: Sequence[int]) -> None:
        self.scene = scene
        self.topic = topic
        self.before = {state.partition: state for state in before}
        self.due = sorted(due)

    async def now(self) -> dict[int, PartitionState]:
        """The topic's partitions as they are."""
        states = await patiently(self._states, self.scene.clock, READ_DEADLINE_MS)
        return {state.partition: state for state in states}

    async def _states(self) -> Sequence[PartitionState]:
        return await self.scene.world.partitions([self.topic])


class PreferredStrike(ElectStrike):
    """The preferred leaders of all partitions."""

    def __init__(self, scene: Scene, topic: str, before: Sequence[PartitionState]) -> None:
        super().__init__(scene, topic, before, [s.partition for s in before if s.leader != s.replicas[0]])
        self.targets = Targets(topics=(topic,), roles={"election": "preferred", "astray": len(self.due)})

    async def inject(self) -> None:
        """Ask until the preferred replicas lead."""
        wanted = frozenset((self.topic, partition) for partition in self.before)
        await until(lambda: led_by_preferred(wanted, self.scene.world), self.scene.clock, ELECTED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:  # noqa: ARG002 -- an election lasts no time
        """Every leader that had strayed must be the preferred one, at a higher epoch; and there must have been one."""
        now = await self.now()
        moved = [p for p in self.due if p in now and _elected(self.before[p], now[p])]
        ok = bool(self.due) and len(moved) == len(self.due)
        what = f"leaders of {self.topic} that moved to their preferred replica, of those that had strayed from it"
        report(Witness(what, max(1, len(self.due)), len(moved), "partitions", len(now), ok))


class UncleanStrike(ElectStrike):
    """A leader for each partition that has none."""

    def __init__(self, scene: Scene, topic: str, before: Sequence[PartitionState]) -> None:
        super().__init__(scene, topic, before, [s.partition for s in before if s.leader is None])
        roles = {"election": "unclean", "leaderless": self.due, "permits": TRUNCATES}
        self.targets = Targets(topics=(topic,), roles=roles)

    async def inject(self) -> None:
        """Ask until they all have one."""
        await until(self._leaderless, self.scene.clock, ELECTED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:  # noqa: ARG002 -- an election lasts no time
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
        await self.scene.world.elect_unclean(without)
        return f"{len(without)} of {len(self.due)} partitions have no leader"


def _elected(before: PartitionState, now: PartitionState) -> bool:
    return now.leader == now.replicas[0] and now.leader_epoch > before.leader_epoch


def _led_again(before: PartitionState, now: PartitionState) -> bool:
    return now.leader is not None and now.leader not in before.isr and now.leader_epoch > before.leader_epoch

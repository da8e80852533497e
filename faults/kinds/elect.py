"""``elect``: make the preferred replica of every partition of a topic its leader (Kafka's preferred leader election).

It has no inverse (the leaders move, and stay) and so no ``for``. It does something only where leaders have strayed from
their preferred replicas; where none have, the fault did nothing and its witness says so.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from aftershock.errors import FaultError
from aftershock.faults.fault import Among, Band, Draws, Family, Fault, Place, Report, Scene, Stake, Strike
from aftershock.faults.record import NOTHING, Targets, Witness
from aftershock.faults.undo import led_by_preferred
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently, until
from aftershock.faults.world import PartitionState

ELECTED_DEADLINE_MS = 30_000


class Elect(Fault):
    """Elect the preferred leaders of a topic."""

    family: ClassVar[Family] = "Kafka"
    band: ClassVar[Band] = Band("#17becf", "elect")
    proof: ClassVar[str] = "leaders that moved to the preferred replica, at a higher epoch"
    leaves: ClassVar[str | None] = "the leaders where they were elected"
    remedy: ClassVar[str] = "nothing: the leaders stay where they were elected"
    met_by: ClassVar[Among] = "topics"
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("assignment", "topics"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["elect"] = "elect"
    topic: str
    election: Literal["preferred"] = "preferred"

    def topics(self) -> dict[Place, str]:
        """The topic."""
        return {("topic",): self.topic}

    async def aim(self, scene: Scene, _draws: Draws) -> Strike:
        """FaultError if there is no such topic."""
        before = tuple(await scene.world.partitions([self.topic]))
        if not before:
            raise FaultError(f"there is no topic {self.topic}; check the fault's target")
        return ElectStrike(scene, self.topic, before)


class ElectStrike(Strike):
    """One election of all leaders of a topic."""

    undo = NOTHING

    def __init__(self, scene: Scene, topic: str, before: tuple[PartitionState, ...]) -> None:
        self.scene = scene
        self.before = {state.partition: state for state in before}
        self.astray = sorted(state.partition for state in before if state.leader != state.replicas[0])
        self.topic = topic
        self.targets = Targets(topics=(topic,), roles={"election": "preferred", "astray": len(self.astray)})

    async def inject(self) -> None:
        """Ask until the preferred replicas lead."""
        wanted = frozenset((self.topic, partition) for partition in self.before)
        await until(lambda: led_by_preferred(wanted, self.scene.world), self.scene.clock, ELECTED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:  # noqa: ARG002 -- an election lasts no time
        """Every leader that had strayed must be the preferred one, at a higher epoch; and there must have been one."""
        states = await patiently(self._states, self.scene.clock, READ_DEADLINE_MS)
        now = {state.partition: state for state in states}
        moved = [p for p in self.astray if p in now and _elected(self.before[p], now[p])]
        ok = bool(self.astray) and len(moved) == len(self.astray)
        what = f"leaders of {self.topic} that moved to their preferred replica, of those that had strayed from it"
        report(Witness(what, max(1, len(self.astray)), len(moved), "partitions", len(now), ok))

    async def _states(self) -> Sequence[PartitionState]:
        return await self.scene.world.partitions([self.topic])


def _elected(before: PartitionState, now: PartitionState) -> bool:
    return now.leader == now.replicas[0] and now.leader_epoch > before.leader_epoch

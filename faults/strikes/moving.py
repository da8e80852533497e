"""One reassignment of the partitions that it changes: asked for, seen done, seen to last, and put back."""

from collections.abc import Sequence

from aftershock.faults.fault import Report, Scene, Strike
from aftershock.faults.record import Targets, Undo, Witness
from aftershock.faults.strikes.assigning import Assignment, Replicas, where
from aftershock.faults.undo import assignment_as_json, led_by_preferred, reassigned
from aftershock.faults.values import PartitionState, TopicPartition
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently, to_the_end, until

MOVED_DEADLINE_MS = 60_000


class ReassignStrike(Strike):
    """``before``: the partitions that change, as they are; ``elects``: the new preferred replicas are to lead."""

    def __init__(
        self,
        scene: Scene,
        before: Sequence[PartitionState],
        wanted: Assignment,
        targets: Targets,
        *,
        elects: bool = False,
    ) -> None:
        self.scene = scene
        self.before = {where(state): state for state in before}
        self.wanted = wanted
        self.targets = targets
        self.elects = elects
        led = [[s.topic, s.partition] for s in before if s.leader == s.replicas[0]]
        original = {where: state.replicas for where, state in self.before.items()}
        self.undo = Undo("restore_assignment", {"assignment": assignment_as_json(original), "elect": sorted(led)})

    async def inject(self) -> None:
        """Ask for the move and see it done; elect the new preferred leaders where they are to lead."""
        world, clock = self.scene.world, self.scene.clock
        await to_the_end(world.reassign(self.wanted))
        await until(lambda: reassigned(self.wanted, world), clock, MOVED_DEADLINE_MS)
        if self.elects:
            await until(lambda: led_by_preferred(frozenset(self.wanted), world), clock, MOVED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Leaders moved, or replicas changed; and at the end the assignment must still be in force.

        Later on leaders may move again by another fault's doing, so only the assignment is read a second time.
        """
        report(await (self._leaders() if self.elects and self._due() else self.replicas()))
        if until_us is not None and self.scene.clock.now_us() < until_us:
            await self.scene.clock.sleep_until_us(until_us)
            report(await self.replicas())

    async def replicas(self) -> Witness:
        """How many of the partitions have the replicas that they should have now."""
        now = await self.now()
        as_asked = [
            place for place, replicas in self.wanted.items() if place in now and now[place].replicas == replicas
        ]
        what = f"partitions of {self._whose} whose replicas, read back, are the ones asked for"
        ok = len(as_asked) == len(self.wanted)
        return Witness(what, len(self.wanted), len(as_asked), "partitions", len(now), ok)

    async def now(self) -> dict[TopicPartition, PartitionState]:
        """The partitions of its topics as they are now."""
        states = await patiently(self._states, self.scene.clock, READ_DEADLINE_MS)
        return {where(state): state for state in states}

    @property
    def _whose(self) -> str:
        return ", ".join(self.targets.topics)

    def _due(self) -> list[TopicPartition]:
        return [place for place, state in self.before.items() if state.leader != self.wanted[place][0]]

    async def _leaders(self) -> Witness:
        now, due = await self.now(), self._due()
        moved = [
            place for place in due if place in now and _took_over(self.before[place], now[place], self.wanted[place])
        ]
        what = f"leaders of {self._whose} that moved to the new preferred replica at a higher epoch"
        return Witness(what, len(due), len(moved), "partitions", len(now), len(moved) == len(due))

    async def _states(self) -> Sequence[PartitionState]:
        return await self.scene.world.partitions(self.targets.topics)


def _took_over(before: PartitionState, now: PartitionState, wanted: Replicas) -> bool:
    return now.leader == wanted[0] and now.leader_epoch > before.leader_epoch

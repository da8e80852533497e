"""A reassignment held back by Kafka's own replication throttle (KIP-73), to its end or cancelled on its way (KIP-455).

The throttle is four settings: a rate for leaders and one for followers, of each broker that gives or takes, and the
replicas they hold for, of each topic. Replicas in sync are never held back. It is in force before the move is asked for
and removed after it, also where the move stays.
"""

from collections.abc import Sequence

from aftershock.faults.fault import READ_BACK_US, Report, Scene
from aftershock.faults.record import Targets, Undo, Witness, all_of
from aftershock.faults.strikes.assigning import Assignment, where
from aftershock.faults.strikes.changed import Change, confirm_restored, make, planned, read_back
from aftershock.faults.strikes.moving import MOVED_DEADLINE_MS, ReassignStrike
from aftershock.faults.values import PartitionState, TopicPartition
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently, to_the_end, until
from aftershock.faults.world import World

_RATE, _REPLICAS = "replication.throttled.rate", "replication.throttled.replicas"


async def throttling(
    before: Sequence[PartitionState], wanted: Assignment, bytes_per_s: int, world: World
) -> list[Change]:
    """The settings that hold these moves back."""
    brokers = {b for state in before for b in state.replicas} | {b for replicas in wanted.values() for b in replicas}
    rates = {f"{side}.{_RATE}": str(bytes_per_s) for side in ("leader", "follower")}
    changes = [await planned("broker", str(broker), rates, world) for broker in sorted(brokers)]
    for topic in sorted({state.topic for state in before}):
        ours = [state for state in before if state.topic == topic]
        giving = [f"{s.partition}:{b}" for s in ours for b in s.replicas]
        taking = [f"{s.partition}:{b}" for s in ours for b in wanted[where(s)] if b not in s.replicas]
        held = {f"leader.{_REPLICAS}": ",".join(giving), f"follower.{_REPLICAS}": ",".join(taking)}
        changes.append(await planned("topic", topic, held, world))
    return changes


class ThrottledStrike(ReassignStrike):
    """A move that takes its time: seen in flight, its throttle read back each second."""

    def __init__(
        self,
        scene: Scene,
        before: Sequence[PartitionState],
        wanted: Assignment,
        targets: Targets,
        changes: Sequence[Change],
    ) -> None:
        super().__init__(scene, before, wanted, targets)
        self.changes = changes
        self._unthrottle = [change.undo() for change in changes]
        self.undo = all_of([*self._unthrottle, self.undo])

    @property
    def undo_after(self) -> Undo:
        """The move stays, its throttle doesn't."""
        return all_of(self._unthrottle)

    async def inject(self) -> None:
        """Throttle, then ask for the move."""
        await make(self.changes, self.scene)
        await to_the_end(self.scene.world.reassign(self.wanted))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """In flight at first; then the throttle each second, until the time is over, or the move without one."""
        clock = self.scene.clock
        report(await self._in_flight())
        report(await read_back(self.changes, self.scene))
        give_up_us = clock.now_us() + MOVED_DEADLINE_MS * 1000
        while clock.now_us() < (until_us or give_up_us) and (until_us or await self.moving()):
            await clock.sleep_until_us(min(clock.now_us() + READ_BACK_US, until_us or give_up_us))
            report(await read_back(self.changes, self.scene))
        report(await (self.replicas() if until_us is None else self._on_their_way()))

    async def confirm_healed(self) -> None:
        """The throttle is gone: every setting is as before."""
        await confirm_restored(self.changes, self.scene)

    async def moving(self) -> list[TopicPartition]:
        """The partitions of this fault whose move is in flight."""
        moving = await patiently(self.scene.world.reassigning, self.scene.clock, READ_DEADLINE_MS)
        return sorted(moving & self.wanted.keys())

    async def _in_flight(self) -> Witness:
        moving = await self.moving()
        what = "partitions whose move is in flight, held back by the throttle"
        return Witness(what, len(self.wanted), len(moving), "partitions", len(self.wanted), bool(moving))

    async def _on_their_way(self) -> Witness:
        moving, now = set(await self.moving()), await self.now()
        there = [p for p, replicas in self.wanted.items() if p in now and now[p].replicas == replicas]
        count = len(moving.union(there))
        what = "partitions moved as asked, or still on their way"
        return Witness(what, len(self.wanted), count, "partitions", len(now), count == len(self.wanted))


class CancelledStrike(ThrottledStrike):
    """A move that is cancelled on its way. ``caught``: how many partitions were in flight right before."""

    def __init__(
        self,
        scene: Scene,
        before: Sequence[PartitionState],
        wanted: Assignment,
        targets: Targets,
        changes: Sequence[Change],
        cancel_after_ms: int,
    ) -> None:
        super().__init__(scene, before, wanted, targets, changes)
        self.cancel_after_ms = cancel_after_ms
        self.caught = 0

    @property
    def undo_after(self) -> Undo:
        """All of it: a cancelled move gives the replicas back, but not in their order."""
        return self.undo

    async def inject(self) -> None:
        """Throttle, ask for the move, and cancel it when its time has come."""
        await super().inject()
        await self.scene.clock.sleep_until_us(self.scene.clock.now_us() + self.cancel_after_ms * 1000)
        moving = await self.moving()
        self.caught = len(moving)
        await to_the_end(self.scene.world.cancel_reassign(moving))
        await until(self._still_there, self.scene.clock, MOVED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:  # noqa: ARG002 -- it is over when cancelled
        """A move was in flight, and is gone."""
        asked = len(self.wanted)
        what = "partitions whose move was in flight when it was cancelled"
        report(Witness(what, asked, self.caught, "partitions", asked, self.caught > 0))
        back = await self._back() if self.caught else []
        what = "partitions that were caught and are on the brokers of before, with no move in flight"
        report(
            Witness(what, max(1, self.caught), len(back), "partitions", asked, bool(back) and len(back) >= self.caught)
        )

    async def _still_there(self) -> str | None:
        moving = await self.moving()
        return f"{len(moving)} cancelled moves are still in flight" if moving else None

    async def _back(self) -> list[TopicPartition]:
        now, moving = await self.now(), await self.moving()
        return [
            place
            for place, state in self.before.items()
            if place in now and place not in moving and {*now[place].replicas} == {*state.replicas}
        ]

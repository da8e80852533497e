"""``reassign``: move replicas by Kafka's partition reassignment (KIP-455).

==============================  ===================================================================================
``rotate: N``                   each replica list rotated left by N: every leader moves, no data does
``swap: {from, to}``            two brokers change places: leaders move, data only where one of them was absent
``move: {from, to}``            one broker in another's place wherever it isn't a replica yet
``replace: {from, to}``         all replicas of a broker go to another, of one topic or of all
``replication: N``              more or fewer replicas, spread over the racks
==============================  ===================================================================================

If leaders have to move, they are elected immediately. The first replica is the preferred leader and keeps its place
unless the change requires another. Without ``for`` the move is the action and stays. With ``for`` the heal restores the
earlier assignment and leaders. The undo of a move in progress cancels the move and restores the assignment.

``throttle`` slows the data down by Kafka's replication throttle (KIP-73), so that a move lasts; ``cancel_after``
cancels it in progress (KIP-455). The throttle consists of four settings: two rates (leaders and followers) of each
broker that sends or receives, and two lists of throttled replicas of each topic. In-sync replicas are never throttled.
The throttle is in force before the move is requested and removed after it, even if the move stays.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    ExclusiveResource,
    Family,
    Fault,
    FieldPath,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    TargetKind,
)
from aftershock.faults.kinds.kafka.config import (
    Change,
    apply_changes,
    plan_change,
    settings_witness,
)
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import ByteRate, Duration
from aftershock.faults.runtime.record import Targets, Undo, Witness, all_of
from aftershock.faults.runtime.undo import assignment_as_json, elect_preferred_leaders, pending_reassignment
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.roles import RoleText, brokers_of, resolve
from aftershock.faults.targets.values import BrokerId, PartitionState, TopicPartition

Replicas = tuple[BrokerId, ...]
Assignment = dict[TopicPartition, Replicas]


def partition_of(state: PartitionState) -> TopicPartition:
    """Return the partition's topic and number."""
    return state.topic, state.partition


def rotate(states: Iterable[PartitionState], turns: int) -> Assignment:
    """Rotate each replica list to the left."""
    assignment: Assignment = {}
    for state in states:
        shift = turns % len(state.replicas)
        assignment[partition_of(state)] = state.replicas[shift:] + state.replicas[:shift]
    return assignment


def move_replicas(states: Iterable[PartitionState], source: BrokerId, target: BrokerId) -> Assignment:
    """Put ``target`` in the place of ``source``, unless ``target`` holds the partition already."""
    return {
        partition_of(s): s.replicas if target in s.replicas else _substitute(s.replicas, {source: target})
        for s in states
    }


def swap_brokers(states: Iterable[PartitionState], source: BrokerId, target: BrokerId) -> Assignment:
    """Exchange two brokers, also in partitions that only one of them holds."""
    return {partition_of(s): _substitute(s.replicas, {source: target, target: source}) for s in states}


def replace_broker(states: Iterable[PartitionState], source: BrokerId, target: BrokerId) -> Assignment:
    """Move all replicas of ``source`` to ``target``.

    Raises FaultError if ``target`` already holds one of the partitions.
    """
    held = [state for state in states if source in state.replicas]
    both = [state for state in held if target in state.replicas]
    if both:
        raise FaultError(
            f"broker {target} has a replica of {len(both)} of the {len(held)} partitions that {source} holds, "
            f"{both[0].topic}/{both[0].partition} first, so it can't take its place: name a broker that holds nothing"
        )
    return move_replicas(held, source, target)


def change_replication(states: Iterable[PartitionState], factor: int, racks: Mapping[BrokerId, str]) -> Assignment:
    """Change the number of replicas, spread over the racks first, then evenly over their brokers.

    ``racks``: rack of each broker that may hold replicas.
    """
    held: Counter[BrokerId] = Counter()
    assignment: Assignment = {}
    for state in states:
        replicas = _shortened(state.replicas, factor, racks)
        while len(replicas) < factor:
            candidates = [broker for broker in sorted(racks) if broker not in replicas]
            if not candidates:
                raise FaultError(
                    f"there are {len(racks)} brokers, so a partition can't have more replicas: ask for fewer"
                )
            by_rack = Counter(racks.get(replica) for replica in replicas)
            added = min(candidates, key=lambda broker: (by_rack[racks[broker]], held[broker]))
            replicas = (*replicas, added)
        held.update(replicas)
        assignment[partition_of(state)] = replicas
    return assignment


def _substitute(replicas: Replicas, substitutes: Mapping[BrokerId, BrokerId]) -> Replicas:
    return tuple(substitutes.get(replica, replica) for replica in replicas)


def _shortened(replicas: Replicas, factor: int, racks: Mapping[BrokerId, str]) -> Replicas:
    """Remove the last replicas, those in a rack with another replica first."""
    while len(replicas) > factor:
        by_rack = Counter(racks.get(replica) for replica in replicas)
        spare = [replica for replica in replicas[1:] if by_rack[racks.get(replica)] > 1] or list(replicas[1:])
        replicas = tuple(replica for replica in replicas if replica != spare[-1])
    return replicas


MOVED_DEADLINE_MS = 60_000


class ReassignInjection(Injection):
    """Reassignment. ``before``: the partitions that change; ``elects``: the new preferred replicas are elected."""

    def __init__(
        self,
        context: InjectionContext,
        before: Sequence[PartitionState],
        assignment: Assignment,
        targets: Targets,
        *,
        elects: bool = False,
    ) -> None:
        self.context = context
        self.before = {partition_of(state): state for state in before}
        self.assignment = assignment
        self.targets = targets
        self.elects = elects
        led = [[s.topic, s.partition] for s in before if s.leader == s.replicas[0]]
        original = {key: state.replicas for key, state in self.before.items()}
        self.undo = Undo("restore_assignment", {"assignment": assignment_as_json(original), "elect": sorted(led)})

    async def inject(self) -> None:
        """Request the move and wait until it is done; then elect the preferred leaders if ``elects``."""
        world, clock = self.context.world, self.context.clock
        await run_to_completion(world.reassign(self.assignment))
        await wait_until(lambda: pending_reassignment(self.assignment, world), clock, MOVED_DEADLINE_MS)
        if self.elects:
            await wait_until(
                lambda: elect_preferred_leaders(frozenset(self.assignment), world), clock, MOVED_DEADLINE_MS
            )

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report the moved leaders or the changed replicas, and at the end that the assignment is still in force.

        Another fault may move leaders again later, so only the assignment is read a second time.
        """
        report(await (self._leaders() if self.elects and self._moving_leaders() else self.replicas()))
        if until_us is not None and self.context.clock.now_us() < until_us:
            await self.context.clock.sleep_until_us(until_us)
            report(await self.replicas())

    async def replicas(self) -> Witness:
        """Witness of the partitions with the new replicas."""
        now = await self.now()
        done = [key for key, replicas in self.assignment.items() if key in now and now[key].replicas == replicas]
        what = f"partitions of {', '.join(self.targets.topics)} whose replicas, read back, are the ones asked for"
        asked = len(self.assignment)
        return Witness(what, asked, len(done), "partitions", len(now), ok=len(done) == asked)

    async def now(self) -> dict[TopicPartition, PartitionState]:
        """Return the current state of the partitions of the fault's topics."""
        states = await retry_refused(self._states, self.context.clock, READ_DEADLINE_MS)
        return {partition_of(state): state for state in states}

    def _moving_leaders(self) -> list[TopicPartition]:
        return [key for key, state in self.before.items() if state.leader != self.assignment[key][0]]

    async def _leaders(self) -> Witness:
        now, due = await self.now(), self._moving_leaders()
        moved = [
            key
            for key in due
            if key in now
            and now[key].leader == self.assignment[key][0]
            and now[key].leader_epoch > self.before[key].leader_epoch
        ]
        what = f"leaders of {', '.join(self.targets.topics)} that moved to the new preferred replica at a higher epoch"
        return Witness(what, len(due), len(moved), "partitions", len(now), len(moved) == len(due))

    async def _states(self) -> Sequence[PartitionState]:
        return await self.context.world.partitions(self.targets.topics)


_RATE, _REPLICAS = "replication.throttled.rate", "replication.throttled.replicas"


async def throttle_changes(
    before: Sequence[PartitionState], assignment: Assignment, bytes_per_s: int, world: World
) -> list[Change]:
    """Return the setting changes that throttle these moves."""
    brokers = {b for state in before for b in state.replicas} | {
        b for replicas in assignment.values() for b in replicas
    }
    rates = {f"{side}.{_RATE}": str(bytes_per_s) for side in ("leader", "follower")}
    changes = [await plan_change("broker", str(broker), rates, world) for broker in sorted(brokers)]
    for topic in sorted({state.topic for state in before}):
        of_topic = [state for state in before if state.topic == topic]
        sending = [f"{s.partition}:{b}" for s in of_topic for b in s.replicas]
        receiving = [f"{s.partition}:{b}" for s in of_topic for b in assignment[partition_of(s)] if b not in s.replicas]
        throttled = {f"leader.{_REPLICAS}": ",".join(sending), f"follower.{_REPLICAS}": ",".join(receiving)}
        changes.append(await plan_change("topic", topic, throttled, world))
    return changes


class ThrottledInjection(ReassignInjection):
    """Throttled reassignment, witnessed while it is in progress; the throttle is read back each second."""

    def __init__(
        self,
        context: InjectionContext,
        before: Sequence[PartitionState],
        assignment: Assignment,
        targets: Targets,
        changes: Sequence[Change],
    ) -> None:
        super().__init__(context, before, assignment, targets)
        self.changes = changes
        self._unthrottle = [change.undo() for change in changes]
        self.undo = all_of([*self._unthrottle, self.undo])

    @property
    def undo_after(self) -> Undo:
        """Remove the throttle; the move stays."""
        return all_of(self._unthrottle)

    async def inject(self) -> None:
        """Set the throttle, then request the move."""
        await apply_changes(self.changes, self.context)
        await run_to_completion(self.context.world.reassign(self.assignment))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report the move in progress, then each second the throttle, until ``until_us`` or the move's end."""
        clock = self.context.clock
        report(await self._in_flight())
        report(await settings_witness(self.changes, self.context))
        deadline_us = clock.now_us() + MOVED_DEADLINE_MS * 1000
        while clock.now_us() < (until_us or deadline_us) and (until_us or await self.moving()):
            await clock.sleep_until_us(min(clock.now_us() + READ_BACK_US, until_us or deadline_us))
            report(await settings_witness(self.changes, self.context))
        report(await (self.replicas() if until_us is None else self._moved_or_moving()))

    async def moving(self) -> list[TopicPartition]:
        """Return the partitions of this fault whose move is in progress."""
        moving = await retry_refused(self.context.world.reassigning, self.context.clock, READ_DEADLINE_MS)
        return sorted(moving & self.assignment.keys())

    async def _in_flight(self) -> Witness:
        moving = await self.moving()
        what = "partitions whose move is in flight, held back by the throttle"
        return Witness(what, len(self.assignment), len(moving), "partitions", len(self.assignment), bool(moving))

    async def _moved_or_moving(self) -> Witness:
        moving, now = set(await self.moving()), await self.now()
        moved = [p for p, replicas in self.assignment.items() if p in now and now[p].replicas == replicas]
        count = len(moving.union(moved))
        what = "partitions moved as asked, or still on their way"
        return Witness(what, len(self.assignment), count, "partitions", len(now), count == len(self.assignment))


class CancelledInjection(ThrottledInjection):
    """Reassignment cancelled in progress. ``caught``: number of partitions that were moving at the cancellation."""

    def __init__(
        self,
        context: InjectionContext,
        before: Sequence[PartitionState],
        assignment: Assignment,
        targets: Targets,
        changes: Sequence[Change],
        cancel_after_ms: int,
    ) -> None:
        super().__init__(context, before, assignment, targets, changes)
        self.cancel_after_ms = cancel_after_ms
        self.caught = 0

    @property
    def undo_after(self) -> Undo:
        """Restore the assignment too: a cancelled move restores the replicas, but not their order."""
        return self.undo

    async def inject(self) -> None:
        """Throttle and request the move, and cancel it after ``cancel_after``."""

        async def still_moving() -> str | None:
            moving = await self.moving()
            return f"{len(moving)} cancelled moves are still in flight" if moving else None

        await super().inject()
        await self.context.clock.sleep_until_us(self.context.clock.now_us() + self.cancel_after_ms * 1000)
        moving = await self.moving()
        self.caught = len(moving)
        await run_to_completion(self.context.world.cancel_reassign(moving))
        await wait_until(still_moving, self.context.clock, MOVED_DEADLINE_MS)

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report that a move was in progress, and was cancelled."""
        asked = len(self.assignment)
        what = "partitions whose move was in flight when it was cancelled"
        report(Witness(what, asked, self.caught, "partitions", asked, self.caught > 0))
        back = await self._back() if self.caught else []
        what = "partitions that were caught and are on the brokers of before, with no move in flight"
        report(
            Witness(what, max(1, self.caught), len(back), "partitions", asked, bool(back) and len(back) >= self.caught)
        )

    async def _back(self) -> list[TopicPartition]:
        now, moving = await self.now(), await self.moving()
        return [
            key
            for key, state in self.before.items()
            if key in now and key not in moving and {*now[key].replicas} == {*state.replicas}
        ]


WAYS = ("rotate", "swap", "move", "replace", "replication")


class Move(BaseModel):
    """Source and target broker of a move."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    from_: RoleText = Field(alias="from")
    to: RoleText


class Reassign(Fault):
    """Move replicas: rotate, swap, move, replace a broker, or change the replication factor."""

    family: ClassVar[Family] = "Kafka"
    band: ClassVar[Band] = Band("#2ca02c", "reassign")
    proof: ClassVar[str] = (
        "leaders at a higher epoch, or the replica lists read back; throttled or cancelled: moves seen in flight"
    )
    remedy: ClassVar[str] = (
        "with `for`, or cancelled: the earlier assignment and leaders; without: it stays; throttles are removed"
    )
    permanent_effect: ClassVar[str | None] = "without `for`: the moved replicas"
    exposure_target: ClassVar[TargetKind] = "topics"
    closes_connections: ClassVar[bool] = True  # the former leader answers with an error
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("assignment", "topics"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "optional"
    allowance_ms: ClassVar[int] = 2_000  # a rotation takes 0.2 s for a hundred partitions; a move depends on the data

    kind: Literal["reassign"] = "reassign"
    topic: Annotated[str, Field(description="optional for `replace` only: every topic then")] | None = None
    rotate: Annotated[StrictInt, Field(ge=1, le=8)] | None = None
    swap: Move | None = None
    move: Move | None = None
    replace: Move | None = None
    replication: Annotated[StrictInt, Field(ge=1, le=9)] | None = None
    throttle: Annotated[ByteRate, Field(gt=0, description="of each broker, for moved data")] | None = None
    cancel_after: Annotated[Duration, Field(gt=0, description="needs a `throttle` to be in flight by then")] | None = (
        None
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if problem := self._problem():
            raise PydanticCustomError("refused", "{sentence}", {"sentence": problem})
        return self

    def _problem(self) -> str | None:
        ways = [way for way in WAYS if getattr(self, way) is not None]
        if len(ways) != 1:
            examples = "`rotate: 1`, `swap`, `move` or `replace: {from: ROLE, to: ROLE}`, `replication: 2`"
            return f"a reassign needs exactly one of {examples}"
        if self.topic is None and self.replace is None:
            return f"`{ways[0]}` needs a `topic`; only `replace` applies to all topics without it"
        if self.rotate is not None and self.throttle is not None:
            return "a rotation moves no data, so there is nothing to throttle: remove `throttle`"
        if self.cancel_after is not None and self.throttle is None:
            return "an unthrottled move ends at once, before `cancel_after`: add `throttle: 100kB/s`"
        if self.cancel_after is not None and self.for_ is not None:
            return (
                "a cancelled move has no `for`: it ends after `cancel_after`, with the earlier assignment; remove `for`"
            )
        return None

    @property
    def _between(self) -> tuple[str, Move] | None:
        ways = ((way, getattr(self, way)) for way in ("swap", "move", "replace"))
        return next(((way, move) for way, move in ways if move is not None), None)

    def impact(self) -> Impact:
        """Return ``leaders`` for a rotation; a move changes the replicas too."""
        return "leaders" if self.rotate else "unknown"

    def roles(self) -> dict[tuple[str, ...], str]:
        """Return source and target of a move."""
        if self._between is None:
            return {}
        way, move = self._between
        return {(way, "from"): move.from_, (way, "to"): move.to}

    def topics(self) -> dict[FieldPath, str]:
        """Return the topic, if given."""
        return {("topic",): self.topic} if self.topic is not None else {}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """Yield moves without effect, and more replicas than brokers."""
        if self._between and self._between[1].from_ == self._between[1].to and "any" not in self._between[1].to:
            yield Problem(
                (self._between[0],), "`from` and `to` are the same, so no replica would move: name two brokers"
            )
        replication = {topic.name: topic.replication for topic in plan.topics.values()}.get(self.topic or "")
        if self.rotate and replication and self.rotate % replication == 0:
            sentence = f"rotating {replication} replicas {self.rotate} times has no effect: "
            yield Problem(("rotate",), sentence + "rotate by another number")
        if self.replication and plan.cluster and self.replication > (count := len(plan.cluster.broker_racks)):
            yield Problem(("replication",), f"{self.replication} replicas need as many brokers, and there are {count}")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Resolve the new assignment; raise FaultError if there is no such topic, or if nothing would change."""
        states = tuple(await context.world.partitions(None if self.topic is None else [self.topic]))
        if not states:
            raise FaultError(f"there is no topic {self.topic}; check the fault's target")
        assignment, roles = await self._new_assignment(states, context.world, draws)
        changed = tuple(
            state for state in states if assignment.get(partition_of(state), state.replicas) != state.replicas
        )
        if not changed:
            topic = self.topic or "every topic"
            raise FaultError(f"every partition of {topic} is assigned that way already, so there is nothing to move")
        ends = (roles["from"], roles["to"]) if self._between else ()
        topics = tuple(sorted({state.topic for state in changed}))
        return await self._injection(context, changed, assignment, Targets(brokers=ends, topics=topics, roles=roles))

    async def _new_assignment(
        self, states: Sequence[PartitionState], world: World, draws: Draws
    ) -> tuple[Assignment, dict[str, Any]]:
        if self.rotate is not None:
            return rotate(states, self.rotate), {"rotate": self.rotate}
        if self._between is None:
            racks = {broker: rack for broker, rack in world.racks().items() if broker in brokers_of(world)}
            return change_replication(states, self.replication or 0, racks), {"replication": self.replication}
        way, move = self._between
        source = await resolve(move.from_, world, draws, f"{way}.from")
        target = await resolve(move.to, world, draws, f"{way}.to")
        change = {"swap": swap_brokers, "move": move_replicas, "replace": replace_broker}[way]
        return change(states, source, target), {"from": source, "to": target}

    async def _injection(
        self, context: InjectionContext, before: Sequence[PartitionState], assignment: Assignment, targets: Targets
    ) -> Injection:
        changed = {partition_of(state): assignment[partition_of(state)] for state in before}
        if self.throttle is None:
            elects = self.rotate is not None or self.swap is not None
            return ReassignInjection(context, before, changed, targets, elects=elects)
        changes = await throttle_changes(before, changed, self.throttle, context.world)
        if self.cancel_after is None:
            return ThrottledInjection(context, before, changed, targets, changes)
        return CancelledInjection(context, before, changed, targets, changes, self.cancel_after)

"""New replica lists from old ones: rotated, two brokers swapped, one put in another's place, more or fewer of them.

Pure. The first replica is the preferred leader, so it is kept where nothing asks for another.

One reassignment of the partitions that it changes: asked for, seen done, seen to last, and put back.

A reassignment held back by Kafka's own replication throttle (KIP-73), to its end or cancelled on its way (KIP-455).

The throttle is four settings: a rate for leaders and one for followers, of each broker that gives or takes, and the
replicas they hold for, of each topic. Replicas in sync are never held back. It is in force before the move is asked for
and removed after it, also where the move stays.

``reassign``: move replicas, by Kafka's own partition reassignment (KIP-455).

==============================  ===================================================================================
``rotate: N``                   each replica list turned left by N: every leader moves, no data does
``swap: {from, to}``            two brokers change places: leaders move, data only where one of them was absent
``move: {from, to}``            one broker in another's place wherever it isn't a replica yet
``replace: {from, to}``         all that a broker holds goes to another, of one topic or of all
``replication: N``              more replicas or fewer, spread over the racks
==============================  ===================================================================================

Where leaders are to move they are elected at once. Without ``for`` the move is the action and stays; with it, the heal
restores the assignment (and the leaders) of before. While a move is in flight its inverse is to cancel and restore.
``throttle`` holds the data back (KIP-73), so that a move lasts; ``cancel_after`` cancels it on its way.
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
from aftershock.faults.kinds.kafka.config import Change, confirm_restored, make, planned, read_back
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


def where(state: PartitionState) -> TopicPartition:
    """Which partition it is."""
    return state.topic, state.partition


def rotated(states: Iterable[PartitionState], turns: int) -> Assignment:
    """Each list turned left."""
    return {where(s): s.replicas[turns % len(s.replicas) :] + s.replicas[: turns % len(s.replicas)] for s in states}


def moved(states: Iterable[PartitionState], source: BrokerId, target: BrokerId) -> Assignment:
    """``target`` in ``source``'s place; unchanged where the one is absent or the other is there already."""
    return {where(s): s.replicas if target in s.replicas else _put(s.replicas, {source: target}) for s in states}


def swapped(states: Iterable[PartitionState], one: BrokerId, other: BrokerId) -> Assignment:
    """Each in the place of the other, also where only one of them is."""
    return {where(s): _put(s.replicas, {one: other, other: one}) for s in states}


def replaced(states: Iterable[PartitionState], source: BrokerId, target: BrokerId) -> Assignment:
    """All that ``source`` holds goes to ``target``. FaultError if that holds some of it already."""
    held = [state for state in states if source in state.replicas]
    both = [state for state in held if target in state.replicas]
    if both:
        raise FaultError(
            f"broker {target} has a replica of {len(both)} of the {len(held)} partitions that {source} holds, "
            f"{both[0].topic}/{both[0].partition} first, so it can't take its place: name a broker that holds nothing"
        )
    return moved(held, source, target)


def replicated(states: Iterable[PartitionState], factor: int, racks: Mapping[BrokerId, str]) -> Assignment:
    """Lists of that length, over as many racks as there are, and over the brokers of a rack evenly.

    ``racks``: of the brokers that may hold replicas.
    """
    held: Counter[BrokerId] = Counter()
    assignment: Assignment = {}
    for state in states:
        replicas = _shortened(state.replicas, factor, racks)
        while len(replicas) < factor:
            replicas = (*replicas, _next(replicas, held, racks))
        held.update(replicas)
        assignment[where(state)] = replicas
    return assignment


def _put(replicas: Replicas, places: Mapping[BrokerId, BrokerId]) -> Replicas:
    return tuple(places.get(replica, replica) for replica in replicas)


def _shortened(replicas: Replicas, factor: int, racks: Mapping[BrokerId, str]) -> Replicas:
    """Without its last ones, those first whose rack has another."""
    while len(replicas) > factor:
        crowded = Counter(racks.get(replica) for replica in replicas)
        spare = [replica for replica in replicas[1:] if crowded[racks.get(replica)] > 1] or list(replicas[1:])
        replicas = tuple(replica for replica in replicas if replica != spare[-1])
    return replicas


def _next(replicas: Replicas, held: Counter[BrokerId], racks: Mapping[BrokerId, str]) -> BrokerId:
    """Whom to add: of the rack that has fewest of them, who holds least."""
    left = [broker for broker in sorted(racks) if broker not in replicas]
    if not left:
        raise FaultError(f"there are {len(racks)} brokers, so a partition can't have more replicas: ask for fewer")
    crowded = Counter(racks.get(replica) for replica in replicas)
    return min(left, key=lambda broker: (crowded[racks[broker]], held[broker]))


MOVED_DEADLINE_MS = 60_000


class ReassignInjection(Injection):
    """``before``: the partitions that change, as they are; ``elects``: the new preferred replicas are to lead."""

    def __init__(
        self,
        context: InjectionContext,
        before: Sequence[PartitionState],
        wanted: Assignment,
        targets: Targets,
        *,
        elects: bool = False,
    ) -> None:
        self.context = context
        self.before = {where(state): state for state in before}
        self.wanted = wanted
        self.targets = targets
        self.elects = elects
        led = [[s.topic, s.partition] for s in before if s.leader == s.replicas[0]]
        original = {where: state.replicas for where, state in self.before.items()}
        self.undo = Undo("restore_assignment", {"assignment": assignment_as_json(original), "elect": sorted(led)})

    async def inject(self) -> None:
        """Ask for the move and see it done; elect the new preferred leaders where they are to lead."""
        world, clock = self.context.world, self.context.clock
        await run_to_completion(world.reassign(self.wanted))
        await wait_until(lambda: pending_reassignment(self.wanted, world), clock, MOVED_DEADLINE_MS)
        if self.elects:
            await wait_until(lambda: elect_preferred_leaders(frozenset(self.wanted), world), clock, MOVED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Leaders moved, or replicas changed; and at the end the assignment must still be in force.

        Later on leaders may move again by another fault's doing, so only the assignment is read a second time.
        """
        report(await (self._leaders() if self.elects and self._due() else self.replicas()))
        if until_us is not None and self.context.clock.now_us() < until_us:
            await self.context.clock.sleep_until_us(until_us)
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
        states = await retry_refused(self._states, self.context.clock, READ_DEADLINE_MS)
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
        return await self.context.world.partitions(self.targets.topics)


def _took_over(before: PartitionState, now: PartitionState, wanted: Replicas) -> bool:
    return now.leader == wanted[0] and now.leader_epoch > before.leader_epoch


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


class ThrottledInjection(ReassignInjection):
    """A move that takes its time: seen in flight, its throttle read back each second."""

    def __init__(
        self,
        context: InjectionContext,
        before: Sequence[PartitionState],
        wanted: Assignment,
        targets: Targets,
        changes: Sequence[Change],
    ) -> None:
        super().__init__(context, before, wanted, targets)
        self.changes = changes
        self._unthrottle = [change.undo() for change in changes]
        self.undo = all_of([*self._unthrottle, self.undo])

    @property
    def undo_after(self) -> Undo:
        """The move stays, its throttle doesn't."""
        return all_of(self._unthrottle)

    async def inject(self) -> None:
        """Throttle, then ask for the move."""
        await make(self.changes, self.context)
        await run_to_completion(self.context.world.reassign(self.wanted))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """In flight at first; then the throttle each second, until the time is over, or the move without one."""
        clock = self.context.clock
        report(await self._in_flight())
        report(await read_back(self.changes, self.context))
        give_up_us = clock.now_us() + MOVED_DEADLINE_MS * 1000
        while clock.now_us() < (until_us or give_up_us) and (until_us or await self.moving()):
            await clock.sleep_until_us(min(clock.now_us() + READ_BACK_US, until_us or give_up_us))
            report(await read_back(self.changes, self.context))
        report(await (self.replicas() if until_us is None else self._on_their_way()))

    async def confirm_healed(self) -> None:
        """The throttle is gone: every setting is as before."""
        await confirm_restored(self.changes, self.context)

    async def moving(self) -> list[TopicPartition]:
        """The partitions of this fault whose move is in flight."""
        moving = await retry_refused(self.context.world.reassigning, self.context.clock, READ_DEADLINE_MS)
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


class CancelledInjection(ThrottledInjection):
    """A move that is cancelled on its way. ``caught``: how many partitions were in flight right before."""

    def __init__(
        self,
        context: InjectionContext,
        before: Sequence[PartitionState],
        wanted: Assignment,
        targets: Targets,
        changes: Sequence[Change],
        cancel_after_ms: int,
    ) -> None:
        super().__init__(context, before, wanted, targets, changes)
        self.cancel_after_ms = cancel_after_ms
        self.caught = 0

    @property
    def undo_after(self) -> Undo:
        """All of it: a cancelled move gives the replicas back, but not in their order."""
        return self.undo

    async def inject(self) -> None:
        """Throttle, ask for the move, and cancel it when its time has come."""
        await super().inject()
        await self.context.clock.sleep_until_us(self.context.clock.now_us() + self.cancel_after_ms * 1000)
        moving = await self.moving()
        self.caught = len(moving)
        await run_to_completion(self.context.world.cancel_reassign(moving))
        await wait_until(self._still_there, self.context.clock, MOVED_DEADLINE_MS)

    async def hold(self, _until_us: int | None, report: Report) -> None:
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


WAYS = ("rotate", "swap", "move", "replace", "replication")


class Move(BaseModel):
    """From one broker to another."""

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
        "with `for`, or cancelled: the assignment and the leaders of before; without: it stays; throttles are removed"
    )
    permanent_effect: ClassVar[str | None] = "without `for`: the replicas where they were moved to"
    exposure_target: ClassVar[TargetKind] = "topics"
    closes_connections: ClassVar[bool] = True  # a replica that leads no more says so
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("assignment", "topics"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "optional"
    allowance_ms: ClassVar[int] = 2_000  # a rotation takes 0.2 s for a hundred partitions; a move depends on the data

    kind: Literal["reassign"] = "reassign"
    topic: Annotated[str, Field(description="may be left out for `replace` only: every topic then")] | None = None
    rotate: Annotated[StrictInt, Field(ge=1, le=8)] | None = None
    swap: Move | None = None
    move: Move | None = None
    replace: Move | None = None
    replication: Annotated[StrictInt, Field(ge=1, le=9)] | None = None
    throttle: Annotated[ByteRate, Field(gt=0, description="of each broker, for what is moved")] | None = None
    cancel_after: Annotated[Duration, Field(gt=0, description="needs a `throttle` to be in flight by then")] | None = (
        None
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if wrong := self._wrong():
            raise PydanticCustomError("refused", "{sentence}", {"sentence": wrong})
        return self

    def _wrong(self) -> str | None:
        said = [way for way in WAYS if getattr(self, way) is not None]
        if len(said) != 1:
            named = "`rotate: 1`, `swap`, `move` or `replace: {from: ROLE, to: ROLE}`, `replication: 2`"
            return f"a reassign needs one of {named}; say one of them"
        if self.topic is None and self.replace is None:
            return f"`{said[0]}` needs a `topic`; only `replace` is of all topics without one"
        if self.rotate is not None and self.throttle is not None:
            return "a rotation moves no data, so there is nothing to throttle: take `throttle` away"
        if self.cancel_after is not None and self.throttle is None:
            return "a move that nothing holds back is over at once: say `throttle: 100kB/s` for `cancel_after`"
        if self.cancel_after is not None and self.for_ is not None:
            return "what is cancelled has no `for`: it is over, and as before, after `cancel_after`"
        return None

    @property
    def _between(self) -> tuple[str, Move] | None:
        named = ((way, getattr(self, way)) for way in ("swap", "move", "replace"))
        return next(((way, move) for way, move in named if move is not None), None)

    def impact(self) -> Impact:
        """A rotation takes the leaders; a move also who the replicas are."""
        return "leaders" if self.rotate else "unknown"

    def roles(self) -> dict[tuple[str, ...], str]:
        """Both ends of a move."""
        if self._between is None:
            return {}
        way, move = self._between
        return {(way, "from"): move.from_, (way, "to"): move.to}

    def topics(self) -> dict[FieldPath, str]:
        """The topic, if it is of one."""
        return {("topic",): self.topic} if self.topic is not None else {}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """Moves that would change nothing, and more replicas than brokers."""
        if self._between and self._between[1].from_ == self._between[1].to and "any" not in self._between[1].to:
            yield Problem((self._between[0],), "`from` and `to` are the same, so nothing would move: name two brokers")
        replication = {topic.name: topic.replication for topic in plan.topics.values()}.get(self.topic or "")
        if self.rotate and replication and self.rotate % replication == 0:
            sentence = f"turning {replication} replicas {self.rotate} times changes nothing: "
            yield Problem(("rotate",), sentence + "rotate by less, or by more replicas")
        if self.replication and plan.cluster and self.replication > (count := len(plan.cluster.broker_racks)):
            yield Problem(("replication",), f"{self.replication} replicas need as many brokers, and there are {count}")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if there is no such topic, or if the new assignment would be the old one."""
        states = tuple(await context.world.partitions(None if self.topic is None else [self.topic]))
        if not states:
            raise FaultError(f"there is no topic {self.topic}; check the fault's target")
        wanted, roles = await self._wanted(states, context.world, draws)
        changed = tuple(state for state in states if wanted.get(where(state), state.replicas) != state.replicas)
        if not changed:
            whose = self.topic or "every topic"
            raise FaultError(f"every partition of {whose} is assigned that way already, so there is nothing to move")
        ends = (roles["from"], roles["to"]) if self._between else ()
        topics = tuple(sorted({state.topic for state in changed}))
        return await self._injection(context, changed, wanted, Targets(brokers=ends, topics=topics, roles=roles))

    async def _wanted(
        self, states: Sequence[PartitionState], world: World, draws: Draws
    ) -> tuple[Assignment, dict[str, Any]]:
        if self.rotate is not None:
            return rotated(states, self.rotate), {"rotate": self.rotate}
        if self._between is None:
            racks = {broker: rack for broker, rack in world.racks().items() if broker in brokers_of(world)}
            return replicated(states, self.replication or 0, racks), {"replication": self.replication}
        way, move = self._between
        source = await resolve(move.from_, world, draws, f"{way}.from")
        target = await resolve(move.to, world, draws, f"{way}.to")
        assign = {"swap": swapped, "move": moved, "replace": replaced}[way]
        return assign(states, source, target), {"from": source, "to": target}

    async def _injection(
        self, context: InjectionContext, before: Sequence[PartitionState], wanted: Assignment, targets: Targets
    ) -> Injection:
        changed = {where(state): wanted[where(state)] for state in before}
        if self.throttle is None:
            elects = self.rotate is not None or self.swap is not None
            return ReassignInjection(context, before, changed, targets, elects=elects)
        changes = await throttling(before, changed, self.throttle, context.world)
        if self.cancel_after is None:
            return ThrottledInjection(context, before, changed, targets, changes)
        return CancelledInjection(context, before, changed, targets, changes, self.cancel_after)

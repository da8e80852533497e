"""Fault ``reassign``, which moves replicas by Kafka's partition reassignment (KIP-455).

* ``rotate`` rotates each replica list to the left, so every leader moves, but no data is copied; ``every`` repeats it.
* ``swap`` exchanges the replicas of two brokers; data moves only of partitions that only one of the two brokers holds.
* ``move`` moves the replicas of one broker to another broker, except of partitions that the other broker holds already.
* ``replace`` moves all replicas of one broker, of one topic or of all topics, to another broker.
* ``replication`` changes the number of replicas of each partition, spread over the racks.

``partition`` limits the reassignment to one partition of ``topic``.

Without ``for`` the moved replicas stay; with ``for`` the heal restores the earlier assignment of replicas and leaders.
The undo of a reassignment in progress cancels the reassignment and restores the earlier assignment.

``throttle`` slows the reassignment down by Kafka's replication throttle (KIP-73), which consists of two rates (leaders
and followers) on each broker that sends or receives, and of two lists of throttled replicas on each topic. Kafka never
throttles in-sync replicas. The throttle is removed when the reassignment ends, even if the replicas stay moved.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    ExclusiveResource,
    Fault,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    report_at_both_ends,
)
from aftershock.faults.kinds.kafka.assignments import (
    Assignment,
    change_replication,
    move_replicas,
    partition_of,
    replace_broker,
    rotate,
    swap_brokers,
)
from aftershock.faults.kinds.kafka.config import Change, apply_changes, plan_change, settings_witness
from aftershock.faults.runtime.record import Targets, Undo, Witness, all_of
from aftershock.faults.runtime.undo import assignment_as_json, elect_preferred_leaders, pending_reassignment
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import ByteRate, Duration
from aftershock.faults.targets.roles import RoleText, brokers_of, resolve
from aftershock.faults.targets.values import BrokerId, PartitionState, TopicPartition
from aftershock.faults.targets.world import World

MOVED_DEADLINE_MS = 60_000
ROTATED_POLL_US = 20_000


@dataclass(eq=False)
class ReassignInjection(Injection):
    """Move of replicas, after which preferred leaders are elected if ``elects`` is True."""

    before: Mapping[TopicPartition, PartitionState]
    assignment: Assignment
    elects: bool = False

    async def inject(self) -> None:
        world, clock = self.context.world, self.context.clock
        await run_to_completion(world.reassign(self.assignment))
        await wait_until(lambda: pending_reassignment(self.assignment, world), clock, MOVED_DEADLINE_MS)
        if self.elects:
            elect = partial(elect_preferred_leaders, frozenset(self.assignment), world)
            await wait_until(elect, clock, MOVED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report the moved leaders or replicas; at the end only replicas, as another fault may have moved leaders."""
        await report_at_both_ends(self.moved_witness, self.replicas_witness, report, self.context.clock, until_us)

    async def moved_witness(self) -> Witness:
        """Return a witness that leaders moved, at higher epochs; if no leader had to move, that replicas moved."""
        moving = [key for key, state in self.before.items() if state.leader != self.assignment[key][0]]
        if not self.elects or not moving:
            return await self.replicas_witness()
        now = await self.read_partitions()
        moved = [
            key
            for key in moving
            if key in now
            and now[key].leader == self.assignment[key][0]
            and now[key].leader_epoch > self.before[key].leader_epoch
        ]
        topics, count = ", ".join(self.targets.topics), len(moving)
        what = f"partitions of {topics} whose leadership moved to the new preferred replica at a higher epoch"
        return Witness(what, count, len(moved), "partitions", len(now), len(moved) == count)

    async def replicas_witness(self) -> Witness:
        """Return a witness that the partitions have the requested replicas."""
        now = await self.read_partitions()
        moved = self.moved(now)
        what = f"partitions of {', '.join(self.targets.topics)} whose replicas, read back, are the requested replicas"
        count = len(self.assignment)
        return Witness(what, count, len(moved), "partitions", len(now), ok=len(moved) == count)

    def moved(self, now: Mapping[TopicPartition, PartitionState]) -> list[TopicPartition]:
        return [key for key, replicas in self.assignment.items() if key in now and now[key].replicas == replicas]

    async def read_partitions(self) -> dict[TopicPartition, PartitionState]:
        world, topics = self.context.world, self.targets.topics
        states = await retry_refused(lambda: world.partitions(topics), self.context.clock, READ_DEADLINE_MS)
        return {partition_of(state): state for state in states}


@dataclass(eq=False)
class RotatingInjection(ReassignInjection):
    """Rotation of replica lists by ``turns``, each ``every_us``, or at once if the previous rotation took longer."""

    turns: int = 1
    every_us: int = 0
    in_force: bool = False

    async def inject(self) -> None:
        await run_to_completion(self.context.world.reassign(self.assignment))
        await wait_until(self._missing, self.context.clock, MOVED_DEADLINE_MS, ROTATED_POLL_US)
        self.in_force = True

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Rotate until ``until_us``, and report the moved leaders after each rotation."""
        clock, due_us = self.context.clock, self.context.clock.now_us()
        while True:
            report(await self.moved_witness())
            due_us = max(due_us + self.every_us, clock.now_us())
            if until_us is None or due_us >= until_us or not self.in_force:  # a rehearsal rotates nothing
                return
            await clock.sleep_until_us(due_us)
            now = await self.read_partitions()
            self.before = {key: now[key] for key in self.before}
            self.assignment = rotate(self.before.values(), self.turns)
            await self.inject()

    async def _missing(self) -> str | None:
        return await pending_reassignment(self.assignment, self.context.world) or await elect_preferred_leaders(
            frozenset(self.assignment), self.context.world
        )


async def throttle_changes(
    before: Sequence[PartitionState], assignment: Assignment, bytes_per_s: int, world: World
) -> list[Change]:
    """Return the changes of broker and topic settings that throttle a reassignment (KIP-73)."""
    brokers = {*chain(*(state.replicas for state in before), *assignment.values())}
    rates = {f"{side}.replication.throttled.rate": str(bytes_per_s) for side in ("leader", "follower")}
    changes = [await plan_change("broker", str(broker), rates, world) for broker in sorted(brokers)]
    for topic in sorted({state.topic for state in before}):
        of_topic = [state for state in before if state.topic == topic]
        sending = [f"{s.partition}:{b}" for s in of_topic for b in s.replicas]
        receiving = [f"{s.partition}:{b}" for s in of_topic for b in assignment[partition_of(s)] if b not in s.replicas]
        throttled = {
            "leader.replication.throttled.replicas": ",".join(sending),
            "follower.replication.throttled.replicas": ",".join(receiving),
        }
        changes.append(await plan_change("topic", topic, throttled, world))
    return changes


@dataclass(eq=False)
class ThrottledInjection(ReassignInjection):
    """Throttled reassignment, which is still in progress when ``inject`` returns."""

    changes: Sequence[Change] = ()

    @property
    def undo_after(self) -> Undo:
        return all_of(change.undo() for change in self.changes)

    async def inject(self) -> None:
        await apply_changes(self.changes, self.context)
        await run_to_completion(self.context.world.reassign(self.assignment))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report the throttle's settings each second until ``until_us``, or until the end of the reassignment."""
        clock, count = self.context.clock, len(self.assignment)
        moving = await self.moving()
        what = "partitions whose throttled move of replicas is in progress"
        report(Witness(what, count, len(moving), "partitions", count, bool(moving)))
        report(await settings_witness(self.changes, self.context))
        end_us = until_us or clock.now_us() + MOVED_DEADLINE_MS * 1000
        while clock.now_us() < end_us and (until_us or await self.moving()):
            await clock.sleep_until_us(min(clock.now_us() + READ_BACK_US, end_us))
            report(await settings_witness(self.changes, self.context))
        if until_us is None:
            report(await self.replicas_witness())
            return
        moving, now = await self.moving(), await self.read_partitions()
        moved_or_moving = len({*moving, *self.moved(now)})
        what = "partitions whose replicas have moved as requested, or whose move is in progress"
        report(Witness(what, count, moved_or_moving, "partitions", len(now), moved_or_moving == count))

    async def moving(self) -> list[TopicPartition]:
        """Return the fault's partitions whose reassignment is in progress."""
        moving = await retry_refused(self.context.world.reassigning, self.context.clock, READ_DEADLINE_MS)
        return sorted(moving & self.assignment.keys())


@dataclass(eq=False)
class CancelledInjection(ThrottledInjection):
    """Reassignment that is cancelled in progress; ``cancelled`` counts the partitions whose move was cancelled."""

    cancel_after_ms: int = 0
    cancelled: int = 0

    @property
    def undo_after(self) -> Undo:
        return self.undo  # a cancelled move has restored the replicas but not their order

    async def inject(self) -> None:
        async def still_moving() -> str | None:
            moving = await self.moving()
            return f"{len(moving)} cancelled moves of replicas are still in progress" if moving else None

        await super().inject()
        await self.context.clock.sleep_until_us(self.context.clock.now_us() + self.cancel_after_ms * 1000)
        moving = await self.moving()
        self.cancelled = len(moving)
        await run_to_completion(self.context.world.cancel_reassign(moving))
        await wait_until(still_moving, self.context.clock, MOVED_DEADLINE_MS)

    async def hold(self, _until_us: int | None, report: Report) -> None:
        count = len(self.assignment)
        what = "partitions whose move of replicas was in progress when it was cancelled"
        report(Witness(what, count, self.cancelled, "partitions", count, self.cancelled > 0))
        restored: list[TopicPartition] = []
        if self.cancelled:
            now, moving = await self.read_partitions(), await self.moving()
            restored = [
                key
                for key, state in self.before.items()
                if key in now and key not in moving and {*now[key].replicas} == {*state.replicas}
            ]
        what = "partitions that are on their earlier brokers after the cancellation of the move"
        ok = bool(restored) and len(restored) >= self.cancelled
        report(Witness(what, max(1, self.cancelled), len(restored), "partitions", count, ok))


WAYS = ("rotate", "swap", "move", "replace", "replication")


class Move(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    from_: RoleText = Field(alias="from")
    to: RoleText


class Reassign(Fault):
    """Move replicas to rotate the leaders, swap, move or replace brokers, or change the replication factor."""

    family = "Kafka"
    band = Band("#2ca02c", "reassign")
    proof = "Kafka lists the new replicas, or their move as in progress. After each rotation, other replicas lead."
    remedy = "With `for` or `cancel_after`, earlier assignment and leaders are restored. Throttles are always removed."
    permanent_effect = "Without `for`, the replicas stay where they were moved."
    exposure_target = "topics"
    closes_connections = True  # the former leader answers with an error
    exclusive_resources = (ExclusiveResource("assignment", "topics"),)
    for_rule = "optional"
    allowance_ms = 2_000  # a rotation takes 0.2 s for a hundred partitions; a move depends on the data
    apis = ("AlterPartitionReassignments", "ListPartitionReassignments", "ElectLeaders")

    drawn = (
        "{topic: TOPIC, rotate: [1, 2]}",
        "{topic: TOPIC, rotate: 1, for: 4s}",
        "{topic: TOPIC, swap: [{from: 1, to: 2}, {from: 2, to: 3}, {from: 1, to: 3}]}",
        "{topic: TOPIC, replication: 2}",
    )
    kind: Literal["reassign"] = "reassign"
    topic: str | None = Field(
        default=None, description="the topic to reassign; only `replace` may omit it, and then moves all topics"
    )
    partition: Annotated[StrictInt, Field(ge=0)] | None = Field(
        default=None, description="partition of `topic`: only this partition is reassigned"
    )
    rotate: Annotated[StrictInt, Field(ge=1, le=8)] | None = None
    every: Annotated[Duration, Field(ge=100)] | None = Field(
        default=None, description="time from one rotation to the next; needs `rotate` and `for`"
    )
    swap: Move | None = None
    move: Move | None = None
    replace: Move | None = None
    replication: Annotated[StrictInt, Field(ge=1, le=9)] | None = None
    throttle: Annotated[ByteRate, Field(gt=0)] | None = Field(
        default=None, description="limit of the rate at which each broker sends and receives moved data"
    )
    cancel_after: Annotated[Duration, Field(gt=0)] | None = Field(
        default=None, description="time after which the move of replicas is cancelled; needs a `throttle`"
    )

    def kafka_apis(self) -> tuple[str, ...]:
        """Return the APIs that change the replicas and, with ``throttle``, the brokers' settings."""
        throttling = ("DescribeConfigs", "IncrementalAlterConfigs") if self.throttle else ()
        return (*super().kafka_apis(), *throttling)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ways = [way for way in WAYS if getattr(self, way) is not None]
        if len(ways) != 1:
            examples = "`rotate: 1`, `swap`, `move` or `replace: {from: ROLE, to: ROLE}`, `replication: 2`"
            raise ValueError(f"a reassign fault needs exactly one of {examples}")
        if self.topic is None and self.replace is None:
            raise ValueError(f"`{ways[0]}` needs a `topic`; only `replace` applies to all topics without it")
        if self.partition is not None and self.topic is None:
            raise ValueError("`partition` needs a `topic`: add the topic")
        if self.every is not None and (self.rotate is None or self.for_ is None or self.every >= self.for_):
            raise ValueError("`every` repeats a rotation during the fault: it needs `rotate` and a longer `for`")
        if self.rotate is not None and self.throttle is not None:
            raise ValueError("a rotation moves no data, so there is nothing to throttle: remove `throttle`")
        if self.cancel_after is not None and self.throttle is None:
            raise ValueError("without a throttle a move ends before `cancel_after`: add `throttle: 100kB/s`")
        if self.cancel_after is not None and self.for_ is not None:
            raise ValueError("`cancel_after` and `for` exclude each other in a reassign fault: remove `for`")
        return self

    @property
    def _between(self) -> tuple[str, Move] | None:
        ways = ((way, getattr(self, way)) for way in ("swap", "move", "replace"))
        return next(((way, move) for way, move in ways if move is not None), None)

    def impact(self) -> Impact:
        return "leaders" if self.rotate and self.every is None else "unknown"

    def roles(self) -> dict[tuple[str, ...], str]:
        if self._between is None:
            return {}
        way, move = self._between
        return {(way, "from"): move.from_, (way, "to"): move.to}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        if self._between and self._between[1].from_ == self._between[1].to and "any" not in self._between[1].to:
            yield Problem((self._between[0],), "`from` and `to` are equal, so no replica would move: name two brokers")
        topic = next((topic for topic in plan.topics.values() if topic.name == self.topic), None)
        if topic and self.partition is not None and self.partition >= topic.partitions:
            message = f"the topic {self.topic} has no partition {self.partition}: use 0 to {topic.partitions - 1}"
            yield Problem(("partition",), message)
        replication = topic and topic.replication
        if self.rotate and replication and self.rotate % replication == 0:
            message = f"{self.rotate} rotations of {replication} replicas restore their order: use another number"
            yield Problem(("rotate",), message)
        if self.replication and plan.cluster and self.replication > (count := len(plan.cluster.broker_racks)):
            message = f"`replication` {self.replication} exceeds the cluster's {count} brokers: lower it or add brokers"
            yield Problem(("replication",), message)

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        states = tuple(await context.world.partitions(None if self.topic is None else [self.topic]))
        if not states:
            raise FaultError(f"the cluster has no topic {self.topic}; correct the fault's `topic`")
        if self.partition is not None:
            states = tuple(state for state in states if state.partition == self.partition)
            if not states:
                raise FaultError(f"the topic {self.topic} has no partition {self.partition}; correct `partition`")
        assignment: Assignment
        roles: dict[str, Any]
        ends: tuple[BrokerId, ...] = ()
        if self.rotate is not None:
            assignment, roles = rotate(states, self.rotate), {"rotate": self.rotate}
        elif self._between is None:
            racks = {broker: context.world.racks()[broker] for broker in brokers_of(context.world)}
            assignment = change_replication(states, self.replication or 0, racks)
            roles = {"replication": self.replication}
        else:
            way, move = self._between
            source = await resolve(move.from_, context.world, draws, f"{way}.from")
            target = await resolve(move.to, context.world, draws, f"{way}.to")
            change = {"swap": swap_brokers, "move": move_replicas, "replace": replace_broker}[way]
            assignment, roles, ends = change(states, source, target), {"from": source, "to": target}, (source, target)
        before = [state for state in states if assignment.get(partition_of(state), state.replicas) != state.replicas]
        if not before:
            scope = f"partition {self.topic}/{self.partition}" if self.partition is not None else None
            scope = scope or f"every partition of {self.topic or 'every topic'}"
            raise FaultError(f"{scope} has the requested replicas already; request other replicas")
        topics = tuple(sorted({state.topic for state in before}))
        targets = Targets(brokers=ends, topics=topics, roles=roles)
        changed = {partition_of(state): assignment[partition_of(state)] for state in before}
        original = assignment_as_json({partition_of(state): state.replicas for state in before})
        led = sorted([state.topic, state.partition] for state in before if state.leader == state.replicas[0])
        undo = Undo("restore_assignment", {"assignment": original, "elect": led})
        by_partition = {partition_of(state): state for state in before}
        if self.throttle is None:
            if self.every is not None:
                every_us, turns = self.every * 1000, self.rotate or 0
                return RotatingInjection(context, targets, by_partition, changed, True, turns, every_us, undo=undo)
            elects = self.rotate is not None or self.swap is not None
            return ReassignInjection(context, targets, by_partition, changed, elects, undo=undo)
        changes = await throttle_changes(before, changed, self.throttle, context.world)
        undo = all_of([*(change.undo() for change in changes), undo])
        if self.cancel_after is None:
            return ThrottledInjection(context, targets, by_partition, changed, changes=changes, undo=undo)
        return CancelledInjection(
            context, targets, by_partition, changed, changes=changes, cancel_after_ms=self.cancel_after, undo=undo
        )

"""``reassign``: move the replicas of a topic, by Kafka's own partition reassignment.

``rotate: N`` turns every replica list left by N and then elects the new preferred leaders, so every leader moves and
no data does. ``move: {from: ROLE, to: ROLE}`` puts one broker in another's place, so data does move. Without ``for``
the move is the action and stays; with it, the heal restores the assignment (and the leaders) of before. While a move
is in flight its inverse is to cancel and restore.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.fault import Among, Band, Draws, Family, Fault, Place, Report, Scene, Stake, Strike
from aftershock.faults.problem import Problem
from aftershock.faults.record import Targets, Undo, Witness
from aftershock.faults.roles import RoleText, resolve
from aftershock.faults.undo import assignment_as_json, led_by_preferred, reassigned
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently, to_the_end, until
from aftershock.faults.world import BrokerId, PartitionState, TopicPartition

if TYPE_CHECKING:
    from aftershock.faults.draft import Draft

MOVED_DEADLINE_MS = 60_000
Replicas = tuple[BrokerId, ...]


class Move(BaseModel):
    """One broker takes another's place in every replica list of the topic."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    from_: RoleText = Field(alias="from")
    to: RoleText


class Reassign(Fault):
    """Rotate or move the replicas of a topic."""

    family: ClassVar[Family] = "Kafka"
    band: ClassVar[Band] = Band("#2ca02c", "reassign")
    proof: ClassVar[str] = "leaders at a higher epoch (rotate), or the replica lists read back (move)"
    remedy: ClassVar[str] = "with `for`: the assignment and the leaders of before; without: it stays"
    met_by: ClassVar[Among] = "topics"
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("assignment", "topics"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "optional"
    allowance_ms: ClassVar[int] = 2_000  # a rotation takes 0.2 s for a hundred partitions; a move depends on the data

    kind: Literal["reassign"] = "reassign"
    topic: str
    rotate: Annotated[StrictInt, Field(ge=1, le=8)] | None = None
    move: Move | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.rotate is None) == (self.move is None):
            sentence = "a reassign needs either `rotate: 1` or `move: {from: ROLE, to: ROLE}`; say one of them"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    def roles(self) -> dict[tuple[str, ...], str]:
        """Both ends of a move."""
        return {("move", "from"): self.move.from_, ("move", "to"): self.move.to} if self.move else {}

    def topics(self) -> dict[Place, str]:
        """The topic."""
        return {("topic",): self.topic}

    def problems(self, draft: "Draft") -> Iterator[Problem]:
        """Moves that would change nothing."""
        if self.move and self.move.from_ == self.move.to and "any" not in self.move.to:
            yield Problem(("move",), "`from` and `to` are the same, so nothing would move: name two brokers")
        replications = (topic.replication for topic in draft.topics.values() if topic.name == self.topic)
        replication = next(replications, None)
        if self.rotate and replication and self.rotate % replication == 0:
            sentence = f"turning {replication} replicas {self.rotate} times changes nothing: "
            yield Problem(("rotate",), sentence + "rotate by less, or by more replicas")

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if there is no such topic, or if the new assignment would be the old one."""
        before = tuple(await scene.world.partitions([self.topic]))
        if not before:
            raise FaultError(f"there is no topic {self.topic}; check the fault's target")
        if self.move is not None:
            source = await resolve(self.move.from_, scene.world, draws, "move.from")
            target = await resolve(self.move.to, scene.world, draws, "move.to")
            wanted = {_where(state): _moved(state.replicas, source, target) for state in before}
            roles: dict[str, Any] = {"from": source, "to": target}
        else:
            turns = self.rotate or 0
            wanted = {_where(state): _rotated(state.replicas, turns) for state in before}
            roles = {"rotate": turns}
        changed = tuple(state for state in before if wanted[_where(state)] != state.replicas)
        if not changed:
            raise FaultError(
                f"every partition of {self.topic} is assigned that way already, so there is nothing to move"
            )
        ends = (roles["from"], roles["to"]) if self.move else ()
        targets = Targets(brokers=ends, topics=(self.topic,), roles=roles)
        return ReassignStrike(scene, changed, {_where(state): wanted[_where(state)] for state in changed}, targets)


class ReassignStrike(Strike):
    """One reassignment of the partitions that it changes."""

    def __init__(
        self,
        scene: Scene,
        before: tuple[PartitionState, ...],
        wanted: dict[TopicPartition, Replicas],
        targets: Targets,
    ) -> None:
        self.scene = scene
        self.before = {_where(state): state for state in before}
        self.wanted = wanted
        self.targets = targets
        self.rotates = "rotate" in targets.roles
        led = [[s.topic, s.partition] for s in before if s.leader == s.replicas[0]]
        original = {where: state.replicas for where, state in self.before.items()}
        self.undo = Undo("restore_assignment", {"assignment": assignment_as_json(original), "elect": sorted(led)})

    async def inject(self) -> None:
        """Ask for the move and see it done; after a rotation, elect the new preferred leaders."""
        world, clock = self.scene.world, self.scene.clock
        await to_the_end(world.reassign(self.wanted))
        await until(lambda: reassigned(self.wanted, world), clock, MOVED_DEADLINE_MS)
        if self.rotates:
            await until(lambda: led_by_preferred(frozenset(self.wanted), world), clock, MOVED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Leaders moved (rotation) or replicas changed (move); and at the end the assignment must still be in force.

        Later on leaders may move again by another fault's doing, so only the assignment is read a second time.
        """
        report(await (self._leaders() if self.rotates else self._replicas()))
        if until_us is not None and self.scene.clock.now_us() < until_us:
            await self.scene.clock.sleep_until_us(until_us)
            report(await self._replicas())

    async def _leaders(self) -> Witness:
        now = await self._now()
        due = [where for where, state in self.before.items() if state.leader != self.wanted[where][0]]
        moved = [
            where for where in due if where in now and _took_over(self.before[where], now[where], self.wanted[where])
        ]
        what = f"leaders of {self.targets.topics[0]} that moved to the new preferred replica at a higher epoch"
        ok = bool(due) and len(moved) == len(due)
        return Witness(what, max(1, len(due)), len(moved), "partitions", len(now), ok)

    async def _replicas(self) -> Witness:
        now = await self._now()
        as_asked = [
            where for where, replicas in self.wanted.items() if where in now and now[where].replicas == replicas
        ]
        what = f"partitions of {self.targets.topics[0]} whose replicas, read back, are the ones asked for"
        ok = len(as_asked) == len(self.wanted)
        return Witness(what, len(self.wanted), len(as_asked), "partitions", len(now), ok)

    async def _now(self) -> dict[TopicPartition, PartitionState]:
        states = await patiently(self._states, self.scene.clock, READ_DEADLINE_MS)
        return {_where(state): state for state in states}

    async def _states(self) -> Sequence[PartitionState]:
        return await self.scene.world.partitions(self.targets.topics)


def _where(state: PartitionState) -> TopicPartition:
    return state.topic, state.partition


def _rotated(replicas: Replicas, turns: int) -> Replicas:
    turns %= len(replicas)
    return replicas[turns:] + replicas[:turns]


def _moved(replicas: Replicas, source: BrokerId, target: BrokerId) -> Replicas:
    """``target`` in ``source``'s place; unchanged where the one is absent or the other is there already."""
    if target in replicas:
        return replicas
    return tuple(target if replica == source else replica for replica in replicas)


def _took_over(before: PartitionState, now: PartitionState, wanted: Replicas) -> bool:
    return now.leader == wanted[0] and now.leader_epoch > before.leader_epoch

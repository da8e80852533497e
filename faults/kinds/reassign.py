"""``reassign``: move replicas, by Kafka's own partition reassignment (KIP-455).

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

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.fault import Among, Band, Draws, Family, Fault, Place, Rest, Scene, Stake, Strike, Takes
from aftershock.faults.problem import Problem
from aftershock.faults.record import Targets
from aftershock.faults.roles import RoleText, brokers_of, resolve
from aftershock.faults.strikes import assigning
from aftershock.faults.strikes.assigning import Assignment, where
from aftershock.faults.strikes.moving import ReassignStrike
from aftershock.faults.strikes.throttled import CancelledStrike, ThrottledStrike, throttling
from aftershock.faults.units import ByteRate, Duration
from aftershock.faults.values import PartitionState
from aftershock.faults.world import World

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
    leaves: ClassVar[str | None] = "without `for`: the replicas where they were moved to"
    met_by: ClassVar[Among] = "topics"
    told: ClassVar[bool] = True  # a replica that leads no more says so
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("assignment", "topics"),)
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

    def takes(self) -> Takes:
        """A rotation takes the leaders; a move also who the replicas are."""
        return "leaders" if self.rotate else "unknown"

    def roles(self) -> dict[tuple[str, ...], str]:
        """Both ends of a move."""
        if self._between is None:
            return {}
        way, move = self._between
        return {(way, "from"): move.from_, (way, "to"): move.to}

    def topics(self) -> dict[Place, str]:
        """The topic, if it is of one."""
        return {("topic",): self.topic} if self.topic is not None else {}

    def problems(self, rest: Rest) -> Iterator[Problem]:
        """Moves that would change nothing, and more replicas than brokers."""
        if self._between and self._between[1].from_ == self._between[1].to and "any" not in self._between[1].to:
            yield Problem((self._between[0],), "`from` and `to` are the same, so nothing would move: name two brokers")
        replication = {topic.name: topic.replication for topic in rest.topics.values()}.get(self.topic or "")
        if self.rotate and replication and self.rotate % replication == 0:
            sentence = f"turning {replication} replicas {self.rotate} times changes nothing: "
            yield Problem(("rotate",), sentence + "rotate by less, or by more replicas")
        if self.replication and rest.cluster and self.replication > (count := len(rest.cluster.broker_racks)):
            yield Problem(("replication",), f"{self.replication} replicas need as many brokers, and there are {count}")

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if there is no such topic, or if the new assignment would be the old one."""
        states = tuple(await scene.world.partitions(None if self.topic is None else [self.topic]))
        if not states:
            raise FaultError(f"there is no topic {self.topic}; check the fault's target")
        wanted, roles = await self._wanted(states, scene.world, draws)
        changed = tuple(state for state in states if wanted.get(where(state), state.replicas) != state.replicas)
        if not changed:
            whose = self.topic or "every topic"
            raise FaultError(f"every partition of {whose} is assigned that way already, so there is nothing to move")
        ends = (roles["from"], roles["to"]) if self._between else ()
        topics = tuple(sorted({state.topic for state in changed}))
        return await self._strike(scene, changed, wanted, Targets(brokers=ends, topics=topics, roles=roles))

    async def _wanted(
        self, states: Sequence[PartitionState], world: World, draws: Draws
    ) -> tuple[Assignment, dict[str, Any]]:
        if self.rotate is not None:
            return assigning.rotated(states, self.rotate), {"rotate": self.rotate}
        if self._between is None:
            racks = {broker: rack for broker, rack in world.racks().items() if broker in brokers_of(world)}
            return assigning.replicated(states, self.replication or 0, racks), {"replication": self.replication}
        way, move = self._between
        source = await resolve(move.from_, world, draws, f"{way}.from")
        target = await resolve(move.to, world, draws, f"{way}.to")
        assign = {"swap": assigning.swapped, "move": assigning.moved, "replace": assigning.replaced}[way]
        return assign(states, source, target), {"from": source, "to": target}

    async def _strike(
        self, scene: Scene, before: Sequence[PartitionState], wanted: Assignment, targets: Targets
    ) -> Strike:
        changed = {where(state): wanted[where(state)] for state in before}
        if self.throttle is None:
            elects = self.rotate is not None or self.swap is not None
            return ReassignStrike(scene, before, changed, targets, elects=elects)
        changes = await throttling(before, changed, self.throttle, scene.world)
        if self.cancel_after is None:
            return ThrottledStrike(scene, before, changed, targets, changes)
        return CancelledStrike(scene, before, changed, targets, changes, self.cancel_after)

"""Who is to be hit: a node id, or a role that some node plays at the moment of injection.

::

    ROLE = node id | controller | leader of TOPIC/P | replica of TOPIC/P in rack R
         | coordinator of GROUP | any broker except ROLE

Rules: a role is parsed when the plan is read and resolved when the fault is injected, because "the leader of
orders/0" is somebody else after a fault. The only random choice, ``any``, was drawn by the compiler: a number in [0,
1) that picks among the sorted ids.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.values import BrokerId, PartitionState

GRAMMAR = (
    "a node id, `controller`, `leader of TOPIC/PARTITION`, `replica of TOPIC/PARTITION in rack RACK`, "
    "`coordinator of GROUP`, or `any broker except ROLE`"
)
_NAME = r"[A-Za-z0-9._-]{1,249}"
_LEADER = re.compile(rf"leader of ({_NAME})/(\d{{1,6}})")
_REPLICA = re.compile(rf"replica of ({_NAME})/(\d{{1,6}}) in rack ([a-z][a-z0-9]{{0,7}})")
_COORDINATOR = re.compile(rf"coordinator of ({_NAME})")
_ANY = "any broker except "


@dataclass(frozen=True)
class Node:
    """A node by its id."""

    broker: BrokerId

    async def resolve(self, world: World, _any: float) -> BrokerId:
        """The id itself; FaultError if the cluster has no such node."""
        if self.broker not in world.racks():
            raise FaultError(f"the cluster has no node {self.broker}; its nodes are {_ids(world)}")
        return self.broker


@dataclass(frozen=True)
class Controller:
    """The active controller."""

    async def resolve(self, world: World, _any: float) -> BrokerId:
        """Whoever the quorum says it is."""
        return await world.controller()


@dataclass(frozen=True)
class Leader:
    """The leader of one partition."""

    topic: str
    partition: int

    async def resolve(self, world: World, _any: float) -> BrokerId:
        """FaultError while the partition has no leader."""
        state = await partition_of(world, self.topic, self.partition)
        if state.leader is None:
            raise FaultError(f"{self.topic}/{self.partition} has no leader at the moment, so there is nobody to hit")
        return state.leader


@dataclass(frozen=True)
class Replica:
    """The replica of one partition in one rack; the lowest id where there are several."""

    topic: str
    partition: int
    rack: str

    async def resolve(self, world: World, _any: float) -> BrokerId:
        """FaultError if no replica stands in that rack."""
        state = await partition_of(world, self.topic, self.partition)
        racks = world.racks()
        here = sorted(broker for broker in state.replicas if racks.get(broker) == self.rack)
        if not here:
            raise FaultError(
                f"{self.topic}/{self.partition} has no replica in rack {self.rack}, so there is nobody to hit"
            )
        return here[0]


@dataclass(frozen=True)
class Coordinator:
    """The broker that coordinates a consumer group (the group's full name)."""

    group: str

    async def resolve(self, world: World, _any: float) -> BrokerId:
        """Whoever Kafka says it is."""
        return await world.coordinator(self.group)


@dataclass(frozen=True)
class AnyExcept:
    """Some broker, drawn by the compiler, but not this one."""

    spared: "Node | Controller | Leader | Replica | Coordinator"

    async def resolve(self, world: World, any_: float) -> BrokerId:
        """``any_`` in [0, 1) picks among the sorted ids; FaultError if nobody is left."""
        spared = await self.spared.resolve(world, any_)
        left = sorted(brokers_of(world) - {spared})
        if not left:
            raise FaultError(f"there is no broker except {spared}, so there is nobody to hit")
        return left[int(any_ * len(left))]


Role = Node | Controller | Leader | Replica | Coordinator | AnyExcept


def parse(text: str) -> Role:
    """Raises ValueError with a sentence that shows the grammar."""
    text = " ".join(text.split())
    if text.startswith(_ANY):
        spared = parse(text.removeprefix(_ANY))
        if isinstance(spared, AnyExcept):
            raise ValueError("`any broker except any broker ...` says nothing; name whom to spare")
        return AnyExcept(spared)
    if text == "controller":
        return Controller()
    if text.isdecimal() and len(text) < 6:  # noqa: PLR2004 -- no cluster has node ids of six digits
        return Node(BrokerId(int(text)))
    if match := _LEADER.fullmatch(text):
        return Leader(match[1], int(match[2]))
    if match := _REPLICA.fullmatch(text):
        return Replica(match[1], int(match[2]), match[3])
    if match := _COORDINATOR.fullmatch(text):
        return Coordinator(match[1])
    raise ValueError(f"`{text}` is no role: say {GRAMMAR}")


def needs_draw(role: Role) -> bool:
    """Whether the compiler must draw a number for this role."""
    return isinstance(role, AnyExcept)


def innermost(role: Role) -> Role:
    """The role that names something of the plan: whom ``any broker except`` spares, else the role itself."""
    return role.spared if isinstance(role, AnyExcept) else role


async def resolve(text: str, world: World, draws: Mapping[str, object], name: str) -> BrokerId:
    """Who plays the role now. ``draws["any.<name>"]`` is the number the compiler drew, if it drew one."""
    drawn = draws.get(f"any.{name}", 0.0)
    return await parse(text).resolve(world, drawn if isinstance(drawn, float) else 0.0)


async def partition_of(world: World, topic: str, partition: int) -> PartitionState:
    """The partition's state now; FaultError if there is no such partition."""
    for state in await world.partitions([topic]):
        if state.partition == partition:
            return state
    raise FaultError(f"there is no partition {topic}/{partition}; check the fault's target")


def brokers_of(world: World) -> frozenset[BrokerId]:
    """Every broker of the cluster: the nodes that clients have a link to."""
    return frozenset(link.broker for link in world.links() if link.channel == "client")


def _ids(world: World) -> str:
    return ", ".join(str(node) for node in sorted(world.racks()))


def _role_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _checked(text: str) -> str:
    try:
        parse(text)
    except ValueError as error:
        raise PydanticCustomError("role", "{message}", {"message": str(error)}) from error
    return " ".join(text.split())


RoleText = Annotated[
    str,
    BeforeValidator(_role_text),
    AfterValidator(_checked),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-word": "ROLE", "description": GRAMMAR}),
]

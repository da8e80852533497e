"""Broker targets of faults, each a node id, or a role (such as leader) that a broker holds at the injection.

A role is a node id, ``controller``, ``leader of TOPIC/P``, ``replica of TOPIC/P in rack R``, ``coordinator of GROUP``,
``transaction coordinator of TRANSACTIONAL_ID`` or ``any broker except ROLE``. A role is parsed when the plan is read,
and resolved when the fault is injected, because an earlier fault may have moved a leader. For ``any``, the compiler
draws a number in [0, 1), which selects one of the sorted broker ids.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from aftershock.errors import FaultError
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.faults.targets.world import World

GRAMMAR = (
    "a node id, `controller`, `leader of TOPIC/PARTITION`, `replica of TOPIC/PARTITION in rack RACK`, "
    "`coordinator of GROUP`, `transaction coordinator of TRANSACTIONAL_ID`, or `any broker except ROLE`"
)
_NAME = r"[A-Za-z0-9._-]{1,249}"
_LEADER = re.compile(rf"leader of ({_NAME})/(\d{{1,6}})")
_REPLICA = re.compile(rf"replica of ({_NAME})/(\d{{1,6}}) in rack ([a-z][a-z0-9]{{0,7}})")
_COORDINATOR = re.compile(rf"coordinator of ({_NAME})")
_TRANSACTION_COORDINATOR = re.compile(r"transaction coordinator of ([^\s()]{1,249})")
_ANY = "any broker except "


@dataclass(frozen=True)
class Node:
    broker: BrokerId

    async def resolve(self, world: World, _draw: float) -> BrokerId:
        if self.broker not in world.racks():
            nodes = ", ".join(str(node) for node in sorted(world.racks()))
            raise FaultError(f"the cluster has no node {self.broker}; its nodes are {nodes}")
        return self.broker


@dataclass(frozen=True)
class Controller:
    """The active controller."""

    async def resolve(self, world: World, _draw: float) -> BrokerId:
        return await world.controller()


@dataclass(frozen=True)
class Leader:
    topic: str
    partition: int

    async def resolve(self, world: World, _draw: float) -> BrokerId:
        state = await partition_of(world, self.topic, self.partition)
        if state.leader is None:
            raise FaultError(f"partition {self.topic}/{self.partition} has no leader now, so the fault has no target")
        return state.leader


@dataclass(frozen=True)
class Replica:
    """The broker with the lowest id among the brokers of a rack that hold a replica of a partition."""

    topic: str
    partition: int
    rack: str

    async def resolve(self, world: World, _draw: float) -> BrokerId:
        state = await partition_of(world, self.topic, self.partition)
        racks = world.racks()
        brokers = sorted(broker for broker in state.replicas if racks.get(broker) == self.rack)
        if not brokers:
            partition = f"{self.topic}/{self.partition}"
            raise FaultError(f"partition {partition} has no replica in rack {self.rack}, so the fault has no target")
        return brokers[0]


@dataclass(frozen=True)
class Coordinator:
    """The broker that coordinates a consumer group; ``group`` is the group's name in Kafka, ``<group>-<arm>``."""

    group: str

    async def resolve(self, world: World, _draw: float) -> BrokerId:
        return await world.coordinator(self.group)


@dataclass(frozen=True)
class TransactionCoordinator:
    """The broker that coordinates the transactions of a producer, by the producer's ``transactional.id``."""

    transactional_id: str

    async def resolve(self, world: World, _draw: float) -> BrokerId:
        return await world.transaction_coordinator(self.transactional_id)


@dataclass(frozen=True)
class AnyExcept:
    """A broker other than ``excluded``, drawn by the compiler."""

    excluded: "Node | Controller | Leader | Replica | Coordinator | TransactionCoordinator"

    async def resolve(self, world: World, draw: float) -> BrokerId:
        excluded = await self.excluded.resolve(world, draw)
        candidates = sorted(brokers_of(world) - {excluded})
        if not candidates:
            raise FaultError(f"there is no broker except {excluded}, so the fault has no target")
        return candidates[int(draw * len(candidates))]


Role = Node | Controller | Leader | Replica | Coordinator | TransactionCoordinator | AnyExcept


def parse(text: str) -> Role:
    """Parse a role of a broker; raise ValueError with a sentence that shows the grammar."""
    text = " ".join(text.split())
    if text.startswith(_ANY):
        excluded = parse(text.removeprefix(_ANY))
        if isinstance(excluded, AnyExcept):
            raise ValueError("`any broker except any broker ...` excludes no particular broker; name a broker")
        return AnyExcept(excluded)
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
    if match := _TRANSACTION_COORDINATOR.fullmatch(text):
        return TransactionCoordinator(match[1])
    raise ValueError(f"`{text}` is not a role: write {GRAMMAR}")


def needs_draw(role: Role) -> bool:
    """Return True if the compiler must draw a number to resolve a role."""
    return isinstance(role, AnyExcept)


def innermost(role: Role) -> Role:
    """Return the excluded role of ``any broker except ROLE``; return every other role itself."""
    return role.excluded if isinstance(role, AnyExcept) else role


async def resolve(text: str, world: World, draws: Mapping[str, object], name: str) -> BrokerId:
    """Return the broker that holds a role now; ``draws["any.<name>"]`` selects the broker of an ``any`` role."""
    draw = draws.get(f"any.{name}", 0.0)
    return await parse(text).resolve(world, draw if isinstance(draw, float) else 0.0)


async def partition_of(world: World, topic: str, partition: int) -> PartitionState:
    """Return a partition's current state; raise FaultError if there is no such partition."""
    for state in await world.partitions([topic]):
        if state.partition == partition:
            return state
    raise FaultError(f"there is no partition {topic}/{partition}; check the fault's target")


def brokers_of(world: World) -> frozenset[BrokerId]:
    """Return the ids of all nodes to which clients have a link; isolated controllers are not included."""
    return frozenset(link.broker for link in world.links() if link.channel == "client")


RoleText = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    AfterValidator(lambda text: parse(text) and " ".join(text.split())),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-word": "ROLE", "description": GRAMMAR}),
]
"""A role in a plan, kept as text; spaces are normalised."""

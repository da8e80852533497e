"""Turning every node over, one after the other: what a rolling restart and a rolling upgrade share.

Rules. One node at a time: the next one's turn comes when the one before is in service again, which is in the ISR of
all it holds; a node that does not come back ends it. The active controller's turn is the last, so that the quorum
elects once. What was seen of each turn is kept, and told as witness when all is done.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from aftershock.errors import AftershockError, FaultError
from aftershock.faults.fault import Among, Fault, Rest, Scene, Stake, Strike, Takes
from aftershock.faults.problem import Problem
from aftershock.faults.record import Targets, Undo, Witness
from aftershock.faults.roles import brokers_of
from aftershock.faults.strikes.probing import ask_all
from aftershock.faults.strikes.victim import BACK_DEADLINE_MS, in_service
from aftershock.faults.units import Duration
from aftershock.faults.values import BrokerId, PartitionState
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently, until
from aftershock.faults.world import World

LAG_MAX = 2  # records of the metadata log: one is written every half second, and a voter in step is behind by that
_MIN_ISR = "min.insync.replicas"


@dataclass(frozen=True)
class Turn:
    """One node's turn, as it was seen.

    ``down``: how many nodes did not run meanwhile; ``led``: the partitions that it led before; ``grown``: those of them
    whose leader epoch grew.
    """

    node: BrokerId
    down: int
    led: int
    grown: int


class RollingStrike(Strike):
    """All of these nodes, one after the other."""

    def __init__(self, scene: Scene, nodes: Sequence[BrokerId], pause_ms: int, roles: dict[str, Any]) -> None:
        self.scene = scene
        self.nodes = tuple(nodes)
        self.pause_ms = pause_ms
        self.turns: list[Turn] = []
        self.targets = Targets(brokers=self.nodes, roles=roles)

    @abstractmethod
    async def take_down(self, node: BrokerId) -> None:
        """Let its process end by itself."""

    @abstractmethod
    async def bring_back(self, node: BrokerId) -> None:
        """Let it start again."""

    async def inject(self) -> None:
        """Each node's turn, and the pause between two of them."""
        clock = self.scene.clock
        for number, node in enumerate(self.nodes):
            if number:
                await clock.sleep_until_us(clock.now_us() + self.pause_ms * 1000)
            await self._turn(node)

    async def confirm_healed(self) -> None:
        """Each of them is in service."""
        for node in self.nodes:
            await self._see_back(node)

    def seen(self) -> Iterator[Witness]:
        """What the turns were seen to be."""
        asked, turned = len(self.nodes), len(self.turns)
        what = "nodes that were seen exited, and then back in the ISR of all they hold before the next one's turn"
        yield Witness(what, asked, turned, "nodes", asked, ok=turned == asked)
        most = max((turn.down for turn in self.turns), default=0)
        yield Witness("nodes down at one time", 1, most, "nodes", turned, ok=most == 1)
        led, grown = sum(turn.led for turn in self.turns), sum(turn.grown for turn in self.turns)
        what = "leaderships of a node at its turn whose leader epoch grew by it"
        yield Witness(what, led, grown, "partitions", led, ok=grown == led and turned == asked)

    async def _turn(self, node: BrokerId) -> None:
        led = [state for state in await self._partitions() if state.leader == node]
        await self.take_down(node)
        world = self.scene.world
        down = sum([await world.state(each) != "running" for each in sorted(world.racks())])
        await self.bring_back(node)
        await self._see_back(node)
        now = {(state.topic, state.partition): state.leader_epoch for state in await self._partitions()}
        grown = sum(now.get((state.topic, state.partition), -1) > state.leader_epoch for state in led)
        self.turns.append(Turn(node, down, len(led), grown))

    async def _partitions(self) -> Sequence[PartitionState]:
        return await patiently(self.scene.world.partitions, self.scene.clock, READ_DEADLINE_MS)

    async def _see_back(self, node: BrokerId) -> None:
        try:
            await until(lambda: _missing(node, self.scene), self.scene.clock, BACK_DEADLINE_MS)
        except FaultError as error:
            raise FaultError(f"node {node} did not come back: {error}; look at its log") from error


class RollingFault(Fault):
    """A fault that takes its turn with every node."""

    met_by: ClassVar[Among] = "brokers"
    severs: ClassVar[bool] = True
    told: ClassVar[bool] = True
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("process", "brokers"),)

    pause: Duration = 0

    def takes(self) -> Takes:
        """Whoever's turn it is."""
        return "one node"

    def nodes(self, rest: Rest) -> frozenset[int]:
        """All brokers."""
        return frozenset(rest.cluster.broker_racks if rest.cluster else ())

    def surprises(self, rest: Rest) -> Iterator[Problem]:
        """Topics that can't be produced to while one of their replicas is away."""
        for topic in rest.topics.values():
            usual = rest.cluster.config.get(_MIN_ISR, "1") if rest.cluster else "1"
            min_isr = topic.config.get(_MIN_ISR, usual)
            if min_isr.isdecimal() and int(min_isr) >= topic.replication:
                sentence = (
                    f"{topic.name} needs {min_isr} of its {topic.replication} replicas in sync, so nothing can be "
                )
                yield Problem((), sentence + f"produced with acks=all while one of them has its turn; lower {_MIN_ISR}")


async def in_turn(world: World, candidates: Sequence[BrokerId]) -> list[BrokerId]:
    """Isolated controllers, then brokers, by their ids; the active controller last of its sort. All must run."""
    try:
        active = await world.controller()
    except AftershockError:
        active = None  # in the middle of an election nobody is
    brokers = brokers_of(world)
    for node in candidates:
        if (state := await world.state(node)) != "running":
            raise FaultError(f"node {node} is {state}, so it has no turn to take; let its other fault heal first")
    return sorted(candidates, key=lambda node: (node in brokers, node == active, node))


async def _missing(node: BrokerId, scene: Scene) -> str | None:
    """None once the node is in service; an isolated controller, once it answers and the quorum has it back."""
    if (lacking := await in_service(node, scene)) or node in brokers_of(scene.world):
        return lacking
    ways = [link for link in scene.world.links() if link.channel == "controller" and link.broker == node]
    if ways and "answered" not in await ask_all(ways, scene):
        return "it does not answer"
    lag = (await scene.world.quorum_lag()).get(node)
    return None if lag is not None and lag <= LAG_MAX else f"it is {lag} records behind the active controller"


def starts(nodes: Sequence[BrokerId]) -> Iterator[Undo]:
    """Every one of them is started."""
    return (Undo("start", {"broker": node}) for node in nodes)

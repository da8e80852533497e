"""A fault on one node: who it is, what it was doing, that it stays down, and that it is back in service."""

from collections import Counter
from typing import Any, ClassVar

from aftershock.errors import AftershockError, FaultError
from aftershock.faults.fault import Draws, Fault, Scene, Strike
from aftershock.faults.record import Targets, Undo, Verb, Witness
from aftershock.faults.roles import RoleText, brokers_of, resolve
from aftershock.faults.waiting import until
from aftershock.faults.world import BrokerId, BrokerState, World

BACK_DEADLINE_MS = 60_000


class NodeStrike(Strike):
    """One node, put into ``down`` and brought back by ``verb``."""

    down: ClassVar[BrokerState]
    verb: ClassVar[Verb]

    def __init__(self, scene: Scene, victim: BrokerId, roles: dict[str, Any]) -> None:
        self.scene = scene
        self.victim = victim
        self.targets = Targets(brokers=(victim,), roles=roles)
        self.undo = Undo(self.verb, {"broker": victim})

    async def read_back(self) -> Witness:
        """The container's state as the engine has it now."""
        is_down = await self.scene.world.state(self.victim) == self.down
        what = f"node {self.victim}'s container, read back, is {self.down}"
        return Witness(what, asked=1, observed=float(is_down), unit="reads", n=1, ok=is_down)

    async def confirm_healed(self) -> None:
        """Registered again, and in the ISR of every partition it holds."""
        try:
            await until(lambda: in_service(self.victim, self.scene.world), self.scene.clock, BACK_DEADLINE_MS)
        except FaultError as error:
            raise FaultError(f"node {self.victim} did not come back: {error}; look at its log") from error


class NodeFault(Fault):
    """A fault whose target is a node, named by its id or its role."""

    strike: ClassVar[type[NodeStrike]]

    broker: RoleText

    def roles(self) -> dict[tuple[str, ...], str]:
        """The victim."""
        return {("broker",): self.broker}

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if the victim doesn't run."""
        victim = await resolve(self.broker, scene.world, draws, "broker")
        await require_running(victim, scene.world)
        return self.strike(scene, victim, {"asked": self.broker, **await duties(victim, scene.world)})


async def require_running(node: BrokerId, world: World) -> None:
    """FaultError if the node is down or frozen already: the fault would do nothing of its own."""
    state = await world.state(node)
    if state != "running":
        raise FaultError(
            f"node {node} is {state} already, so there is nothing to break; let its other fault heal first"
        )


async def duties(node: BrokerId, world: World) -> dict[str, Any]:
    """``{"leads": {topic: partitions}, "controller": bool, "rack": str}``: what this node's loss takes away."""
    led = Counter(state.topic for state in await world.partitions() if state.leader == node)
    return {
        "leads": dict(sorted(led.items())),
        "controller": await _is_controller(node, world),
        "rack": world.racks().get(node),
    }


async def in_service(node: BrokerId, world: World) -> str | None:
    """None once the node is registered and in the ISR of all it holds, else what is missing."""
    if await world.state(node) != "running":
        return f"its container is {await world.state(node)}"
    if node not in brokers_of(world):
        return None  # an isolated controller holds no partitions; that the quorum has it back is Kafka's own affair
    if node not in await world.registered():
        return "it is not registered"
    out = [s for s in await world.partitions() if node in s.replicas and node not in s.isr]
    return f"it is out of the ISR of {len(out)} partitions, {out[0].topic}/{out[0].partition} first" if out else None


async def _is_controller(node: BrokerId, world: World) -> bool | None:
    try:
        return await world.controller() == node
    except AftershockError:
        return None  # in the middle of an election nobody can tell, and that is no reason not to strike

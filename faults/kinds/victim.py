"""What faults on a node need to know of it: does it run, what is it doing, is it back in service."""

from collections import Counter
from typing import Any

from aftershock.errors import AftershockError, FaultError
from aftershock.faults.roles import brokers_of
from aftershock.faults.world import BrokerId, World


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

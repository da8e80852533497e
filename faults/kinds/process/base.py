"""A fault on one node: who it is, what it was doing, that it stays down, and that it is back in service."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

from aftershock.errors import AftershockError, FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Draws,
    ExclusiveResource,
    Fault,
    Injection,
    InjectionContext,
    Report,
    TargetKind,
)
from aftershock.faults.runtime.probing import unanswered_reason
from aftershock.faults.runtime.record import Targets, Undo, Verb, Witness
from aftershock.faults.runtime.waiting import wait_until
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.roles import RoleText, brokers_of, resolve
from aftershock.faults.targets.values import BrokerId, BrokerState, PartitionState

RETURN_DEADLINE_MS = 60_000


class NodeInjection(Injection):
    """One node, put into ``down`` and brought back by ``verb``. ``led``: the partitions it led before."""

    down: ClassVar[BrokerState]
    verb: ClassVar[Verb]

    def __init__(
        self, context: InjectionContext, victim: BrokerId, roles: dict[str, Any], led: tuple[PartitionState, ...]
    ) -> None:
        self.context = context
        self.victim = victim
        self.led = led
        self.targets = Targets(brokers=(victim,), roles=roles)
        self.undo = Undo(self.verb, {"broker": victim})

    async def see_down(self, deadline_ms: int) -> None:
        """FaultError if the container is not ``down`` after the deadline."""
        await wait_until(self._not_down, self.context.clock, deadline_ms)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """It must stay down: an engine's restart policy would make the fault a shorter one."""
        while True:
            report(await self.read_back())
            now_us = self.context.clock.now_us()
            if until_us is None or now_us >= until_us:
                return
            await self.context.clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))

    async def read_back(self) -> Witness:
        """The container's state as the engine has it now."""
        is_down = await self.context.world.state(self.victim) == self.down
        what = f"node {self.victim}'s container, read back, is {self.down}"
        return Witness(what, asked=1, observed=float(is_down), unit="reads", n=1, ok=is_down)

    async def confirm_healed(self) -> None:
        """It answers, is registered again, and in the ISR of every partition it holds."""
        await self.see_back()

    async def see_back(self) -> None:
        """FaultError, which says what is missing, if it is not in service again after a deadline."""
        try:
            await wait_until(lambda: out_of_service_reason(self.victim, self.context), self.context.clock, RETURN_DEADLINE_MS)
        except FaultError as error:
            raise FaultError(f"node {self.victim} did not come back: {error}; look at its log") from error

    async def _not_down(self) -> str | None:
        state = await self.context.world.state(self.victim)
        return None if state == self.down else f"node {self.victim} should be {self.down} but its container is {state}"


class NodeFault(Fault):
    """A fault whose target is a node, named by its id or its role."""

    exposure_target: ClassVar[TargetKind] = "brokers"
    drops_traffic: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("process", "brokers"),)
    injection: ClassVar[type[NodeInjection]]

    broker: RoleText

    def roles(self) -> dict[tuple[str, ...], str]:
        """The victim."""
        return {("broker",): self.broker}

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if the victim doesn't run."""
        victim = await resolve(self.broker, context.world, draws, "broker")
        await require_running(victim, context.world)
        led = tuple(state for state in await context.world.partitions() if state.leader == victim)
        return self.injection_on(
            context, victim, {"asked": self.broker, **await node_duties(victim, led, context.world)}, led
        )

    def injection_on(
        self, context: InjectionContext, victim: BrokerId, roles: dict[str, Any], led: tuple[PartitionState, ...]
    ) -> NodeInjection:
        """Its strike on this victim, which led these partitions."""
        return self.injection(context, victim, roles, led)


async def require_running(node: BrokerId, world: World) -> None:
    """FaultError if the node is down or frozen already: the fault would do nothing of its own."""
    state = await world.state(node)
    if state != "running":
        raise FaultError(
            f"node {node} is {state} already, so there is nothing to break; let its other fault heal first"
        )


async def node_duties(node: BrokerId, led: Iterable[PartitionState], world: World) -> dict[str, Any]:
    """``{"leads": {topic: partitions}, "controller": bool, "rack": str}``: what this node's loss takes away."""
    topics = Counter(state.topic for state in led)
    return {
        "leads": dict(sorted(topics.items())),
        "controller": await _is_controller(node, world),
        "rack": world.racks().get(node),
    }


async def out_of_service_reason(node: BrokerId, context: InjectionContext) -> str | None:
    """None once the node answers, is registered and in the ISR of all it holds, else what is missing.

    It must answer first: until the cluster has noticed that it was away, registration and ISR are those from before.
    """
    world = context.world
    if await world.state(node) != "running":
        return f"its container is {await world.state(node)}"
    if node not in brokers_of(world):
        return None  # an isolated controller holds no partitions; that the quorum has it back is Kafka's own affair
    if dumb := await unanswered_reason(node, context):
        return dumb
    if node not in await world.registered():
        return "it is not registered"
    out = [s for s in await world.partitions() if node in s.replicas and node not in s.isr]
    return f"it is out of the ISR of {len(out)} partitions, {out[0].topic}/{out[0].partition} first" if out else None


async def _is_controller(node: BrokerId, world: World) -> bool | None:
    try:
        return await world.controller() == node
    except AftershockError:
        return None  # in the middle of an election nobody can tell, and that is no reason not to strike

"""Base of faults on one node: the node's duties before the fault, its state during it, and its return to service."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

from aftershock.errors import AftershockError, FaultError
from aftershock.faults.kinds.fault import (
    Draws,
    ExclusiveResource,
    Fault,
    Injection,
    InjectionContext,
    Report,
    TargetKind,
    report_each_second,
)
from aftershock.faults.runtime.probing import unanswered_reason
from aftershock.faults.runtime.record import Targets, Undo, Verb, Witness
from aftershock.faults.runtime.waiting import wait_until
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.roles import RoleText, brokers_of, resolve
from aftershock.faults.targets.values import BrokerId, BrokerState, PartitionState

RETURN_DEADLINE_MS = 60_000


class NodeInjection(Injection):
    """Injection that puts a node into state ``down``; ``verb`` undoes it.

    ``led``: partitions that the node led before.
    """

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
        """Wait until the container is ``down``; raise FaultError after the deadline."""

        async def not_down() -> str | None:
            state = await self.context.world.state(self.victim)
            if state == self.down:
                return None
            return f"node {self.victim} should be {self.down} but its container is {state}"

        await wait_until(not_down, self.context.clock, deadline_ms)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report each second whether it is still down: an engine's restart policy would shorten the fault."""
        await report_each_second(self.read_back, report, self.context.clock, until_us)

    async def read_back(self) -> Witness:
        """Read the container's state from the engine."""
        is_down = await self.context.world.state(self.victim) == self.down
        what = f"node {self.victim}'s container, read back, is {self.down}"
        return Witness(what, asked=1, observed=float(is_down), unit="reads", n=1, ok=is_down)

    async def confirm_healed(self) -> None:
        """Wait until the node answers, is registered, and is in the ISR of every partition it holds."""
        await self.see_back()

    async def see_back(self) -> None:
        """Wait until the node is in service; raise FaultError with what is missing after a deadline."""
        try:
            await wait_until(
                lambda: out_of_service_reason(self.victim, self.context), self.context.clock, RETURN_DEADLINE_MS
            )
        except FaultError as error:
            raise FaultError(f"node {self.victim} did not come back: {error}; look at its log") from error


class NodeFault(Fault):
    """Base of faults on one node, given by its id or its role."""

    exposure_target: ClassVar[TargetKind] = "brokers"
    drops_traffic: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("process", "brokers"),)
    injection: ClassVar[type[NodeInjection]]

    broker: RoleText

    def roles(self) -> dict[tuple[str, ...], str]:
        """Return the victim's role."""
        return {("broker",): self.broker}

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Resolve the victim; raise FaultError if it doesn't run."""
        victim = await resolve(self.broker, context.world, draws, "broker")
        await require_running(victim, context.world)
        led = tuple(state for state in await context.world.partitions() if state.leader == victim)
        return self.injection_on(
            context, victim, {"asked": self.broker, **await node_duties(victim, led, context.world)}, led
        )

    def injection_on(
        self, context: InjectionContext, victim: BrokerId, roles: dict[str, Any], led: tuple[PartitionState, ...]
    ) -> NodeInjection:
        """Create the injection on a victim that led these partitions."""
        return self.injection(context, victim, roles, led)


async def require_running(node: BrokerId, world: World) -> None:
    """Raise FaultError if the node is down or paused: the fault would have no effect of its own."""
    state = await world.state(node)
    if state != "running":
        raise FaultError(
            f"node {node} is {state} already, so this fault would have no effect; let its other fault heal first"
        )


async def node_duties(node: BrokerId, led: Iterable[PartitionState], world: World) -> dict[str, Any]:
    """Return ``{"leads": {topic: partitions}, "controller": bool (None during an election), "rack": str}``."""
    topics = Counter(state.topic for state in led)
    is_controller: bool | None
    try:
        is_controller = await world.controller() == node
    except AftershockError:
        is_controller = None  # unknown in the middle of an election, which must not prevent the fault
    return {"leads": dict(sorted(topics.items())), "controller": is_controller, "rack": world.racks().get(node)}


async def out_of_service_reason(node: BrokerId, context: InjectionContext) -> str | None:
    """Return None once the node answers, is registered and in the ISR of all its partitions, else what is missing.

    It must answer first: until the cluster notices its absence, registration and ISR still show the state before the
    fault.
    """
    world = context.world
    if await world.state(node) != "running":
        return f"its container is {await world.state(node)}"
    if node not in brokers_of(world):
        return None  # an isolated controller holds no partitions
    if reason := await unanswered_reason(node, context):
        return reason
    if node not in await world.registered():
        return "it is not registered"
    missing = [state for state in await world.partitions() if node in state.replicas and node not in state.isr]
    if not missing:
        return None
    return f"it is out of the ISR of {len(missing)} partitions, {missing[0].topic}/{missing[0].partition} first"

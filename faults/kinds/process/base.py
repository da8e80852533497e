"""Base classes of the faults on nodes.

``NodeFault`` resolves a node by its id or role and records which partitions the node leads before the fault and whether
it is the active controller. ``NodeInjection`` takes a node down and waits after the heal until the node is in service
again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from aftershock.errors import AftershockError, FaultError
from aftershock.faults.kinds.fault import (
    Draws,
    ExclusiveResource,
    Family,
    Fault,
    FieldPath,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    report_each_second,
)
from aftershock.faults.plan.document import Problem
from aftershock.faults.runtime.probing import unanswered_reason
from aftershock.faults.runtime.record import Targets, Undo, Verb, Witness
from aftershock.faults.runtime.waiting import run_to_completion, wait_until
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.roles import RoleText, brokers_of, resolve
from aftershock.faults.targets.values import BrokerId, BrokerState, PartitionState

RETURN_DEADLINE_MS = 60_000
EXITED_DEADLINE_MS = 5_000  # until the engine reports the exit of a killed or stopped node
LAG_MAX = 2  # records: the active controller appends one each half a second, and a voter in sync lags by it
SESSION_TIMEOUT_MS = {"fast": 3_000, "production": 9_000}
"""``broker.session.timeout.ms`` of each profile: after it the controller fences a silent broker."""


class NodeInjection(Injection):
    """Injection that stops or pauses a node (state ``down``); the undo verb ``verb`` brings it back.

    ``led``: the partitions that the node led before the fault.
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

    async def wait_until_down(self, deadline_ms: int) -> None:
        """Wait until the node's container is in the state ``down``; raise FaultError after the deadline."""
        await wait_for_state(self.victim, self.down, self.context, deadline_ms)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Read the node's state back each second, because a restart by the engine would shorten the fault."""
        await report_each_second(self.read_back, report, self.context.clock, until_us)

    async def read_back(self) -> Witness:
        is_down = await self.context.world.state(self.victim) == self.down
        what = f"node {self.victim}'s container, read back, is {self.down}"
        return Witness(what, asked=1, observed=float(is_down), unit="reads", n=1, ok=is_down)

    async def confirm_healed(self) -> None:
        await wait_until_in_service(self.victim, self.context)


class KillInjection(NodeInjection):
    down = "exited"
    verb = "start"

    async def inject(self) -> None:
        await run_to_completion(self.context.world.kill(self.victim))
        await self.wait_until_down(EXITED_DEADLINE_MS)


class NodeFault(Fault):
    """Base of faults on one node, given by its id or its role."""

    family: ClassVar[Family] = "process"
    exposure_target = "brokers"
    drops_traffic = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("process", "brokers"),)
    injection: ClassVar[type[NodeInjection]]

    broker: RoleText

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        victim = await resolve(self.broker, context.world, draws, "broker")
        led = await led_partitions(victim, context.world)
        roles = {"asked": self.broker, **await node_duties(victim, led, context.world)}
        return self.create_injection(context, victim, roles, led)

    def create_injection(
        self, context: InjectionContext, victim: BrokerId, roles: dict[str, Any], led: tuple[PartitionState, ...]
    ) -> NodeInjection:
        return self.injection(context, victim, roles, led)


async def wait_for_state(node: BrokerId, due: BrokerState, context: InjectionContext, deadline_ms: int) -> None:
    """Wait until the node's container is in a given state; raise FaultError after the deadline."""

    async def mismatch() -> str | None:
        state = await context.world.state(node)
        return None if state == due else f"the container of node {node} should be {due} but is {state}"

    await wait_until(mismatch, context.clock, deadline_ms)


async def require_running(node: BrokerId, world: World) -> None:
    """Raise FaultError if a node is down or paused, because a fault on it would have no effect of its own."""
    state = await world.state(node)
    if state != "running":
        raise FaultError(
            f"node {node} is {state} already; let the other fault on the node heal before this fault begins"
        )


async def led_partitions(node: BrokerId, world: World) -> tuple[PartitionState, ...]:
    """Return the partitions that a node leads; raise FaultError if the node doesn't run."""
    await require_running(node, world)
    return tuple(state for state in await world.partitions() if state.leader == node)


async def node_duties(node: BrokerId, led: Iterable[PartitionState], world: World) -> dict[str, Any]:
    """Return ``{"leads": {topic: partitions}, "controller": bool, "rack": str}`` of a node, for the journal.

    ``controller`` is None during an election.
    """
    topics = Counter(state.topic for state in led)
    is_controller: bool | None
    try:
        is_controller = await world.controller() == node
    except AftershockError:
        is_controller = None  # unknown in the middle of an election, which must not prevent the fault
    return {"leads": dict(sorted(topics.items())), "controller": is_controller, "rack": world.racks().get(node)}


async def wait_until_in_service(node: BrokerId, context: InjectionContext) -> None:
    """Wait until a node answers, is registered and in sync; raise FaultError with the reason after a deadline."""
    try:
        await wait_until(lambda: out_of_service_reason(node, context), context.clock, RETURN_DEADLINE_MS)
    except FaultError as error:
        raise FaultError(f"node {node} did not come back into service: {error}; look at the node's log") from error


async def out_of_service_reason(node: BrokerId, context: InjectionContext) -> str | None:
    """Return None once a node answers, is registered and in the ISR of all its partitions, else what is missing.

    Whether the node answers a request is checked first: until the cluster notices that a node is gone, registration and
    ISR still show the state before the fault.
    """
    world = context.world
    if await world.state(node) != "running":
        return f"the node's container is {await world.state(node)}"
    if node not in brokers_of(world):
        return None  # an isolated controller holds no partitions
    if reason := await unanswered_reason(node, context):
        return reason
    if node not in await world.registered():
        return "the node is not registered with the controller"
    missing = [state for state in await world.partitions() if node in state.replicas and node not in state.isr]
    if not missing:
        return None
    return (
        f"the node is out of the ISR of {len(missing)} partitions, among them {missing[0].topic}/{missing[0].partition}"
    )


async def quorum_lag_reason(node: BrokerId, context: InjectionContext) -> str | None:
    """Return None once a node follows the metadata quorum, else how far it is behind the active controller."""
    lag = (await context.world.quorum_lag()).get(node)
    if lag is not None and lag <= LAG_MAX:
        return None
    return f"node {node} is {'an unknown number of' if lag is None else lag} records behind the active controller"


def count_new_epochs(before: Iterable[PartitionState], now: Iterable[PartitionState]) -> int:
    """Return how many of the partitions in ``before`` have a higher leader epoch now."""
    epochs = {(state.topic, state.partition): state.leader_epoch for state in now}
    return sum(epochs.get((state.topic, state.partition), -1) > state.leader_epoch for state in before)


def combined_node_warnings(plan: PlanContext, place: FieldPath = ("kind",)) -> Iterator[Problem]:
    """Yield a warning if the controllers of the plan's cluster are brokers as well."""
    if plan.cluster is not None and plan.cluster.controllers == 0:
        sentence = "the controller is a broker as well, so the fault also takes that broker away from clients: "
        yield Problem(place, sentence + "set `controllers: 3` in the plan's `cluster` to separate the two effects")

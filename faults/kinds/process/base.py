"""Base classes of the faults on nodes, and functions that wait until a node is back in service."""

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
    ForRule,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    report_each_second,
)
from aftershock.faults.kinds.probing import unanswered_reason
from aftershock.faults.runtime.record import Targets, Undo, Verb, Witness
from aftershock.faults.runtime.waiting import run_to_completion, wait_until
from aftershock.faults.sections.document import Problem
from aftershock.faults.targets.roles import RoleText, brokers_of, resolve
from aftershock.faults.targets.values import BrokerId, BrokerState, PartitionState
from aftershock.faults.targets.world import World

RETURN_DEADLINE_MS = 60_000
EXITED_DEADLINE_MS = 5_000  # until the engine reports the exit of a killed or stopped node
_CONTAINER = "the container of node {} is {}, as the engine reports"
LAG_MAX = 2  # records: the active controller appends one each half a second, and a voter in sync lags by it
SESSION_TIMEOUT_MS = {"fast": 3_000, "production": 9_000}
"""``broker.session.timeout.ms`` of each profile, after which the controller fences a broker without heartbeats."""


class NodeInjection(Injection):
    """Injection that stops or pauses the node ``victim``, which led the partitions ``led`` before the fault.

    ``down`` is the state of the node's container during the fault, ``verb`` the verb of the undo, which brings the node
    back.
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
        await wait_for_state(self.victim, self.down, self.context, deadline_ms)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Read the state of the node's container each second, as a restart by the engine would shorten the fault."""
        await report_each_second(self.read_back, report, self.context.clock, until_us)

    async def read_back(self) -> Witness:
        is_down = await self.context.world.state(self.victim) == self.down
        teller = "the process of node {}, as its kernel tells, is {}" if self.context.world.has_pods() else _CONTAINER
        what = teller.format(self.victim, self.down)
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
    """Base of faults on one node; the injection records the partitions that the node leads before the fault."""

    family: ClassVar[Family] = "process"
    exposure_target = "brokers"
    drops_traffic = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("process", "brokers"),)
    for_rule: ClassVar[ForRule] = "needed"
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
    """Wait until the node's container is in the state ``due``; raise FaultError after the deadline."""

    async def mismatch() -> str | None:
        state = await context.world.state(node)
        return None if state == due else f"the container of node {node} should be {due} but is {state}"

    await wait_until(mismatch, context.clock, deadline_ms)


async def require_running(node: BrokerId, world: World) -> None:
    """Raise FaultError if a node is down or paused, because a further fault on the node would have no effect."""
    if (state := await world.state(node)) != "running":
        raise FaultError(f"node {node} is {state} already; start this fault after the heal of the other fault on it")


async def led_partitions(node: BrokerId, world: World) -> tuple[PartitionState, ...]:
    """Return the partitions that a node leads; raise FaultError if the node is down or paused."""
    await require_running(node, world)
    return tuple(state for state in await world.partitions() if state.leader == node)


async def node_duties(node: BrokerId, led: Iterable[PartitionState], world: World) -> dict[str, Any]:
    """Return a journal entry with the partitions that a node leads (by topic), its rack, and ``controller``.

    ``controller`` is True if the node is the active controller, and None during an election of the controller.
    """
    topics = Counter(state.topic for state in led)
    active = await active_controller(world)
    is_controller = None if active is None else active == node
    return {"leads": dict(sorted(topics.items())), "controller": is_controller, "rack": world.racks().get(node)}


async def active_controller(world: World) -> BrokerId | None:
    """Return the node id of the active controller; None during an election."""
    try:
        return await world.controller()
    except AftershockError:
        return None


async def wait_until_in_service(node: BrokerId, context: InjectionContext) -> None:
    """Wait until ``out_of_service_reason`` returns None for a node; raise FaultError after ``RETURN_DEADLINE_MS``."""
    try:
        await wait_until(lambda: out_of_service_reason(node, context), context.clock, RETURN_DEADLINE_MS)
    except FaultError as error:
        raise FaultError(f"node {node} did not come back into service: {error}; look at the node's log") from error


async def out_of_service_reason(node: BrokerId, context: InjectionContext) -> str | None:
    """Return None once a node answers, is registered and in the ISR of all its partitions, else the missing condition.

    The first condition is that the node answers a request, because registration and ISR show the state before the fault
    until the cluster notices that a node is gone.
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
    first = f"{missing[0].topic}/{missing[0].partition}" if missing else None
    return f"the node is out of the ISR of {len(missing)} partitions; the first is {first}" if missing else None


async def quorum_lag_reason(node: BrokerId, context: InjectionContext) -> str | None:
    """Return None once a node follows the metadata quorum, else the number of records that the node is behind."""
    lag = (await context.world.quorum_lag()).get(node)
    if lag is None:
        return f"the active controller knows no position of node {node} in the metadata log"
    return f"node {node} is {lag} records behind the active controller" if lag > LAG_MAX else None


def count_new_epochs(before: Iterable[PartitionState], now: Iterable[PartitionState]) -> int:
    """Return the number of partitions whose leader epoch is higher in ``now`` than in ``before``."""
    epochs = {(state.topic, state.partition): state.leader_epoch for state in now}
    return sum(epochs.get((state.topic, state.partition), -1) > state.leader_epoch for state in before)


def combined_node_warnings(plan: PlanContext, place: FieldPath = ("kind",)) -> Iterator[Problem]:
    """Yield a warning if the controllers of the plan's cluster are brokers as well."""
    if plan.cluster is not None and plan.cluster.controllers == 0:
        message = "the active controller is a broker too, so clients lose that broker: set `cluster: {controllers: 3}`"
        yield Problem(place, message)

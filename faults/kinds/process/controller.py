"""Faults ``kill_controller``, ``move_controller`` and ``fence_broker`` on controllers and on what they do to brokers.

If the controller's node is also a broker, clients lose a broker at the same time, and the two effects can't be
distinguished. After ``kill_controller`` the killed node stays dead until the heal. ``move_controller`` stops, pauses or
kills the active controller, because no request makes it resign, and brings its node back once another controller is
elected. With the parameter ``by=restart`` the controller resigns at its shutdown and the election is quick; with
``by=pause`` and ``by=kill`` the quorum must detect the loss first.

``fence_broker`` cuts a broker off from the controllers. It serves clients and followers as before until its broker
session times out; then the controller fences the broker and moves its leaderships, without its knowledge. Brokers share
the links of their rack, so all brokers of a rack are fenced together. Nodes of one rack have no link that could be cut,
so the active controller must be in another rack.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

from pydantic import Field

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Fault,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
)
from aftershock.faults.kinds.link.base import ToxicInjection, link_targets, toxic_on
from aftershock.faults.kinds.process.base import (
    RETURN_DEADLINE_MS,
    SESSION_TIMEOUT_MS,
    KillInjection,
    combined_node_warnings,
    quorum_lag_reason,
    require_running,
    wait_until_in_service,
)
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.undo import perform
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import format_duration
from aftershock.faults.targets.links import LinkStream
from aftershock.faults.targets.roles import RoleText, brokers_of, resolve
from aftershock.faults.targets.values import BrokerId, Quorum, Stream

ELECTED_DEADLINE_MS = 30_000  # 2.5 to 4 s on a quiet host
QUORUM_MIN = 3  # voters: the quorum survives the loss of a voter


class ControllerFault(Fault):
    """Base of faults on the node that is the active controller at the time of the injection."""

    family = "Kafka"
    exposure_target = "topics"
    exclusive_resources = (ExclusiveResource("process", "brokers"),)

    @abstractmethod
    def create_injection(self, context: InjectionContext, before: Quorum, targets: Targets) -> Injection: ...

    # the impact is unknown: a combined node is lost as a broker too, and no leader moves until the election

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        cluster = plan.cluster
        if cluster is not None and (cluster.controllers or len(cluster.broker_racks)) < QUORUM_MIN:
            message = "the cluster has fewer than 3 controllers, so no other can be elected: set `controllers: 3`"
            yield Problem(("kind",), message)

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        yield from combined_node_warnings(plan)

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        before = await context.world.quorum()
        await require_running(before.controller, context.world)
        topics = sorted({state.topic for state in await context.world.partitions()})
        rack = context.world.racks().get(before.controller)
        # every topic is a target: a cluster without a controller affects all clients
        roles = {"epoch": before.epoch, "rack": rack}
        return self.create_injection(context, before, Targets((before.controller,), topics=tuple(topics), roles=roles))


async def wait_for_new_controller(before: Quorum, context: InjectionContext) -> None:
    async def unchanged() -> str | None:
        now = await context.world.quorum()
        return None if _took_over(before, now) else f"node {now.controller} is still the active controller"

    await wait_until(unchanged, context.clock, ELECTED_DEADLINE_MS)


async def new_controller_witness(before: Quorum, context: InjectionContext) -> Witness:
    """Return a witness that another node is the active controller, at a higher epoch than before the fault."""
    now = await retry_refused(context.world.quorum, context.clock, READ_DEADLINE_MS)
    what = f"the controller epoch; the active controller was node {before.controller} and is node {now.controller}"
    return Witness(what, before.epoch + 1, now.epoch, "epoch", 1, _took_over(before, now))


async def wait_for_voter(node: BrokerId, context: InjectionContext) -> None:
    """Wait until a restarted or resumed controller is in service and follows the metadata quorum."""
    await wait_until_in_service(node, context)
    await wait_until(lambda: quorum_lag_reason(node, context), context.clock, RETURN_DEADLINE_MS)


def _took_over(before: Quorum, now: Quorum) -> bool:
    return now.controller != before.controller and now.epoch > before.epoch


class KillControllerInjection(KillInjection):
    """Kill of the active controller; ``before`` has its node id and controller epoch before the kill."""

    def __init__(self, context: InjectionContext, before: Quorum, targets: Targets) -> None:
        super().__init__(context, before.controller, {}, ())
        self.before = before
        self.targets = targets

    async def inject(self) -> None:
        await super().inject()
        await wait_for_new_controller(self.before, self.context)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report the new active controller at the beginning and the end of the fault, the killed node in between."""
        report(await new_controller_witness(self.before, self.context))
        await super().hold(until_us, report)
        if until_us is not None:
            report(await new_controller_witness(self.before, self.context))

    async def confirm_healed(self) -> None:
        await wait_for_voter(self.victim, self.context)


class KillController(ControllerFault):
    """Kill the active controller with SIGKILL, and start its node at the end."""

    band = Band("#843c39", "kill controller")
    proof = "Another node is the active controller. The engine reports the killed node as exited (read each second)."
    remedy = "The killed node is started and follows the quorum. The new controller stays active."
    for_rule = "needed"
    allowance_ms = 10_000  # a node is back in service 3-7 s after `docker start`

    drawn = ("{}",)
    kind: Literal["kill_controller"] = "kill_controller"

    def create_injection(self, context: InjectionContext, before: Quorum, targets: Targets) -> Injection:
        return KillControllerInjection(context, before, targets)


By = Literal["restart", "pause", "kill"]


@dataclass(eq=False)
class MoveControllerInjection(Injection):
    """Move of the active controller to another node; ``before`` has its node id and epoch before the fault."""

    before: Quorum
    by: By

    async def inject(self) -> None:
        """Take the active controller down, wait until another node is elected, and bring the former controller back."""
        world = self.context.world
        take_away = {"restart": world.stop, "pause": world.pause, "kill": world.kill}[self.by]
        await run_to_completion(take_away(self.before.controller))
        await wait_for_new_controller(self.before, self.context)
        await run_to_completion(perform(self.undo, self.context.world, self.context.clock))
        await wait_for_voter(self.before.controller, self.context)

    async def hold(self, _until_us: int | None, report: Report) -> None:
        report(await new_controller_witness(self.before, self.context))


class MoveController(ControllerFault):
    """Make another node the active controller."""

    band = Band("#393b79", "move controller")
    proof = "Another node is the active controller, at a higher controller epoch."
    remedy = "The former controller is back in service. If the fault is interrupted, its node is started or resumed."
    for_rule = "refused"
    allowance_ms = 12_000  # an election takes 1-4 s, a restart 3-7 s

    drawn = ("{by: [restart, pause, kill]}",)
    kind: Literal["move_controller"] = "move_controller"
    by: Annotated[By, Field(description="how the active controller is made to lose its role")] = "restart"

    def create_injection(self, context: InjectionContext, before: Quorum, targets: Targets) -> Injection:
        undo = Undo("resume" if self.by == "pause" else "start", {"broker": before.controller})
        return MoveControllerInjection(context, targets, before, self.by, undo=undo)


FENCED_DEADLINE_MS = 30_000
READ_US = 300_000  # upper bound for reading the registered brokers


@dataclass(eq=False)
class FenceInjection(ToxicInjection):
    """Cut of the links from one rack, whose brokers are ``fenced``, to the controllers."""

    measuring_us = READ_US
    fenced: frozenset[BrokerId]

    async def inject(self) -> None:
        await super().inject()

        async def not_fenced() -> str | None:
            unfenced = await self._unfenced()
            return f"brokers {sorted(unfenced)} are not fenced" if unfenced else None

        await wait_until(not_fenced, self.context.clock, FENCED_DEADLINE_MS)

    async def measure(self) -> Witness:
        unfenced = await retry_refused(self._unfenced, self.context.clock, READ_DEADLINE_MS)
        count = len(self.fenced)
        what = "brokers that the controllers have fenced, according to the metadata of the other brokers"
        return Witness(what, count, count - len(unfenced), "brokers", count, not unfenced)

    async def confirm_healed(self) -> None:
        """Wait until the metadata of all other brokers shows the brokers as unfenced, and they are in every ISR."""

        async def still_fenced() -> str | None:
            fenced = self.fenced - await self._unfenced()
            return f"brokers {sorted(fenced)} are still fenced" if fenced else None

        await wait_until(still_fenced, self.context.clock, RETURN_DEADLINE_MS)
        for broker in sorted(self.fenced):
            await wait_until_in_service(broker, self.context)

    async def _unfenced(self) -> frozenset[BrokerId]:
        """Return those brokers of the rack that the metadata of brokers outside the rack shows as unfenced."""
        return self.fenced & await self.context.world.registered(excluding=self.fenced)


class FenceBroker(Fault):
    """Cut the links between a broker's rack and the controllers, so that the broker is fenced until the end."""

    family = "Kafka"
    band = Band("#637939", "fence")
    proof = "Metadata of the other brokers shows the broker as fenced. Toxiproxy lists the toxics (read each second)."
    remedy = "The toxics are removed. The broker is registered and unfenced, and is in the ISR of all its partitions."
    exposure_target = "brokers"
    exclusive_resources = (ExclusiveResource("registration", "brokers"),)
    for_rule = "needed"
    allowance_ms = 6_000  # it is unfenced 1-3 s after the cut is healed

    drawn = ("{}",)
    kind: Literal["fence_broker"] = "fence_broker"
    broker: RoleText | None = Field(
        default=None, description="the broker to fence; by default the first broker that can be fenced"
    )

    # the impact is unknown: until the broker is fenced, it leads and can't shrink an ISR; then it serves no client

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        timeout_ms = SESSION_TIMEOUT_MS[plan.cluster.profile] if plan.cluster else 0
        if self.for_ is not None and self.for_ <= timeout_ms:
            timeout = format_duration(timeout_ms)
            message = f"a broker is fenced after {timeout} without a heartbeat: set `for` to more than {timeout}"
            yield Problem(("for",), message)
        yield from combined_node_warnings(plan)

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        world = context.world
        racks, controller = world.racks(), await world.controller()
        if self.broker is None:
            broker = next((node for node in sorted(brokers_of(world)) if racks[node] != racks[controller]), controller)
        else:
            broker = await resolve(self.broker, world, draws, "broker")
        if broker not in brokers_of(world):
            raise FaultError(f"node {broker} is not a broker, so it can't be fenced; name a broker")
        if racks[controller] == racks[broker]:
            raise FaultError(
                f"broker {broker} and the active controller, node {controller}, are both in rack {racks[broker]}, and"
                " nodes of one rack have no link to cut: use `move_controller` first, or omit `broker`"
            )
        rack = racks[broker]
        links = [link for link in world.links() if link.channel == "controller" and link.source_rack == rack]
        streams = [LinkStream(link, stream) for link in links for stream in get_args(Stream)]
        toxics = {stream: toxic_on(stream, context.fault, "timeout", {"timeout": 0}) for stream in streams}
        roles = {"asked": self.broker or "any broker that can be fenced", "broker": broker, "rack": rack}
        fenced = frozenset(node for node in brokers_of(world) if racks[node] == rack)
        targets = replace(link_targets(streams, roles), brokers=tuple(sorted(fenced)))
        return FenceInjection(context, targets, toxics, fenced)

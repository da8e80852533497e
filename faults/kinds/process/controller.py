"""Faults ``kill_controller`` and ``move_controller`` on the active controller.

If the controller's node is also a broker, clients lose a broker at the same time, and the two effects can't be
distinguished. After ``kill_controller`` the killed node stays dead until the heal. ``move_controller`` stops, pauses or
kills the active controller, because no request makes it resign, and brings its node back once another controller is
elected. With the parameter ``by=restart`` the controller resigns at its shutdown and the election is quick; with
``by=pause`` and ``by=kill`` the quorum must detect the loss first.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

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
from aftershock.faults.kinds.process.base import (
    RETURN_DEADLINE_MS,
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
from aftershock.faults.targets.values import BrokerId, Quorum

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

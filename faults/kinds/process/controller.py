"""The active controller as a target: who it is, that another took over, and what a plan should know about it.

There is no request that makes a controller resign, so the one in office must be taken away. Where nodes are combined,
clients lose a broker with it, and nobody can tell the two apart.

``kill_controller``: SIGKILL the active controller; another must be elected, and it stays dead until the heal.

``move_controller``: the active controller is taken away until another is elected, and is back at once.

``by: restart`` shuts it down, so that it resigns and the election is quick; ``pause`` and ``kill`` tell nobody, and the
quorum must notice first. Who rules afterwards stays: which voter that is was chance before as well.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Family,
    Fault,
    FieldPath,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    TargetKind,
)
from aftershock.faults.kinds.process.base import RETURN_DEADLINE_MS, out_of_service_reason, require_running
from aftershock.faults.kinds.process.kill import KillInjection
from aftershock.faults.plan.document import Problem
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.undo import perform
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.values import BrokerId, Quorum

ELECTED_DEADLINE_MS = 30_000  # 2.5 to 4 s on a quiet host
SESSION_TIMEOUT_MS = {"fast": 3_000, "production": 9_000}
"""``broker.session.timeout.ms`` of each profile: how long the controller waits before it fences a silent broker."""
LAG_MAX = 1  # the leader appends a record each half a second, and whoever follows has it at once
_QUORUM_MIN = 3  # voters, for one of them to be spared


class ControllerFault(Fault):
    """A fault on the active controller, whoever that is then."""

    family: ClassVar[Family] = "Kafka"
    exposure_target: ClassVar[TargetKind] = "topics"
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("process", "brokers"),)

    @abstractmethod
    def injection(self, context: InjectionContext, before: Quorum, targets: Targets) -> Injection:
        """The strike on the one that rules now."""

    def impact(self) -> Impact:
        """The node, where it is a broker; and nobody moves leaders until another rules."""
        return "unknown"

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """A quorum of one."""
        yield from quorum_size_problems(plan)

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        """Combined nodes."""
        yield from combined_node_warnings(plan)

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """FaultError if it doesn't run, as far as the engine knows."""
        before = await context.world.quorum()
        await require_running(before.controller, context.world)
        return self.injection(context, before, await _ruled_by(before, context.world))


def quorum_size_problems(plan: PlanContext) -> Iterator[Problem]:
    """A quorum that has nobody to take over."""
    cluster = plan.cluster
    if cluster is not None and (cluster.controllers or len(cluster.broker_racks)) < _QUORUM_MIN:
        sentence = "nobody can take over from the only controller: say `controllers: 3` in the plan's `cluster`"
        yield Problem(("kind",), sentence)


def combined_node_warnings(plan: PlanContext, place: FieldPath = ("kind",)) -> Iterator[Problem]:
    """Controllers that are brokers as well."""
    if plan.cluster is not None and plan.cluster.controllers == 0:
        sentence = "the controller is a broker as well here, and what clients meet may be the loss of that broker: "
        yield Problem(place, sentence + "say `controllers: 3` in the plan's `cluster` to tell the two apart")


async def wait_for_new_controller(before: Quorum, context: InjectionContext) -> None:
    """Return once another node is the active controller; FaultError after a deadline."""
    await wait_until(lambda: _still(before, context), context.clock, ELECTED_DEADLINE_MS)


async def new_controller_witness(before: Quorum, context: InjectionContext) -> Witness:
    """Whether another node is the active controller, at a higher epoch."""
    now = await retry_refused(context.world.quorum, context.clock, READ_DEADLINE_MS)
    what = f"the epoch of the active controller, now node {now.controller} and before node {before.controller}"
    return Witness(what, before.epoch + 1, now.epoch, "epoch", 1, _took_over(before, now))


async def _still(before: Quorum, context: InjectionContext) -> str | None:
    now = await context.world.quorum()
    return None if _took_over(before, now) else f"node {now.controller} is still the active controller"


async def wait_for_voter(node: BrokerId, context: InjectionContext) -> None:
    """Return once a voter that was away is in service and follows the quorum; FaultError after a deadline."""
    await wait_until(lambda: out_of_service_reason(node, context), context.clock, RETURN_DEADLINE_MS)
    await wait_until(lambda: _behind(node, context), context.clock, RETURN_DEADLINE_MS)


async def _behind(node: BrokerId, context: InjectionContext) -> str | None:
    lag = (await context.world.quorum_lag()).get(node)
    return None if lag is not None and lag <= LAG_MAX else f"node {node} is {lag} records behind the quorum's leader"


def _took_over(before: Quorum, now: Quorum) -> bool:
    return now.controller != before.controller and now.epoch > before.epoch


async def _ruled_by(quorum: Quorum, world: World) -> Targets:
    """The controller, and every topic: whoever uses one meets its loss."""
    topics = sorted({state.topic for state in await world.partitions()})
    rack = world.racks().get(quorum.controller)
    return Targets((quorum.controller,), topics=tuple(topics), roles={"epoch": quorum.epoch, "rack": rack})


class KillControllerInjection(KillInjection):
    """One controller, killed. ``before``: that it ruled, and since when."""

    def __init__(self, context: InjectionContext, before: Quorum, targets: Targets) -> None:
        super().__init__(context, before.controller, {}, ())
        self.before = before
        self.targets = targets

    async def inject(self) -> None:
        """Kill it, and see another elected."""
        await super().inject()
        await wait_for_new_controller(self.before, self.context)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Another rules, now and at the end; and it stays dead."""
        report(await new_controller_witness(self.before, self.context))
        await super().hold(until_us, report)
        if until_us is not None:
            report(await new_controller_witness(self.before, self.context))

    async def confirm_healed(self) -> None:
        """It is in service, and follows the quorum."""
        await wait_for_voter(self.victim, self.context)


class KillController(ControllerFault):
    """SIGKILL the active controller for a while."""

    band: ClassVar[Band] = Band("#843c39", "kill controller")
    proof: ClassVar[str] = "another node is the active controller, at a higher epoch; the container's state each second"
    remedy: ClassVar[str] = "the node is started and in service again; another stays the controller"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 10_000  # a node is back in service 3-7 s after `docker start`

    kind: Literal["kill_controller"] = "kill_controller"

    def injection(self, context: InjectionContext, before: Quorum, targets: Targets) -> Injection:
        """On whoever rules now."""
        return KillControllerInjection(context, before, targets)


By = Literal["restart", "pause", "kill"]


class MoveControllerInjection(Injection):
    """One change of controllers. ``before``: who ruled."""

    def __init__(self, context: InjectionContext, before: Quorum, by: By, targets: Targets) -> None:
        self.context = context
        self.before = before
        self.by = by
        self.targets = targets
        self.undo = Undo("resume" if by == "pause" else "start", {"broker": before.controller})

    async def inject(self) -> None:
        """Take it away, see another elected, and bring it back."""
        await run_to_completion(self._take_away())
        await wait_for_new_controller(self.before, self.context)
        await run_to_completion(perform(self.undo, self.context.world, self.context.clock))
        await wait_for_voter(self.before.controller, self.context)

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Another rules."""
        report(await new_controller_witness(self.before, self.context))

    async def _take_away(self) -> None:
        world = self.context.world
        await {"restart": world.stop, "pause": world.pause, "kill": world.kill}[self.by](self.before.controller)


class MoveController(ControllerFault):
    """Make another node the active controller."""

    band: ClassVar[Band] = Band("#393b79", "move controller")
    proof: ClassVar[str] = "another node is the active controller, at a higher epoch of the quorum"
    remedy: ClassVar[str] = "the action ends with the node in service; interrupted, the node is started or thawed"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 12_000  # an election takes 1-4 s, a restart 3-7 s

    kind: Literal["move_controller"] = "move_controller"
    by: Annotated[By, Field(description="how the one in office is taken away")] = "restart"

    def injection(self, context: InjectionContext, before: Quorum, targets: Targets) -> Injection:
        """On whoever rules now."""
        return MoveControllerInjection(context, before, self.by, targets)

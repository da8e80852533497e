"""``kill_controller`` and ``move_controller``: faults on the active controller.

No request makes a controller resign, so its process must be stopped. With combined nodes, clients lose a broker at the
same time, and the two effects can't be distinguished.

``kill_controller`` kills the active controller with SIGKILL. Another one must be elected, and the node stays dead until
the heal. ``move_controller`` takes the active controller away until another is elected, and brings it back at once:
``by: restart`` shuts it down, so it resigns and the election is quick; with ``pause`` and ``kill`` the quorum must
detect the loss first. The new controller stays active, because the choice of the controller was arbitrary before the
fault as well.
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
from aftershock.faults.targets.values import BrokerId, Quorum

ELECTED_DEADLINE_MS = 30_000  # 2.5 to 4 s on a quiet host
SESSION_TIMEOUT_MS = {"fast": 3_000, "production": 9_000}
"""``broker.session.timeout.ms`` of each profile: after it the controller fences a silent broker."""
LAG_MAX = 1  # the leader appends a record each half a second, and followers fetch it at once
_QUORUM_MIN = 3  # voters, so that one may be lost


class ControllerFault(Fault):
    """Base of faults on the node that is the active controller at that time."""

    family: ClassVar[Family] = "Kafka"
    exposure_target: ClassVar[TargetKind] = "topics"
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("process", "brokers"),)

    @abstractmethod
    def create_injection(self, context: InjectionContext, before: Quorum, targets: Targets) -> Injection:
        """Create the injection on the current controller."""

    def impact(self) -> Impact:
        """Unknown: a combined node is lost as a broker too, and no leader moves until the election."""
        return "unknown"

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """Yield a problem for a quorum with a single voter."""
        yield from quorum_size_problems(plan)

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        """Yield a warning for combined nodes."""
        yield from combined_node_warnings(plan)

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """Resolve the active controller; raise FaultError if its container doesn't run."""
        before = await context.world.quorum()
        await require_running(before.controller, context.world)
        topics = sorted({state.topic for state in await context.world.partitions()})
        rack = context.world.racks().get(before.controller)
        # every topic is a target: all clients are affected while there is no controller
        roles = {"epoch": before.epoch, "rack": rack}
        return self.create_injection(context, before, Targets((before.controller,), topics=tuple(topics), roles=roles))


def quorum_size_problems(plan: PlanContext) -> Iterator[Problem]:
    """Yield a problem if no other voter could become the controller."""
    cluster = plan.cluster
    if cluster is not None and (cluster.controllers or len(cluster.broker_racks)) < _QUORUM_MIN:
        sentence = "no other controller can take over from the only one: set `controllers: 3` in the plan's `cluster`"
        yield Problem(("kind",), sentence)


def combined_node_warnings(plan: PlanContext, place: FieldPath = ("kind",)) -> Iterator[Problem]:
    """Yield a warning if controllers are brokers as well."""
    if plan.cluster is not None and plan.cluster.controllers == 0:
        sentence = "the controller is a broker as well, so clients may be affected by the loss of that broker: "
        yield Problem(place, sentence + "set `controllers: 3` in the plan's `cluster` to tell the two effects apart")


async def wait_for_new_controller(before: Quorum, context: InjectionContext) -> None:
    """Return once another node is the active controller; raise FaultError after a deadline."""

    async def unchanged() -> str | None:
        now = await context.world.quorum()
        return None if _took_over(before, now) else f"node {now.controller} is still the active controller"

    await wait_until(unchanged, context.clock, ELECTED_DEADLINE_MS)


async def new_controller_witness(before: Quorum, context: InjectionContext) -> Witness:
    """Witness that another node is the active controller, at a higher epoch."""
    now = await retry_refused(context.world.quorum, context.clock, READ_DEADLINE_MS)
    what = f"the epoch of the active controller, now node {now.controller} and before node {before.controller}"
    return Witness(what, before.epoch + 1, now.epoch, "epoch", 1, _took_over(before, now))


async def wait_for_voter(node: BrokerId, context: InjectionContext) -> None:
    """Return once a voter that was away is in service and follows the quorum; raise FaultError after a deadline."""

    async def behind() -> str | None:
        lag = (await context.world.quorum_lag()).get(node)
        if lag is not None and lag <= LAG_MAX:
            return None
        return f"node {node} is {lag} records behind the quorum's leader"

    await wait_until(lambda: out_of_service_reason(node, context), context.clock, RETURN_DEADLINE_MS)
    await wait_until(behind, context.clock, RETURN_DEADLINE_MS)


def _took_over(before: Quorum, now: Quorum) -> bool:
    return now.controller != before.controller and now.epoch > before.epoch


class KillControllerInjection(KillInjection):
    """Kill of the active controller. ``before``: controller and epoch before."""

    def __init__(self, context: InjectionContext, before: Quorum, targets: Targets) -> None:
        super().__init__(context, before.controller, {}, ())
        self.before = before
        self.targets = targets

    async def inject(self) -> None:
        """Kill it, and wait until another is elected."""
        await super().inject()
        await wait_for_new_controller(self.before, self.context)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report the new controller, now and at the end, and the dead node in between."""
        report(await new_controller_witness(self.before, self.context))
        await super().hold(until_us, report)
        if until_us is not None:
            report(await new_controller_witness(self.before, self.context))

    async def confirm_healed(self) -> None:
        """Wait until the node is in service and follows the quorum."""
        await wait_for_voter(self.victim, self.context)


class KillController(ControllerFault):
    """SIGKILL the active controller for a while."""

    band: ClassVar[Band] = Band("#843c39", "kill controller")
    proof: ClassVar[str] = "another node is the active controller, at a higher epoch; the container's state each second"
    remedy: ClassVar[str] = "the node is started and in service again; another stays the controller"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 10_000  # a node is back in service 3-7 s after `docker start`

    kind: Literal["kill_controller"] = "kill_controller"

    def create_injection(self, context: InjectionContext, before: Quorum, targets: Targets) -> Injection:
        """See `ControllerFault`."""
        return KillControllerInjection(context, before, targets)


By = Literal["restart", "pause", "kill"]


class MoveControllerInjection(Injection):
    """Change of the active controller. ``before``: controller and epoch before."""

    def __init__(self, context: InjectionContext, before: Quorum, by: By, targets: Targets) -> None:
        self.context = context
        self.before = before
        self.by = by
        self.targets = targets
        self.undo = Undo("resume" if by == "pause" else "start", {"broker": before.controller})

    async def inject(self) -> None:
        """Stop, pause or kill it, wait until another is elected, and bring it back."""
        world = self.context.world
        take_away = {"restart": world.stop, "pause": world.pause, "kill": world.kill}[self.by]
        await run_to_completion(take_away(self.before.controller))
        await wait_for_new_controller(self.before, self.context)
        await run_to_completion(perform(self.undo, self.context.world, self.context.clock))
        await wait_for_voter(self.before.controller, self.context)

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report the new controller."""
        report(await new_controller_witness(self.before, self.context))


class MoveController(ControllerFault):
    """Make another node the active controller."""

    band: ClassVar[Band] = Band("#393b79", "move controller")
    proof: ClassVar[str] = "another node is the active controller, at a higher epoch of the quorum"
    remedy: ClassVar[str] = "the action ends with the node in service; interrupted, the node is started or resumed"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 12_000  # an election takes 1-4 s, a restart 3-7 s

    kind: Literal["move_controller"] = "move_controller"
    by: Annotated[By, Field(description="how the active controller is taken away")] = "restart"

    def create_injection(self, context: InjectionContext, before: Quorum, targets: Targets) -> Injection:
        """See `ControllerFault`."""
        return MoveControllerInjection(context, before, self.by, targets)

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
    Among,
    Band,
    Draws,
    Family,
    Fault,
    Place,
    Report,
    Rest,
    Scene,
    Stake,
    Strike,
    Takes,
)
from aftershock.faults.kinds.process.base import BACK_DEADLINE_MS, in_service, require_running
from aftershock.faults.kinds.process.kill import KillStrike
from aftershock.faults.plan.document import Problem
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.undo import perform
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, patiently, to_the_end, until
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
    met_by: ClassVar[Among] = "topics"
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("process", "brokers"),)

    @abstractmethod
    def strike(self, scene: Scene, before: Quorum, targets: Targets) -> Strike:
        """The strike on the one that rules now."""

    def takes(self) -> Takes:
        """The node, where it is a broker; and nobody moves leaders until another rules."""
        return "unknown"

    def problems(self, rest: Rest) -> Iterator[Problem]:
        """A quorum of one."""
        yield from lonely(rest)

    def surprises(self, rest: Rest) -> Iterator[Problem]:
        """Combined nodes."""
        yield from confounded(rest)

    async def aim(self, scene: Scene, _draws: Draws) -> Strike:
        """FaultError if it doesn't run, as far as the engine knows."""
        before = await scene.world.quorum()
        await require_running(before.controller, scene.world)
        return self.strike(scene, before, await _ruled_by(before, scene.world))


def lonely(rest: Rest) -> Iterator[Problem]:
    """A quorum that has nobody to take over."""
    cluster = rest.cluster
    if cluster is not None and (cluster.controllers or len(cluster.broker_racks)) < _QUORUM_MIN:
        sentence = "nobody can take over from the only controller: say `controllers: 3` in the plan's `cluster`"
        yield Problem(("kind",), sentence)


def confounded(rest: Rest, place: Place = ("kind",)) -> Iterator[Problem]:
    """Controllers that are brokers as well."""
    if rest.cluster is not None and rest.cluster.controllers == 0:
        sentence = "the controller is a broker as well here, and what clients meet may be the loss of that broker: "
        yield Problem(place, sentence + "say `controllers: 3` in the plan's `cluster` to tell the two apart")


async def another_elected(before: Quorum, scene: Scene) -> None:
    """Return once another node is the active controller; FaultError after a deadline."""
    await until(lambda: _still(before, scene), scene.clock, ELECTED_DEADLINE_MS)


async def another_rules(before: Quorum, scene: Scene) -> Witness:
    """Whether another node is the active controller, at a higher epoch."""
    now = await patiently(scene.world.quorum, scene.clock, READ_DEADLINE_MS)
    what = f"the epoch of the active controller, now node {now.controller} and before node {before.controller}"
    return Witness(what, before.epoch + 1, now.epoch, "epoch", 1, _took_over(before, now))


async def _still(before: Quorum, scene: Scene) -> str | None:
    now = await scene.world.quorum()
    return None if _took_over(before, now) else f"node {now.controller} is still the active controller"


async def back_among_voters(node: BrokerId, scene: Scene) -> None:
    """Return once a voter that was away is in service and follows the quorum; FaultError after a deadline."""
    await until(lambda: in_service(node, scene), scene.clock, BACK_DEADLINE_MS)
    await until(lambda: _behind(node, scene), scene.clock, BACK_DEADLINE_MS)


async def _behind(node: BrokerId, scene: Scene) -> str | None:
    lag = (await scene.world.quorum_lag()).get(node)
    return None if lag is not None and lag <= LAG_MAX else f"node {node} is {lag} records behind the quorum's leader"


def _took_over(before: Quorum, now: Quorum) -> bool:
    return now.controller != before.controller and now.epoch > before.epoch


async def _ruled_by(quorum: Quorum, world: World) -> Targets:
    """The controller, and every topic: whoever uses one meets its loss."""
    topics = sorted({state.topic for state in await world.partitions()})
    rack = world.racks().get(quorum.controller)
    return Targets((quorum.controller,), topics=tuple(topics), roles={"epoch": quorum.epoch, "rack": rack})


class KillControllerStrike(KillStrike):
    """One controller, killed. ``before``: that it ruled, and since when."""

    def __init__(self, scene: Scene, before: Quorum, targets: Targets) -> None:
        super().__init__(scene, before.controller, {}, ())
        self.before = before
        self.targets = targets

    async def inject(self) -> None:
        """Kill it, and see another elected."""
        await super().inject()
        await another_elected(self.before, self.scene)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Another rules, now and at the end; and it stays dead."""
        report(await another_rules(self.before, self.scene))
        await super().hold(until_us, report)
        if until_us is not None:
            report(await another_rules(self.before, self.scene))

    async def confirm_healed(self) -> None:
        """It is in service, and follows the quorum."""
        await back_among_voters(self.victim, self.scene)


class KillController(ControllerFault):
    """SIGKILL the active controller for a while."""

    band: ClassVar[Band] = Band("#843c39", "kill controller")
    proof: ClassVar[str] = "another node is the active controller, at a higher epoch; the container's state each second"
    remedy: ClassVar[str] = "the node is started and in service again; another stays the controller"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 10_000  # a node is back in service 3-7 s after `docker start`

    kind: Literal["kill_controller"] = "kill_controller"

    def strike(self, scene: Scene, before: Quorum, targets: Targets) -> Strike:
        """On whoever rules now."""
        return KillControllerStrike(scene, before, targets)


By = Literal["restart", "pause", "kill"]


class MoveControllerStrike(Strike):
    """One change of controllers. ``before``: who ruled."""

    def __init__(self, scene: Scene, before: Quorum, by: By, targets: Targets) -> None:
        self.scene = scene
        self.before = before
        self.by = by
        self.targets = targets
        self.undo = Undo("resume" if by == "pause" else "start", {"broker": before.controller})

    async def inject(self) -> None:
        """Take it away, see another elected, and bring it back."""
        await to_the_end(self._take_away())
        await another_elected(self.before, self.scene)
        await to_the_end(perform(self.undo, self.scene.world, self.scene.clock))
        await back_among_voters(self.before.controller, self.scene)

    async def hold(self, until_us: int | None, report: Report) -> None:  # noqa: ARG002 -- the action is over
        """Another rules."""
        report(await another_rules(self.before, self.scene))

    async def _take_away(self) -> None:
        world = self.scene.world
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

    def strike(self, scene: Scene, before: Quorum, targets: Targets) -> Strike:
        """On whoever rules now."""
        return MoveControllerStrike(scene, before, self.by, targets)

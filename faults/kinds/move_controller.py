"""``move_controller``: the active controller is taken away until another is elected, and is back at once.

``by: restart`` shuts it down, so that it resigns and the election is quick; ``pause`` and ``kill`` tell nobody, and the
quorum must notice first. Who rules afterwards stays: which voter that is was chance before as well.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.fault import Among, Band, Draws, Family, Fault, Report, Rest, Scene, Stake, Strike, Takes
from aftershock.faults.kinds.controllers import another_elected, another_rules, back_among_voters, confounded, lonely
from aftershock.faults.kinds.victim import require_running
from aftershock.faults.problem import Problem
from aftershock.faults.record import Targets, Undo
from aftershock.faults.undo import perform
from aftershock.faults.values import Quorum
from aftershock.faults.waiting import to_the_end
from aftershock.faults.world import World

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


class MoveController(Fault):
    """Make another node the active controller."""

    family: ClassVar[Family] = "Kafka"
    band: ClassVar[Band] = Band("#393b79", "move controller")
    proof: ClassVar[str] = "another node is the active controller, at a higher epoch of the quorum"
    remedy: ClassVar[str] = "the action ends with the node in service; interrupted, the node is started or thawed"
    met_by: ClassVar[Among] = "topics"
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("process", "brokers"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 12_000  # an election takes 1-4 s, a restart 3-7 s

    kind: Literal["move_controller"] = "move_controller"
    by: Annotated[By, Field(description="how the one in office is taken away")] = "restart"

    def takes(self) -> Takes:
        """The node, where it is a broker; and nobody moves leaders meanwhile."""
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
        return MoveControllerStrike(scene, before, self.by, await ruled_by(before, scene.world))


async def ruled_by(quorum: Quorum, world: World) -> Targets:
    """The controller, and every topic: whoever uses one meets its loss."""
    topics = sorted({state.topic for state in await world.partitions()})
    rack = world.racks().get(quorum.controller)
    return Targets((quorum.controller,), topics=tuple(topics), roles={"epoch": quorum.epoch, "rack": rack})

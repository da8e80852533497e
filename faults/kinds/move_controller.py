"""``move_controller``: the active controller is taken away until another is elected, and is back at once.

``by: restart`` shuts it down, so that it resigns and the election is quick; ``pause`` and ``kill`` tell nobody, and the
quorum must notice first. Who rules afterwards stays: which voter that is was chance before as well.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.fault import Band, Report, Scene, Strike
from aftershock.faults.record import Targets, Undo
from aftershock.faults.strikes.controllers import ControllerFault, another_elected, another_rules, back_among_voters
from aftershock.faults.undo import perform
from aftershock.faults.values import Quorum
from aftershock.faults.waiting import to_the_end

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

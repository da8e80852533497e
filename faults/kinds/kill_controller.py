"""``kill_controller``: SIGKILL the active controller; another must be elected, and it stays dead until the heal."""

from typing import ClassVar, Literal

from aftershock.faults.fault import Band, Report, Scene, Strike
from aftershock.faults.kinds.kill import KillStrike
from aftershock.faults.record import Targets
from aftershock.faults.strikes.controllers import ControllerFault, another_elected, another_rules, back_among_voters
from aftershock.faults.values import Quorum


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

"""``kill_controller``: SIGKILL the active controller; another must be elected, and it stays dead until the heal."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from aftershock.faults.fault import Among, Band, Draws, Family, Fault, Report, Rest, Scene, Stake, Strike, Takes
from aftershock.faults.kinds.controllers import another_elected, another_rules, back_among_voters, confounded, lonely
from aftershock.faults.kinds.kill import KillStrike
from aftershock.faults.kinds.move_controller import ruled_by
from aftershock.faults.kinds.victim import require_running
from aftershock.faults.problem import Problem
from aftershock.faults.record import Targets
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


class KillController(Fault):
    """SIGKILL the active controller for a while."""

    family: ClassVar[Family] = "Kafka"
    band: ClassVar[Band] = Band("#843c39", "kill controller")
    proof: ClassVar[str] = "another node is the active controller, at a higher epoch; the container's state each second"
    remedy: ClassVar[str] = "the node is started and in service again; another stays the controller"
    met_by: ClassVar[Among] = "topics"
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("process", "brokers"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 10_000  # a node is back in service 3-7 s after `docker start`

    kind: Literal["kill_controller"] = "kill_controller"

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
        return KillControllerStrike(scene, before, await ruled_by(before, scene.world))

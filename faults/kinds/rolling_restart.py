"""``rolling_restart``: every broker in turn is shut down the polite way and started again.

The restarts are the whole action, so there is no ``for``. While it is under way its undo is to start every broker.
"""

from typing import ClassVar, Literal

from aftershock.faults.fault import Band, Draws, Family, Report, Scene, Strike
from aftershock.faults.record import all_of
from aftershock.faults.roles import brokers_of
from aftershock.faults.strikes.rolling import RollingFault, RollingStrike, in_turn, starts
from aftershock.faults.values import BrokerId
from aftershock.faults.waiting import to_the_end, until

EXITED_DEADLINE_MS = 5_000  # after the engine said that it has stopped


class RollingRestartStrike(RollingStrike):
    """All brokers, stopped and started."""

    async def take_down(self, node: BrokerId) -> None:
        """Stop it and see it down."""
        await to_the_end(self.scene.world.stop(node))
        await until(lambda: self._not_exited(node), self.scene.clock, EXITED_DEADLINE_MS)

    async def bring_back(self, node: BrokerId) -> None:
        """Start it."""
        await to_the_end(self.scene.world.start(node))

    async def hold(self, until_us: int | None, report: Report) -> None:  # noqa: ARG002 -- the action is over
        """What the turns were."""
        for witness in self.seen():
            report(witness)

    async def _not_exited(self, node: BrokerId) -> str | None:
        state = await self.scene.world.state(node)
        return None if state == "exited" else f"node {node} should be exited but its container is {state}"


class RollingRestart(RollingFault):
    """Restart every broker, one after the other."""

    family: ClassVar[Family] = "process"
    band: ClassVar[Band] = Band("#1f9ea8", "rolling restart")
    proof: ClassVar[str] = "each seen exited and then back in service, one at a time; leader epochs that grew"
    remedy: ClassVar[str] = "the action ends with all brokers in service; interrupted, each is started"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 60_000  # for each broker a stop of 1-3 s, and 3-7 s until it is in service

    kind: Literal["rolling_restart"] = "rolling_restart"

    async def aim(self, scene: Scene, draws: Draws) -> Strike:  # noqa: ARG002 -- nothing is drawn
        """FaultError if a broker doesn't run."""
        order = await in_turn(scene.world, sorted(brokers_of(scene.world)))
        strike = RollingRestartStrike(scene, order, self.pause, {"asked": "every broker", "turns": list(order)})
        strike.undo = all_of(starts(order))
        return strike

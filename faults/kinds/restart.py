"""``restart``: shut one node down the polite way and start it again at once, as a rolling upgrade does.

The restart is the whole action, so there is no ``for``: it is done when the node is back in service, and then nothing
is left to undo. While it is under way, its undo is to start the node.
"""

from typing import ClassVar, Literal

from aftershock.faults.fault import Band, Family, Report, Takes
from aftershock.faults.kinds.stop import StopStrike
from aftershock.faults.record import Witness
from aftershock.faults.strikes.victim import NodeFault, NodeStrike, in_service
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently, to_the_end


class RestartStrike(StopStrike):
    """One node, stopped and started."""

    was_down = False

    async def inject(self) -> None:
        """Stop it, see it down, start it, and see it back in service."""
        await super().inject()
        self.was_down = True
        await to_the_end(self.scene.world.start(self.victim))
        await self.see_back()

    async def hold(self, until_us: int | None, report: Report) -> None:  # noqa: ARG002 -- the action is over
        """It was down and is back, and what it led has had another leader since."""
        report(await self._back())
        if self.led:
            report(await self._epochs())

    async def _back(self) -> Witness:
        missing = await in_service(self.victim, self.scene)
        ok = self.was_down and missing is None
        what = f"node {self.victim} was seen exited and then back in service"
        return Witness(what, asked=1, observed=float(ok), unit="restarts", n=1, ok=ok)

    async def _epochs(self) -> Witness:
        states = await patiently(self.scene.world.partitions, self.scene.clock, READ_DEADLINE_MS)
        epochs = {(state.topic, state.partition): state.leader_epoch for state in states}
        grown = sum(epochs.get((state.topic, state.partition), -1) > state.leader_epoch for state in self.led)
        what = f"partitions that node {self.victim} led whose leader epoch has grown"
        asked = len(self.led)
        return Witness(what, asked, grown, "partitions", len(states), ok=grown == asked)


class Restart(NodeFault):
    """Shut a node down and start it again at once."""

    family: ClassVar[Family] = "process"
    band: ClassVar[Band] = Band("#17becf", "restart")
    proof: ClassVar[str] = "the node seen exited and then back in service; leader epochs that grew"
    remedy: ClassVar[str] = "the action ends with the node in service; interrupted, the node is started"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 10_000  # a stop of 1-3 s, and 3-7 s until it is in service
    strike: ClassVar[type[NodeStrike]] = RestartStrike
    told: ClassVar[bool] = True

    kind: Literal["restart"] = "restart"

    def takes(self) -> Takes:
        """The victim."""
        return "nodes"

"""``stop``: shut one node down the polite way; its container stays down until the heal starts it again.

SIGTERM makes a broker hand its leaderships over before it goes, so clients should hardly notice: what they do notice
is theirs. A node that had to be killed after all was not stopped, and the fault fails.
"""

from typing import ClassVar, Literal

from aftershock.faults.fault import Band, Family, Report, Takes
from aftershock.faults.record import Verb, Witness
from aftershock.faults.strikes.victim import NodeFault, NodeStrike
from aftershock.faults.values import BrokerState
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently, to_the_end

EXITED_DEADLINE_MS = 5_000  # after the engine said that it has stopped


class StopStrike(NodeStrike):
    """One node, stopped."""

    down: ClassVar[BrokerState] = "exited"
    verb: ClassVar[Verb] = "start"

    async def inject(self) -> None:
        """Stop it and see it down."""
        await to_the_end(self.scene.world.stop(self.victim))
        await self.see_down(EXITED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Its leaders must have left before it did, and it must stay down."""
        if self.led:
            report(await self._still_led())
        await super().hold(until_us, report)

    async def _still_led(self) -> Witness:
        """Right after the exit: a node that just died would lead until its session runs out."""
        now = await patiently(self.scene.world.partitions, self.scene.clock, READ_DEADLINE_MS)
        still = sum(state.leader == self.victim for state in now)
        what = f"partitions that node {self.victim} still led when it had exited, of {len(self.led)} that it led before"
        return Witness(what, asked=0, observed=still, unit="partitions", n=len(self.led), ok=not still)


class Stop(NodeFault):
    """Shut a node down for a while."""

    family: ClassVar[Family] = "process"
    band: ClassVar[Band] = Band("#bcbd22", "stop")
    proof: ClassVar[str] = "no partition still led when it had exited; the container's state, read back each second"
    remedy: ClassVar[str] = "the node is started, and back in the ISR of all it holds"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 8_000  # a broker is back in service 3-7 s after `docker start`
    strike: ClassVar[type[NodeStrike]] = StopStrike
    told: ClassVar[bool] = True

    kind: Literal["stop"] = "stop"

    def takes(self) -> Takes:
        """The victim."""
        return "nodes"

"""``pause``: freeze one node with its sockets open, so that nothing is refused and nothing is answered.

The difference from ``kill`` is what clients see: no reset, only silence until their own timeouts end it.
"""

from typing import ClassVar, Literal

from aftershock.faults.kinds.fault import READ_BACK_US, Band, Family, Impact, Report
from aftershock.faults.kinds.process.base import NodeFault, NodeInjection
from aftershock.faults.runtime.probing import probe
from aftershock.faults.runtime.record import Verb, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.targets.values import BrokerState, Link


class PauseInjection(NodeInjection):
    """One node, frozen."""

    down: ClassVar[BrokerState] = "paused"
    verb: ClassVar[Verb] = "resume"

    async def inject(self) -> None:
        """Freeze it."""
        await run_to_completion(self.context.world.pause(self.victim))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """It must read back as paused all the time, and once be seen not to answer."""
        report(await self.read_back())
        link = self._way_in()
        if link is not None:
            silent = await self._silent(link)
            if until_us is None or self.context.clock.now_us() < until_us:
                report(silent)
        while until_us is not None and (now_us := self.context.clock.now_us()) < until_us:
            await self.context.clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))
            report(await self.read_back())

    def _way_in(self) -> Link | None:
        ways = (link for link in self.context.world.links() if link.channel == "client" and link.broker == self.victim)
        return next(ways, None)

    async def _silent(self, link: Link) -> Witness:
        answered = await probe(link, self.context) == "answered"
        what = f"a request through {link.proxy} gets no answer"
        return Witness(what, asked=0, observed=float(answered), unit="answers", n=1, ok=not answered)


class Pause(NodeFault):
    """Freeze a node for a while."""

    family: ClassVar[Family] = "process"
    band: ClassVar[Band] = Band("#9467bd", "pause")
    proof: ClassVar[str] = "the container's state, read back each second, and no answer from the node"
    remedy: ClassVar[str] = "the node is thawed, and back in the ISR of all it holds"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 4_000  # a thawed broker must first learn that it was fenced
    injection: ClassVar[type[NodeInjection]] = PauseInjection

    kind: Literal["pause"] = "pause"

    def impact(self) -> Impact:
        """The victim."""
        return "nodes"

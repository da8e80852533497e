"""``pause``: pause one node with its sockets open, so that connections stay open and no request is answered.

Unlike with ``kill``, clients see no reset, only silence until their own timeouts expire.
"""

from typing import ClassVar, Literal

from aftershock.faults.kinds.fault import READ_BACK_US, Band, Family, Impact, Report
from aftershock.faults.kinds.process.base import NodeFault, NodeInjection
from aftershock.faults.runtime.probing import probe
from aftershock.faults.runtime.record import Verb, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.targets.values import BrokerState


class PauseInjection(NodeInjection):
    """Pause of one node."""

    down: ClassVar[BrokerState] = "paused"
    verb: ClassVar[Verb] = "resume"

    async def inject(self) -> None:
        """Pause it."""
        await run_to_completion(self.context.world.pause(self.victim))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report each second that it is paused, and once that it doesn't answer."""
        report(await self.read_back())
        links = (link for link in self.context.world.links() if link.channel == "client" and link.broker == self.victim)
        if (link := next(links, None)) is not None:
            answered = await probe(link, self.context) == "answered"
            what = f"a request through {link.proxy} gets no answer"
            if until_us is None or self.context.clock.now_us() < until_us:
                report(Witness(what, asked=0, observed=float(answered), unit="answers", n=1, ok=not answered))
        while until_us is not None and (now_us := self.context.clock.now_us()) < until_us:
            await self.context.clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))
            report(await self.read_back())


class Pause(NodeFault):
    """Pause a node for a while."""

    family: ClassVar[Family] = "process"
    band: ClassVar[Band] = Band("#9467bd", "pause")
    proof: ClassVar[str] = "the container's state, read back each second, and no answer from the node"
    remedy: ClassVar[str] = "the node is resumed, and back in the ISR of all it holds"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 4_000  # a resumed broker must first learn that it was fenced
    injection: ClassVar[type[NodeInjection]] = PauseInjection

    kind: Literal["pause"] = "pause"

    def impact(self) -> Impact:
        """Return that the victim is lost."""
        return "nodes"

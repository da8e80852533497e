"""``stop``: shut one node down the polite way; its container stays down until the heal starts it again.

SIGTERM makes a broker hand its leaderships over before it goes, so clients should hardly notice: what they do notice
is theirs. A node that had to be killed after all was not stopped, and the fault fails.

``restart``: shut one node down the polite way and start it again at once, as a rolling upgrade does.

The restart is the whole action, so there is no ``for``: it is done when the node is back in service, and then nothing
is left to undo. While it is under way, its undo is to start the node.
"""

from typing import ClassVar, Literal

from aftershock.faults.kinds.fault import Band, Family, Impact, Report
from aftershock.faults.kinds.process.base import NodeFault, NodeInjection, out_of_service_reason
from aftershock.faults.runtime.record import Verb, Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion
from aftershock.faults.targets.values import BrokerState

EXITED_DEADLINE_MS = 5_000  # after the engine said that it has stopped


class StopInjection(NodeInjection):
    """One node, stopped."""

    down: ClassVar[BrokerState] = "exited"
    verb: ClassVar[Verb] = "start"

    async def inject(self) -> None:
        """Stop it and see it down."""
        await run_to_completion(self.context.world.stop(self.victim))
        await self.see_down(EXITED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Its leaders must have left before it did, and it must stay down."""
        if self.led:
            report(await self._still_led())
        await super().hold(until_us, report)

    async def _still_led(self) -> Witness:
        """Right after the exit: a node that just died would lead until its session runs out."""
        now = await retry_refused(self.context.world.partitions, self.context.clock, READ_DEADLINE_MS)
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
    injection: ClassVar[type[NodeInjection]] = StopInjection
    closes_connections: ClassVar[bool] = True

    kind: Literal["stop"] = "stop"

    def impact(self) -> Impact:
        """The victim."""
        return "nodes"


class RestartInjection(StopInjection):
    """One node, stopped and started."""

    was_down = False

    async def inject(self) -> None:
        """Stop it, see it down, start it, and see it back in service."""
        await super().inject()
        self.was_down = True
        await run_to_completion(self.context.world.start(self.victim))
        await self.see_back()

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """It was down and is back, and what it led has had another leader since."""
        report(await self._back())
        if self.led:
            report(await self._epochs())

    async def _back(self) -> Witness:
        missing = await out_of_service_reason(self.victim, self.context)
        ok = self.was_down and missing is None
        what = f"node {self.victim} was seen exited and then back in service"
        return Witness(what, asked=1, observed=float(ok), unit="restarts", n=1, ok=ok)

    async def _epochs(self) -> Witness:
        states = await retry_refused(self.context.world.partitions, self.context.clock, READ_DEADLINE_MS)
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
    injection: ClassVar[type[NodeInjection]] = RestartInjection
    closes_connections: ClassVar[bool] = True

    kind: Literal["restart"] = "restart"

    def impact(self) -> Impact:
        """The victim."""
        return "nodes"

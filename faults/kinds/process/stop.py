"""``stop`` and ``restart``: shut one node down cleanly with SIGTERM.

``stop``: the container stays down until the heal starts it again. On SIGTERM a broker hands its leaderships over before
it exits, so clients should hardly be affected; any visible effect is the client's own. A node that had to be killed was
not stopped, and the fault fails.

``restart``: the node is started again at once, as in a rolling upgrade. The restart is the whole action, so there is no
``for``: it ends when the node is back in service, and then nothing is left to undo. Until then, the undo starts it.
"""

from typing import ClassVar, Literal

from aftershock.faults.kinds.fault import Band, Family, Impact, Report
from aftershock.faults.kinds.process.base import NodeFault, NodeInjection, out_of_service_reason
from aftershock.faults.runtime.record import Verb, Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion
from aftershock.faults.targets.values import BrokerState

EXITED_DEADLINE_MS = 5_000  # after the engine reported the stop


class StopInjection(NodeInjection):
    """Clean stop of one node."""

    down: ClassVar[BrokerState] = "exited"
    verb: ClassVar[Verb] = "start"

    async def inject(self) -> None:
        """Stop it and wait until it is down."""
        await run_to_completion(self.context.world.stop(self.victim))
        await self.see_down(EXITED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report that its leaderships had moved before its exit, and each second that it is down."""
        if self.led:
            report(await self._still_led())
        await super().hold(until_us, report)

    async def _still_led(self) -> Witness:
        """Count right after the exit: a node that just died would lead until its session times out."""
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
        """Return that the victim is lost."""
        return "nodes"


class RestartInjection(StopInjection):
    """Clean stop and start of one node."""

    was_down = False

    async def inject(self) -> None:
        """Stop it, wait until it is down, start it, and wait until it is in service."""
        await super().inject()
        self.was_down = True
        await run_to_completion(self.context.world.start(self.victim))
        await self.see_back()

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report that it was down and is back, and that its partitions had another leader since."""
        missing = await out_of_service_reason(self.victim, self.context)
        ok = self.was_down and missing is None
        what = f"node {self.victim} was seen exited and then back in service"
        report(Witness(what, asked=1, observed=float(ok), unit="restarts", n=1, ok=ok))
        if self.led:
            report(await self._leader_epochs())

    async def _leader_epochs(self) -> Witness:
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
        """Return that the victim is lost."""
        return "nodes"

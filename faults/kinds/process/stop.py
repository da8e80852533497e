"""Faults ``stop``, ``restart`` and ``pause``, which shut one node down cleanly, or freeze it.

``stop`` and ``restart`` send SIGTERM. A broker hands its leaderships over before it exits, so clients should hardly
notice a ``stop``. A ``restart`` ends when the node is back in service. ``pause`` freezes a node's processes;
connections stay open and no request is answered, so clients see only silence until their own timeouts expire.
"""

from typing import Literal

from aftershock.faults.kinds.fault import READ_BACK_US, Band, Impact, Report
from aftershock.faults.kinds.probing import probe
from aftershock.faults.kinds.process.base import (
    EXITED_DEADLINE_MS,
    NodeFault,
    NodeInjection,
    count_new_epochs,
    out_of_service_reason,
    wait_until_in_service,
)
from aftershock.faults.runtime.record import Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion


class StopInjection(NodeInjection):
    down = "exited"
    verb = "start"

    async def inject(self) -> None:
        await run_to_completion(self.context.world.stop(self.victim))
        await self.wait_until_down(EXITED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report that the node leads no partition right after its exit, and each second that its container is exited.

        A killed node would lead until its broker session times out, so a leader that remains shows an unclean stop.
        """
        if self.led:
            states = await retry_refused(self.context.world.partitions, self.context.clock, READ_DEADLINE_MS)
            still = sum(state.leader == self.victim for state in states)
            what = f"partitions that node {self.victim} still led after its exit, of {len(self.led)} that it led before"
            report(Witness(what, asked=0, observed=still, unit="partitions", n=len(self.led), ok=not still))
        await super().hold(until_us, report)


class Stop(NodeFault):
    """Shut a node down with SIGTERM, and start it at the end."""

    band = Band("#bcbd22", "stop")
    proof = "The node leads no partition after its exit. The engine reports the container as exited (read each second)."
    remedy = "The node is started, and is in the ISR of all its partitions again."
    allowance_ms = 8_000  # a broker is back in service 3-7 s after `docker start`
    injection = StopInjection
    closes_connections = True

    drawn = ("{broker: BROKER}",)
    kind: Literal["stop"] = "stop"

    def impact(self) -> Impact:
        return "nodes"


class RestartInjection(StopInjection):
    was_down = False

    async def inject(self) -> None:
        await super().inject()
        self.was_down = True
        await run_to_completion(self.context.world.start(self.victim))
        await wait_until_in_service(self.victim, self.context)

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report that the node exited and is in service, and that the leader epochs of its partitions have grown."""
        ok = self.was_down and await out_of_service_reason(self.victim, self.context) is None
        what = f"node {self.victim} exited and came back into service"
        report(Witness(what, asked=1, observed=float(ok), unit="restarts", n=1, ok=ok))
        if self.led:
            states = await retry_refused(self.context.world.partitions, self.context.clock, READ_DEADLINE_MS)
            grown = count_new_epochs(self.led, states)
            what = f"partitions led by node {self.victim} before the restart whose leader epoch has grown"
            report(Witness(what, len(self.led), grown, "partitions", len(states), ok=grown == len(self.led)))


class Restart(NodeFault):
    """Shut a node down with SIGTERM and start it again at once."""

    band = Band("#17becf", "restart")
    proof = "The node exited and came back into service. The leader epoch of each partition that it led has grown."
    remedy = "The node is back in service. If the fault is interrupted, the node is started."
    for_rule = "refused"
    allowance_ms = 10_000  # a stop of 1-3 s, and 3-7 s until it is in service
    injection = RestartInjection
    closes_connections = True

    drawn = ("{broker: BROKER}",)
    kind: Literal["restart"] = "restart"

    def impact(self) -> Impact:
        return "nodes"


class PauseInjection(NodeInjection):
    down = "paused"
    verb = "resume"

    async def inject(self) -> None:
        await run_to_completion(self.context.world.pause(self.victim))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report each second that the node's container is paused, and once that the node doesn't answer a request."""
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
    """Freeze a node's processes; connections stay open and no request is answered."""

    band = Band("#9467bd", "pause")
    proof = "The engine reports the container as paused (read each second). The node does not answer a request."
    remedy = "The node is resumed, and is in the ISR of all its partitions again."
    allowance_ms = 4_000  # a resumed broker must first learn that it was fenced
    injection = PauseInjection

    drawn = ("{broker: BROKER}",)
    kind: Literal["pause"] = "pause"

    def impact(self) -> Impact:
        return "nodes"

"""Faults ``stop``, ``restart``, ``pause`` and ``gc_pause``, which shut one node down cleanly, or make it stand still.

``stop`` and ``restart`` send SIGTERM. A broker hands its leaderships over before it exits, so clients should hardly
notice a ``stop``. A ``restart`` ends when the node is back in service. ``pause`` freezes a node's processes;
connections stay open and no request is answered, so clients see only silence until their own timeouts expire.

In a ``gc_pause``, garbage collections stop the JVM of one node again and again, for drawn times. No thread of the
broker runs in such a stop, so it sends no heartbeat, and the controller fences it if the stop outlasts the broker's
session (``broker.session.timeout.ms``). The kernel goes on: connections stay open, and the node's host acknowledges
what clients send. Unlike with ``pause``, the process is not frozen, and the JVM's log of safepoints shows why it stood
still. An agent of ours in the JVM (``images/tools/gc.c``, JVM TI) forces collections and keeps the JVM at their
safepoints.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import READ_BACK_US, Band, Draws, Injection, InjectionContext, Report
from aftershock.faults.kinds.probing import probe
from aftershock.faults.kinds.process.base import (
    EXITED_DEADLINE_MS,
    NodeFault,
    NodeInjection,
    count_new_epochs,
    led_partitions,
    node_duties,
    out_of_service_reason,
    wait_until_in_service,
)
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion
from aftershock.faults.sections.units import Duration
from aftershock.faults.targets.roles import resolve
from aftershock.faults.targets.values import BrokerId, GcPauses


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
    unavailable = "nodes"
    proof = "The node leads no partition after its exit. The engine reports the container as exited (read each second)."
    remedy = "The node is started, and is in the ISR of all its partitions again."
    allowance_ms = 8_000  # a broker is back in service 3-7 s after `docker start`
    injection = StopInjection
    closes_connections = True

    drawn = ("{broker: BROKER}",)
    kind: Literal["stop"] = "stop"


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
    unavailable = "nodes"
    proof = "The node exited and came back into service. The leader epoch of each partition that it led has grown."
    remedy = "The node is back in service. If the fault is interrupted, the node is started."
    for_rule = "refused"
    allowance_ms = 10_000  # a stop of 1-3 s, and 3-7 s until it is in service
    injection = RestartInjection
    closes_connections = True

    drawn = ("{broker: BROKER}",)
    kind: Literal["restart"] = "restart"


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
    unavailable = "nodes"
    proof = "The engine reports the container as paused (read each second). The node does not answer a request."
    remedy = "The node is resumed, and is in the ISR of all its partitions again."
    allowance_ms = 4_000  # a resumed broker must first learn that it was fenced
    injection = PauseInjection

    drawn = ("{broker: BROKER}",)
    kind: Literal["pause"] = "pause"


RUNNING_MS_MIN = 100  # between two stops
_SETTLE_MS = 1_000  # for the end of a collection and its line in the log


@dataclass(eq=False)
class GcPauseInjection(Injection):
    """Stops of the JVM of node ``victim``; ``before`` is the number of collections in its log before the fault."""

    victim: BrokerId
    pauses: GcPauses
    before: int

    async def inject(self) -> None:
        await run_to_completion(self.context.world.set_gc_pauses(self.victim, self.pauses))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report the stops that the JVM has logged, after the first stop and at the end of the fault."""
        clock = self.context.clock
        first_us = clock.now_us() + (self.pauses.greatest_ms + _SETTLE_MS) * 1000
        await clock.sleep_until_us(first_us)
        report(await self._read_back())
        if until_us is not None and until_us > clock.now_us():
            await clock.sleep_until_us(until_us)
            report(await self._read_back())

    async def _read_back(self) -> Witness:
        world, least_ms = self.context.world, self.pauses.least_ms
        stops_ms = (await world.gc_stops_ms(self.victim))[self.before :]
        count = sum(stop_ms >= least_ms for stop_ms in stops_ms)
        running = await world.state(self.victim) == "running"
        what = f"garbage collections of node {self.victim} that took {least_ms} ms or longer, by the log of its JVM"
        return Witness(what, 1, count, "collections", len(stops_ms), ok=count > 0 and running)

    async def confirm_healed(self) -> None:
        await wait_until_in_service(self.victim, self.context)


class GcPause(NodeFault):
    """Stop a node's JVM by garbage collections, again and again."""

    band = Band("#756bb1", "GC pauses")
    unavailable = "nodes"
    proof = "The broker's JVM logs collections that took as long. Its container runs meanwhile."
    remedy = "No further collection is forced, and the node is in the ISR of all its partitions again."
    drops_traffic = False
    needs = ("gc_pauses",)
    allowance_ms = 8_000  # a broker that was fenced returns to its ISRs in seconds

    kind: Literal["gc_pause"] = "gc_pause"
    stop: Annotated[Duration, Field(ge=100, le=60_000, description="how long a collection stops the JVM")]
    jitter: Annotated[Duration, Field(le=30_000, description="largest deviation from `stop`")] = 0
    every: Annotated[Duration, Field(le=120_000, description="time from the start of a stop to that of the next")] = (
        2_000
    )

    @model_validator(mode="after")
    def _runs_between(self) -> Self:
        if self.jitter >= self.stop:
            raise ValueError("`jitter` must be less than `stop`, so that each collection stops the JVM")
        if self.every < self.stop + self.jitter + RUNNING_MS_MIN:
            raise ValueError(
                f"the JVM must run for {RUNNING_MS_MIN}ms between two stops: raise `every`, or lower `stop` and "
                "`jitter`; for a node that never runs, use `pause`"
            )
        return self

    def draw(self, source: Any) -> dict[str, Any]:
        return {**super().draw(source), "seed": source.getrandbits(32)}

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        world = context.world
        if not world.has_gc_pauses():
            raise FaultError(
                "no agent of this cluster's JVMs can stop them: launch it with `cluster: {gc_pauses: true}`"
            )
        victim = await resolve(self.broker, world, draws, "broker")
        led = await led_partitions(victim, world)
        roles: dict[str, Any] = {"asked": self.broker, **await node_duties(victim, led, world)}
        pauses = GcPauses(self.every, self.stop - self.jitter, self.stop + self.jitter, draws["seed"])
        undo = Undo("stop_gc_pauses", {"broker": victim})
        targets = Targets(brokers=(victim,), roles=roles)
        return GcPauseInjection(context, targets, victim, pauses, len(await world.gc_stops_ms(victim)), undo=undo)

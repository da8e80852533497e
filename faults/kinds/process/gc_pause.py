"""Fault ``gc_pause``, in which garbage collections stop the JVM of one node again and again, for drawn times.

No thread of the broker runs in such a stop, so it sends no heartbeat, and the controller fences it if the stop outlasts
the broker's session (``broker.session.timeout.ms``). The kernel goes on: connections stay open, and the node's host
acknowledges what clients send. Unlike with ``pause``, the process is not frozen, and the JVM's log of safepoints shows
why it stood still.

An agent of ours in the JVM (``images/tools/gc.c``, JVM TI) forces collections and keeps the JVM at their safepoints.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import Band, Draws, Impact, Injection, InjectionContext, Report
from aftershock.faults.kinds.process.base import NodeFault, led_partitions, node_duties, wait_until_in_service
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.sections.units import Duration
from aftershock.faults.targets.roles import resolve
from aftershock.faults.targets.values import BrokerId, GcPauses

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

    def impact(self) -> Impact:
        return "nodes"

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

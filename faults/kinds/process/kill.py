"""``kill`` and ``crash_loop``: SIGKILL one node, once or repeatedly.

``kill``: the container stays dead until the heal starts it again. The victim's duties are recorded (partitions it led,
whether it was the active controller), because recovery from the death of a combined node takes seconds longer when the
quorum must elect first (5.8 s against 3 s, measured).

``crash_loop``: the node is killed, started at once, and killed again each time it is back in service, until the end. It
acts like a supervisor with a broker that can't stay up: leaders move away and back repeatedly. ``every`` is the minimum
time between two deaths. The undo starts the node.
"""

import asyncio
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from aftershock.faults.kinds.fault import Band, Family, Impact, InjectionContext, Report
from aftershock.faults.kinds.process.base import NodeFault, NodeInjection
from aftershock.faults.plan.units import Duration
from aftershock.faults.runtime.record import Verb, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.targets.values import BrokerId, BrokerState, PartitionState

DEAD_DEADLINE_MS = 5_000


class KillInjection(NodeInjection):
    """Kill of one node."""

    down: ClassVar[BrokerState] = "exited"
    verb: ClassVar[Verb] = "start"

    async def inject(self) -> None:
        """Kill it and wait until it is dead."""
        await run_to_completion(self.context.world.kill(self.victim))
        await self.see_down(DEAD_DEADLINE_MS)


class Kill(NodeFault):
    """SIGKILL a node for a while."""

    family: ClassVar[Family] = "process"
    band: ClassVar[Band] = Band("#d62728", "kill")
    proof: ClassVar[str] = "the container's state, read back each second"
    remedy: ClassVar[str] = "the node is started, and back in the ISR of all it holds"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 8_000  # a broker is back in service 3-7 s after `docker start`
    injection: ClassVar[type[NodeInjection]] = KillInjection
    closes_connections: ClassVar[bool] = True

    kind: Literal["kill"] = "kill"

    def impact(self) -> Impact:
        """Return that the victim is lost."""
        return "nodes"


DEATHS_MIN = 2  # a single death is a kill


class CrashLoopInjection(KillInjection):
    """Repeated kills of one node.

    ``deaths``, ``returns``: how often the node was seen dead, and how often back in service.
    """

    def __init__(
        self,
        context: InjectionContext,
        victim: BrokerId,
        roles: dict[str, Any],
        led: tuple[PartitionState, ...],
        every_ms: int,
    ) -> None:
        super().__init__(context, victim, roles, led)
        self.every_us = every_ms * 1000
        self.deaths = 0
        self.returns = 0

    async def inject(self) -> None:
        """Kill it and count the death."""
        await super().inject()
        self.deaths += 1

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report each death as a witness, and the number of deaths at the end."""
        if self.deaths:  # a rehearsal kills no node
            await self._loop_until(until_us or self.context.clock.now_us(), report)
        what = f"deaths of node {self.victim}, each seen, with a return into every ISR between two"
        ok = self.deaths >= DEATHS_MIN and self.returns >= self.deaths - 1
        report(Witness(what, DEATHS_MIN, self.deaths, "deaths", self.deaths + self.returns, ok))

    async def _loop_until(self, until_us: int, report: Report) -> None:
        """Run the loop until then; an exception of the loop is raised."""
        looping = asyncio.create_task(self._loop(report))
        alarm = asyncio.create_task(self.context.clock.sleep_until_us(until_us))
        try:
            await asyncio.wait({looping, alarm}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
            looping.cancel()
            with suppress(asyncio.CancelledError):
                await looping

    async def _loop(self, report: Report) -> None:
        clock = self.context.clock
        while True:
            died_us = clock.now_us()
            report(await self.read_back())
            await run_to_completion(self.context.world.start(self.victim))
            await self.see_back()
            self.returns += 1
            await clock.sleep_until_us(died_us + self.every_us)
            await self.inject()


class CrashLoop(NodeFault):
    """SIGKILL a node again each time it is back in service."""

    family: ClassVar[Family] = "process"
    band: ClassVar[Band] = Band("#e7298a", "crash loop")
    proof: ClassVar[str] = "the container's state at each death; registration and every ISR at each return"
    remedy: ClassVar[str] = "the node is started, and back in the ISR of all it holds"
    closes_connections: ClassVar[bool] = True
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 8_000  # a broker is back in service 3-7 s after `docker start`

    kind: Literal["crash_loop"] = "crash_loop"
    every: Annotated[Duration, Field(ge=1_000, le=600_000)] = 5_000

    def injection_on(
        self, context: InjectionContext, victim: BrokerId, roles: dict[str, Any], led: tuple[PartitionState, ...]
    ) -> NodeInjection:
        """See `NodeFault`."""
        return CrashLoopInjection(context, victim, roles, led, self.every)

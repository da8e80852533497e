"""``doze``: a node is paused for a moment, repeatedly, and never for so long that the controller fences it.

The kind uses public classes only: the base classes of a node's fault, the world's ``pause`` and ``resume``, and the
undo ``resume``, so that any process can heal the fault, even a process without this package.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from aftershock.faults.kinds.fault import Band, Draws, ExclusiveResource, Injection, InjectionContext, Report
from aftershock.faults.kinds.process.base import NodeFault, NodeInjection
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.sections.units import Duration
from aftershock.faults.targets.roles import resolve
from aftershock.faults.targets.values import BrokerId

SEEN_DEADLINE_MS = 2_000


class DozeInjection(NodeInjection):
    """One node, paused for ``nap_ms`` every ``every_ms``. A rehearsal doesn't inject, so it pauses nothing."""

    down = "paused"
    verb = "resume"

    def __init__(
        self, context: InjectionContext, victim: BrokerId, roles: dict[str, Any], nap_ms: int, every_ms: int
    ) -> None:
        super().__init__(context, victim, roles, ())
        self.nap_us, self.every_us = nap_ms * 1000, every_ms * 1000
        self.asleep = False

    async def inject(self) -> None:
        """Start the first pause."""
        await run_to_completion(self.context.world.pause(self.victim))
        await self.wait_until_down(SEEN_DEADLINE_MS)
        self.asleep = True

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Read the state back in the middle of each pause; the undo ends the last one."""
        clock = self.context.clock
        while True:
            began_us = clock.now_us()
            await clock.sleep_until_us(began_us + self.nap_us // 2)
            report(await self.read_back())
            await clock.sleep_until_us(began_us + self.nap_us)
            if until_us is None or began_us + self.every_us >= until_us or not self.asleep:
                return
            await run_to_completion(self.context.world.resume(self.victim))
            await clock.sleep_until_us(began_us + self.every_us)
            await self.inject()


class Doze(NodeFault):
    """Pause a node for a moment, repeatedly."""

    family = "process"
    band = Band("#9edae5", "doze")
    proof = "The engine reports the container as paused during each nap."
    remedy = "The node is resumed, and is in the ISR of all its partitions again."
    drops_traffic = False
    exclusive_resources = (ExclusiveResource("process", "brokers"),)
    for_rule = "needed"
    allowance_ms = 8_000
    injection = DozeInjection

    kind: Literal["doze"] = "doze"
    nap: Annotated[Duration, Field(ge=100, le=2_000, description="duration of each pause")] = 500
    every: Annotated[Duration, Field(ge=200, description="time from the start of a pause to the next start")] = 1_000

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Resolve the node; FaultError if there is none."""
        victim = await resolve(self.broker, context.world, draws, "broker")
        return DozeInjection(context, victim, {"asked": self.broker}, self.nap, self.every)

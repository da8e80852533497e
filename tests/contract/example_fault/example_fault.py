"""``doze``: a node is paused for a moment, over and over, and never for so long that it is fenced.

It uses public classes only: the base classes of a node's fault, the world's ``pause`` and ``resume``, and the undo
``resume``, so that any process can heal it, even one without this package.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from aftershock.faults.kinds.fault import Band, Draws, ExclusiveResource, Family, Injection, InjectionContext, Report
from aftershock.faults.kinds.process.base import NodeFault, NodeInjection
from aftershock.faults.plan.units import Duration
from aftershock.faults.runtime.record import Verb
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.targets.roles import resolve
from aftershock.faults.targets.values import BrokerId, BrokerState

SEEN_DEADLINE_MS = 2_000


class DozeInjection(NodeInjection):
    """One node, paused for ``nap_ms`` every ``every_ms``. A rehearsal doesn't inject, so it pauses nothing."""

    down: ClassVar[BrokerState] = "paused"
    verb: ClassVar[Verb] = "resume"

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
    """Freeze a node for a moment, over and over."""

    family: ClassVar[Family] = "process"
    band: ClassVar[Band] = Band("#9edae5", "doze")
    proof: ClassVar[str] = "the container's state, read back in each nap"
    remedy: ClassVar[str] = "the node goes on, and is back in the ISR of all it holds"
    drops_traffic: ClassVar[bool] = False
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("process", "brokers"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 8_000
    injection: ClassVar[type[NodeInjection]] = DozeInjection

    kind: Literal["doze"] = "doze"
    nap: Annotated[Duration, Field(ge=100, le=2_000, description="how long it sleeps each time")] = 500
    every: Annotated[Duration, Field(ge=200, description="from one nap to the next")] = 1_000

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Resolve the node; FaultError if there is none."""
        victim = await resolve(self.broker, context.world, draws, "broker")
        return DozeInjection(context, victim, {"asked": self.broker}, self.nap, self.every)

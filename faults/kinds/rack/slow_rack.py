"""``slow_rack``: everything that crosses a rack's border is late, on every channel, as if the rack were far away.

It affects the replication and controller traffic of the rack's brokers and the traffic of its clients to other racks,
in both directions or in one. Traffic within the rack is as fast as before. The delay may follow a schedule; schedule
and witness are those of ``latency`` (``link/latency.py``).
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    Family,
    FieldPath,
    Injection,
    InjectionContext,
    PlanContext,
    TargetKind,
)
from aftershock.faults.kinds.link.base import described
from aftershock.faults.kinds.link.latency import DelayedFault
from aftershock.faults.plan.document import Problem
from aftershock.faults.targets.links import Ways, links_of_rack


class SlowRack(DelayedFault):
    """Delay what flows into and out of a rack."""

    family: ClassVar[Family] = "rack and group"
    band: ClassVar[Band] = Band("#ffbb78", "slow_rack")
    proof: ClassVar[str] = "probes through each link, slower by the delay asked for; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed"
    exposure_target: ClassVar[TargetKind] = "links"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["slow_rack"] = "slow_rack"
    rack: str
    ways: Annotated[Ways, Field(description="the delayed traffic: into the rack, out of it, or both")] = "both"

    def racks(self) -> dict[FieldPath, str]:
        """Return the rack."""
        return {("rack",): self.rack}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """Yield the problems of the schedule, and a rack without another one."""
        yield from super().problems(plan)
        if plan.cluster is not None and tuple(plan.cluster.racks) == (self.rack,):
            yield Problem(("rack",), "the cluster has one rack, and traffic within a rack is not delayed: add a rack")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Resolve the links across the rack's border; raise FaultError if there are none."""
        streams = await links_of_rack(self.rack, self.ways, context.world)
        roles = await described(f"rack {self.rack}", streams, context.world)
        return await self.injection_on(context, streams, roles, draws)

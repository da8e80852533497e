"""``slow_rack``: all that crosses a rack's border is late, on every channel, as if the rack were far away.

Its brokers' fetches, the quorum's and its clients' way to other racks: both directions, or one. What stays inside the
rack is as quick as before. The delay may follow a schedule (``delayed.py``).
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.kinds.fault import Among, Band, Draws, Family, Place, Rest, Scene, Strike
from aftershock.faults.kinds.link.base import described
from aftershock.faults.kinds.link.latency import DelayedFault
from aftershock.faults.plan.document import Problem
from aftershock.faults.targets.links import Ways, around


class SlowRack(DelayedFault):
    """Delay what flows into and out of a rack."""

    family: ClassVar[Family] = "rack and group"
    band: ClassVar[Band] = Band("#ffbb78", "slow_rack")
    proof: ClassVar[str] = "probes through each link, slower by the delay asked for; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed"
    met_by: ClassVar[Among] = "links"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["slow_rack"] = "slow_rack"
    rack: str
    ways: Annotated[Ways, Field(description="what is late: what flows into the rack, out of it, or both")] = "both"

    def racks(self) -> dict[Place, str]:
        """The rack."""
        return {("rack",): self.rack}

    def problems(self, rest: Rest) -> Iterator[Problem]:
        """A rack that is alone has nothing to be far from."""
        yield from super().problems(rest)
        if rest.cluster is not None and tuple(rest.cluster.racks) == (self.rack,):
            yield Problem(("rack",), "the cluster has one rack, and inside of it nothing is slowed: add a rack")

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if the rack has no link to another."""
        stretches = await around(self.rack, self.ways, scene.world)
        roles = await described(f"rack {self.rack}", stretches, scene.world)
        return await self.strike(scene, stretches, roles, draws)

"""``latency``: delay what flows over some links, always alike or by a schedule (``delayed.py``)."""

from typing import ClassVar, Literal

from aftershock.faults.fault import Band, Draws, Scene, Strike
from aftershock.faults.links import resolve
from aftershock.faults.strikes.delayed import DelayedFault
from aftershock.faults.strikes.linked import LinkFault


class Latency(DelayedFault, LinkFault):
    """Delay one or both directions of some links."""

    band: ClassVar[Band] = Band("#ff7f0e", "latency")
    proof: ClassVar[str] = "probes through each link, slower by the delay asked for; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed"
    allowance_ms: ClassVar[int] = 500

    kind: Literal["latency"] = "latency"

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if the selector names no link."""
        stretches = await resolve(self.link, scene.world, draws)
        return await self.strike(scene, stretches, await self.described(stretches, scene.world), draws)

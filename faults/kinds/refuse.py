"""``refuse``: the doors at the end of some links are shut: connections are closed at once, and new ones refused.

The difference from ``cut`` is that everybody is told. It is Toxiproxy's proxy disabled. A connection is refused to the
side that opens it, so ``->`` shuts the doors that the source dials, and between racks ``<->`` shuts those of both.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from aftershock.faults.fault import Band, Draws, Scene, Stake, Strike, Takes
from aftershock.faults.record import Undo, Witness
from aftershock.faults.strikes.doors import SHUT_MS, dialled, shut
from aftershock.faults.strikes.linked import LinkFault, LinkStrike, targets_of
from aftershock.faults.strikes.probing import answer_again, answering, ask_all, counted
from aftershock.faults.values import Link
from aftershock.faults.waiting import to_the_end


class RefuseStrike(LinkStrike):
    """The proxies of some links, disabled. ``reachable``: the links that answered before."""

    measuring_us = SHUT_MS * 1000

    def __init__(self, scene: Scene, links: Sequence[Link], reachable: Sequence[Link], roles: dict[str, Any]) -> None:
        self.scene = scene
        self.reachable = reachable
        self.targets = targets_of(links, roles)
        self.undo = Undo("enable_proxies", {"proxies": list(self.targets.links)})

    async def inject(self) -> None:
        """Shut every door."""
        for proxy in self.targets.links:
            await to_the_end(self.scene.world.disable(proxy))

    async def measure(self) -> Witness:
        """Every link that answered before must say no, and at once: silence would be another fault."""
        closed = counted(await ask_all(self.reachable, self.scene))["closed"]
        asked = len(self.reachable)
        what = "links on which a connection is refused or closed at once"
        if not asked:
            what = "no link answered before, so none can be probed; the proxies read back are the witness"
        return Witness(what, asked, closed, "links", asked, ok=closed == asked)

    async def read_back(self) -> Witness:
        """How many of the proxies Toxiproxy has as disabled."""
        return await shut(self.targets.links, self.scene.world)

    async def confirm_healed(self) -> None:
        """Every link that answered before answers again."""
        await answer_again(self.reachable, self.scene)


class Refuse(LinkFault):
    """Close the connections over some links and refuse new ones."""

    band: ClassVar[Band] = Band("#e377c2", "refuse")
    proof: ClassVar[str] = "a refusal on every link that answered before; the proxies, read back each second"
    remedy: ClassVar[str] = "the proxies are enabled, and every link answers again"
    severs: ClassVar[bool] = True
    told: ClassVar[bool] = True
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("door", "links"), Stake("way", "links", by_plan=False))
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["refuse"] = "refuse"

    def takes(self) -> Takes:
        """All that these links carry."""
        return "links"

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if there is no such link, or if another fault has shut one of them already."""
        stretches = await dialled(self.link, scene, draws)
        links = [stretch.link for stretch in stretches]
        roles = await self.described(stretches, scene.world)
        return RefuseStrike(scene, links, await answering(links, scene), roles)

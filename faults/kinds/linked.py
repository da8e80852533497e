"""A fault on links: what it says of its targets, how it is watched while it lasts, and toxics put on and taken off."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from aftershock.faults.fault import READ_BACK_US, Report, Scene, Strike
from aftershock.faults.links import Stretch, ToBroker, crossing, parse
from aftershock.faults.record import Targets, Undo, Witness
from aftershock.faults.waiting import to_the_end
from aftershock.faults.world import Link, Toxic, World


def role_of(link: str) -> dict[tuple[str, ...], str]:
    """The broker at the link's end, where it names one."""
    selector = parse(link)
    return {("link",): selector.role} if isinstance(selector, ToBroker) and selector.role else {}


async def described(asked: str, stretches: Iterable[Stretch], world: World) -> dict[str, Any]:
    """``{"asked", "streams"}``, and ``"crossing"`` where followers fetch over these links."""
    chosen = tuple(stretches)
    roles: dict[str, Any] = {"asked": asked, "streams": sorted({stretch.stream for stretch in chosen})}
    if met := await crossing({stretch.link for stretch in chosen}, world):
        roles["crossing"] = met
    return roles


def targets_of(links: Iterable[Link], roles: Mapping[str, Any]) -> Targets:
    """Their proxies, each once."""
    return Targets(links=tuple(sorted({link.proxy for link in links})), roles=roles)


class LinkStrike(Strike):
    """Something on links: measured at its beginning and right before its end, read back each second in between."""

    scene: Scene
    measuring_us: int
    """How long one measuring may take."""

    @abstractmethod
    async def measure(self) -> Witness:
        """What a probe through the links sees."""

    @abstractmethod
    async def read_back(self) -> Witness:
        """Whether Toxiproxy still has what was asked of it."""

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Measure, then read back once a second, and measure again right before the heal."""
        clock = self.scene.clock
        until_us = until_us or clock.now_us()
        report(await self.read_back())
        report(await self.measure())
        last_us = until_us - self.measuring_us
        again = clock.now_us() < last_us
        while (now_us := clock.now_us()) < (last_us if again else until_us):
            await clock.sleep_until_us(min(now_us + READ_BACK_US, last_us if again else until_us))
            report(await self.read_back())
        if again:
            report(await self.measure())
            await clock.sleep_until_us(until_us)
            report(await self.read_back())


class ToxicStrike(LinkStrike):
    """One toxic for each stream of each link."""

    def __init__(self, scene: Scene, toxics: Mapping[Stretch, Toxic], roles: Mapping[str, Any]) -> None:
        self.scene = scene
        self.toxics = dict(toxics)
        self.targets = targets_of((stretch.link for stretch in toxics), roles)
        names = sorted([stretch.link.proxy, toxic.name] for stretch, toxic in toxics.items())
        self.undo = Undo("remove_toxics", {"toxics": names})

    async def inject(self) -> None:
        """Put all the toxics on."""
        for stretch, toxic in self.toxics.items():
            await to_the_end(self.scene.world.add_toxic(stretch.link.proxy, toxic))

    async def read_back(self) -> Witness:
        """How many of them Toxiproxy has, as we want them."""
        now = await self.scene.world.toxics()
        there = [
            stretch
            for stretch, toxic in self.toxics.items()
            if any(_same(toxic, other) for other in now.get(stretch.link.proxy, ()))
        ]
        gone = [stretch.link.proxy for stretch in self.toxics if stretch not in there]
        what = "toxics of this fault, read back from Toxiproxy" + (f"; {gone[0]} has lost its own" if gone else "")
        return Witness(what, len(self.toxics), len(there), "toxics", len(self.toxics), not gone)


def toxic_on(stretch: Stretch, fault: str, type_: str, attributes: Mapping[str, int]) -> Toxic:
    """A toxic under a name that no other fault and no other stream has."""
    return Toxic(f"{fault}:{stretch.link.proxy}:{stretch.stream}", type_, stretch.stream, attributes)


def _same(ours: Toxic, other: Toxic) -> bool:
    as_asked = (ours.name, ours.type, ours.stream) == (other.name, other.type, other.stream)
    return as_asked and ours.attributes.items() <= other.attributes.items()

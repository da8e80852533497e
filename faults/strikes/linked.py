"""A fault on links: what it says of its targets, how it is watched while it lasts, and toxics put on and taken off.

``LinkFault`` is what the kinds with a ``link`` share, ``ToxicFault`` what those of them do that are one toxic of
Toxiproxy: such a kind says which, its attributes, and how it is witnessed (``probed.py``), and that is all of it.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from aftershock.faults.fault import READ_BACK_US, Among, Draws, Family, Fault, Place, Report, Scene, Strike
from aftershock.faults.links import LinkText, Stretch, ToBroker, crossing, parse, resolve
from aftershock.faults.record import Targets, Undo, Witness
from aftershock.faults.values import Link, Stream, Toxic
from aftershock.faults.waiting import to_the_end
from aftershock.faults.world import World


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


class LinkFault(Fault):
    """A fault on the links that ``link`` names."""

    family: ClassVar[Family] = "link"
    met_by: ClassVar[Among] = "links"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"

    link: LinkText

    def roles(self) -> dict[Place, str]:
        """The broker at the link's end, where it names one."""
        return role_of(self.link)

    def links(self) -> dict[Place, str]:
        """The link."""
        return {("link",): self.link}

    async def described(self, stretches: tuple[Stretch, ...], world: World) -> dict[str, Any]:
        """What was asked for and is met; and the broker, where the link names one."""
        broker = {"broker": stretches[0].link.broker} if self.roles() else {}
        return await described(self.link, stretches, world) | broker


class ToxicFault(LinkFault):
    """One toxic for each stream of each link."""

    toxic: ClassVar[str]
    strike: ClassVar[type["ToxicFaultStrike"]]

    @abstractmethod
    def attributes(self) -> dict[str, int]:
        """Of the toxic, by Toxiproxy's names and in its units."""

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if the selector names no link."""
        stretches = await resolve(self.link, scene.world, draws)
        toxics = {each: toxic_on(each, scene.fault, self.toxic, self.attributes()) for each in stretches}
        strike = self.strike(scene, toxics, await self.described(stretches, scene.world), self)
        await strike.look_before()
        return strike


class ToxicFaultStrike(ToxicStrike):
    """The toxics of a fault that is nothing else. ``own``: their names; ``streams``: those of each link."""

    def __init__(self, scene: Scene, toxics: Mapping[Stretch, Toxic], roles: Mapping[str, Any], fault: Any) -> None:
        super().__init__(scene, toxics, roles)
        self.fault = fault
        self.measuring_us = self.measuring_ms() * 1000
        self.own = frozenset(toxic.name for toxic in toxics.values())
        self.streams: dict[Link, set[Stream]] = {}
        for stretch in toxics:
            self.streams.setdefault(stretch.link, set()).add(stretch.stream)

    @abstractmethod
    def measuring_ms(self) -> int:
        """How long one measuring may take, as a rule."""

    @abstractmethod
    async def look_before(self) -> None:
        """How the links are before the fault."""


def _same(ours: Toxic, other: Toxic) -> bool:
    as_asked = (ours.name, ours.type, ours.stream) == (other.name, other.type, other.stream)
    return as_asked and ours.attributes.items() <= other.attributes.items()

"""A fault on links: what it says of its targets, how it is watched while it lasts, and toxics put on and taken off.

``LinkFault`` is what the kinds with a ``link`` share, ``ToxicFault`` what those of them do that are one toxic of
Toxiproxy: such a kind says which, its attributes, and how it is witnessed (``probed.py``), and that is all of it.

How most toxics are witnessed: by what becomes of connections of our own over the links they sit on.

Rules. Only a link that answered before the fault is tried during it. One whose broker does not run, or whose proxy is
disabled, is another fault's affair by then, and so is one where an overlapping fault leaves nothing to be read; both
are left out. Of the others every one must show the harm; the witness is of one that does not, else of the first. Where
no link is left, the toxics read back are the only witness, and ``what`` says so.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal, NamedTuple

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Draws,
    Family,
    Fault,
    FieldPath,
    Injection,
    InjectionContext,
    Report,
    TargetKind,
)
from aftershock.faults.runtime.probing import wait_until_answering, answering_links
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.runtime.world import Probe, World
from aftershock.faults.targets.links import LinkStream, LinkText, ToBroker, parse, replicated_over, resolve
from aftershock.faults.targets.values import Exchange, Link, Stream, Toxic


def role_of(link: str) -> dict[tuple[str, ...], str]:
    """The broker at the link's end, where it names one."""
    selector = parse(link)
    return {("link",): selector.role} if isinstance(selector, ToBroker) and selector.role else {}


async def described(asked: str, stretches: Iterable[LinkStream], world: World) -> dict[str, Any]:
    """``{"asked", "streams"}``, and ``"crossing"`` where followers fetch over these links."""
    chosen = tuple(stretches)
    roles: dict[str, Any] = {"asked": asked, "streams": sorted({stretch.stream for stretch in chosen})}
    if met := await replicated_over({stretch.link for stretch in chosen}, world):
        roles["crossing"] = met
    return roles


def targets_of(links: Iterable[Link], roles: Mapping[str, Any]) -> Targets:
    """Their proxies, each once."""
    return Targets(links=tuple(sorted({link.proxy for link in links})), roles=roles)


class LinkInjection(Injection):
    """Something on links: measured at its beginning and right before its end, read back each second in between."""

    context: InjectionContext
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
        clock = self.context.clock
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


class ToxicInjection(LinkInjection):
    """One toxic for each stream of each link."""

    def __init__(self, context: InjectionContext, toxics: Mapping[LinkStream, Toxic], roles: Mapping[str, Any]) -> None:
        self.context = context
        self.toxics = dict(toxics)
        self.targets = targets_of((stretch.link for stretch in toxics), roles)
        names = sorted([stretch.link.proxy, toxic.name] for stretch, toxic in toxics.items())
        self.undo = Undo("remove_toxics", {"toxics": names})

    async def inject(self) -> None:
        """Put all the toxics on."""
        for stretch, toxic in self.toxics.items():
            await run_to_completion(self.context.world.add_toxic(stretch.link.proxy, toxic))

    async def read_back(self) -> Witness:
        """How many of them Toxiproxy has, as we want them."""
        now = await self.context.world.toxics()
        there = [
            stretch
            for stretch, toxic in self.toxics.items()
            if any(_same(toxic, other) for other in now.get(stretch.link.proxy, ()))
        ]
        gone = [stretch.link.proxy for stretch in self.toxics if stretch not in there]
        what = "toxics of this fault, read back from Toxiproxy" + (f"; {gone[0]} has lost its own" if gone else "")
        return Witness(what, len(self.toxics), len(there), "toxics", len(self.toxics), not gone)


def toxic_on(stretch: LinkStream, fault: str, type_: str, attributes: Mapping[str, int]) -> Toxic:
    """A toxic under a name that no other fault and no other stream has."""
    return Toxic(f"{fault}:{stretch.link.proxy}:{stretch.stream}", type_, stretch.stream, attributes)


class LinkFault(Fault):
    """A fault on the links that ``link`` names."""

    family: ClassVar[Family] = "link"
    exposure_target: ClassVar[TargetKind] = "links"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"

    link: LinkText

    def roles(self) -> dict[FieldPath, str]:
        """The broker at the link's end, where it names one."""
        return role_of(self.link)

    def links(self) -> dict[FieldPath, str]:
        """The link."""
        return {("link",): self.link}

    async def described(self, stretches: tuple[LinkStream, ...], world: World) -> dict[str, Any]:
        """What was asked for and is met; and the broker, where the link names one."""
        broker = {"broker": stretches[0].link.broker} if self.roles() else {}
        return await described(self.link, stretches, world) | broker


class ToxicFault(LinkFault):
    """One toxic for each stream of each link."""

    toxic: ClassVar[str]
    injection: ClassVar[type["ToxicFaultInjection"]]

    @abstractmethod
    def attributes(self) -> dict[str, int]:
        """Of the toxic, by Toxiproxy's names and in its units."""

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if the selector names no link."""
        stretches = await resolve(self.link, context.world, draws)
        toxics = {each: toxic_on(each, context.fault, self.toxic, self.attributes()) for each in stretches}
        injection = self.injection(context, toxics, await self.described(stretches, context.world), self)
        await injection.look_before()
        return injection


class ToxicFaultInjection(ToxicInjection):
    """The toxics of a fault that is nothing else. ``own``: their names; ``streams``: those of each link."""

    def __init__(
        self, context: InjectionContext, toxics: Mapping[LinkStream, Toxic], roles: Mapping[str, Any], fault: Any
    ) -> None:
        super().__init__(context, toxics, roles)
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


ROOM_MS = 2_000  # what an exchange may take on a busy host beyond what the fault makes of it
SLACK_MS = 300  # what it takes beyond that, as a rule
SHARE = 0.8  # of a delay asked for that must be seen


class Reading(NamedTuple):
    """What one link showed: ``observed`` against ``asked``, and whether that is the harm."""

    link: Link
    asked: float
    observed: float
    ok: bool


class ProbedInjection(ToxicFaultInjection):
    """Toxics that show in connections of our own. ``what`` and ``unit`` are the witness's."""

    what: ClassVar[str]
    unit: ClassVar[str]
    reachable: Sequence[Link] = ()

    @abstractmethod
    async def read(self, link: Link) -> Reading | None:
        """What this link shows now; None where that says nothing about the fault."""

    async def look_before(self) -> None:
        """Which links answer."""
        self.reachable = await answering_links(self.streams, self.context)

    async def measure(self) -> Witness:
        """Every link that is left must show the harm."""
        links = await serving(self.reachable, self.context)
        readings = [each for each in await asyncio.gather(*map(self._read, links)) if each is not None]
        if not readings:
            what = "nothing answers by itself at the end of these links; the toxics read back are the witness"
            return Witness(what, 0, 0, "probes", 0, ok=True)
        told = next((each for each in readings if not each.ok), readings[0])
        what = f"{self.what} (through {told.link.proxy}, one of {len(readings)} links)"
        return Witness(what, told.asked, round(told.observed, 3), self.unit, len(readings), told.ok)

    async def confirm_healed(self) -> None:
        """Every link that answered before answers again."""
        await wait_until_answering(self.reachable, self.context)

    async def exchange(self, link: Link, ballast_bytes: int, limit_ms: int) -> Exchange | None:
        """One question over a connection of its own; None if there was no connection to be had."""
        try:
            async with dialled(link, self.context) as probe:
                return await probe.ask(ballast_bytes, limit_ms)
        except FaultError:
            return None

    async def _read(self, link: Link) -> Reading | None:
        try:
            return await self.read(link)
        except FaultError:
            return None


class EndedInjection(ProbedInjection):
    """Toxics that end the connection of a question instead of having it answered, ``timeout`` after it."""

    unit: ClassVar[str] = "ms"

    def measuring_ms(self) -> int:
        """As long as a connection lives on."""
        return int(self.fault.timeout) + SLACK_MS

    async def read(self, link: Link) -> Reading | None:
        """No answer, and ended no earlier than asked for."""
        seen = await self.exchange(link, 0, self.fault.timeout + ROOM_MS)
        if seen is None or seen.end == "silent":
            return None
        ok = seen.end != "answered" and seen.ms >= SHARE * self.fault.timeout
        return Reading(link, self.fault.timeout, seen.ms, ok)


@asynccontextmanager
async def dialled(link: Link, context: InjectionContext) -> AsyncIterator[Probe]:
    """A connection through a link, for as long as the block lasts."""
    probe = await context.world.dial(link)
    try:
        yield probe
    finally:
        await probe.hang_up()


async def serving(links: Sequence[Link], context: InjectionContext) -> list[Link]:
    """Those whose broker runs and whose proxy is enabled."""
    disabled = await context.world.disabled()
    return [link for link in await manned(links, context) if link.proxy not in disabled]


async def manned(links: Sequence[Link], context: InjectionContext) -> list[Link]:
    """Those whose broker runs."""
    return [link for link in links if await context.world.state(link.broker) == "running"]

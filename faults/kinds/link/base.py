"""Base classes of the link faults, and the toxics that most of them consist of.

``LinkFault`` is the base of every kind with a ``link``; ``LinkInjection`` observes the links while it lasts.
``ToxicFault`` and ``ToxicInjection`` are the bases of kinds that put one toxic of Toxiproxy on each stream of each
link: such a kind gives the toxic's type and attributes. ``ProbedInjection`` witnesses the toxics with its own
connections over the same links.

Rules for probes. Only a link that answered before the fault is probed during it. Links whose broker does not run, or
whose proxy is disabled, are affected by another fault and left out, and so are links on which an overlapping fault
leaves nothing to measure. Every remaining link must show the fault; the witness describes the first link that does not,
or else the first link. If no link remains, the toxics read back are the only witness, and ``what`` says so.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
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
from aftershock.faults.runtime.probing import answering_links, wait_until_answering
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.runtime.world import Probe, World
from aftershock.faults.targets.links import LinkStream, LinkText, ToBroker, parse, replicated_over, resolve
from aftershock.faults.targets.values import Exchange, Link, Stream, Toxic

ROOM_MS = 2_000  # what an exchange may take on a busy host beyond the fault's own effect
SLACK_MS = 300  # what it usually takes beyond that
SHARE = 0.8  # of a requested delay that must be observed


def role_of(link: str) -> dict[tuple[str, ...], str]:
    """Return the broker's role at the link's end by its field path, if the link names one."""
    selector = parse(link)
    return {("link",): selector.role} if isinstance(selector, ToBroker) and selector.role else {}


async def described(asked: str, streams: Iterable[LinkStream], world: World) -> dict[str, Any]:
    """Return ``{"asked", "streams"}``, and ``"crossing"`` if followers fetch over these links."""
    chosen = tuple(streams)
    roles: dict[str, Any] = {"asked": asked, "streams": sorted({stream.stream for stream in chosen})}
    if crossing := await replicated_over({stream.link for stream in chosen}, world):
        roles["crossing"] = crossing
    return roles


def targets_of(links: Iterable[Link], roles: Mapping[str, Any]) -> Targets:
    """Return the links' proxies, without duplicates."""
    return Targets(links=tuple(sorted({link.proxy for link in links})), roles=roles)


def toxic_on(stream: LinkStream, fault: str, type_: str, attributes: Mapping[str, int]) -> Toxic:
    """Return a toxic whose name is unique among all faults and streams."""
    return Toxic(f"{fault}:{stream.link.proxy}:{stream.stream}", type_, stream.stream, attributes)


@asynccontextmanager
async def dialled(link: Link, context: InjectionContext) -> AsyncIterator[Probe]:
    """Hold a connection through a link for the length of the block."""
    probe = await context.world.dial(link)
    try:
        yield probe
    finally:
        await probe.hang_up()


async def running(links: Iterable[Link], context: InjectionContext) -> list[Link]:
    """Return the links whose broker runs."""
    return [link for link in links if await context.world.state(link.broker) == "running"]


async def foreign_latency_ms(
    links: Iterable[Link], own: Container[str], context: InjectionContext
) -> dict[Link, float]:
    """Return the delay that latency toxics of other faults add to a round trip over each link."""
    toxics = await context.world.toxics()
    return {
        link: float(
            sum(
                toxic.attributes.get("latency", 0)
                for toxic in toxics.get(link.proxy, ())
                if toxic.type == "latency" and toxic.name not in own
            )
        )
        for link in links
    }


class LinkFault(Fault):
    """A fault on the links that ``link`` selects."""

    family: ClassVar[Family] = "link"
    exposure_target: ClassVar[TargetKind] = "links"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"

    link: LinkText

    def roles(self) -> dict[FieldPath, str]:
        """Return the broker at the link's end, if the link names one."""
        return role_of(self.link)

    def links(self) -> dict[FieldPath, str]:
        """Return the link."""
        return {("link",): self.link}

    async def described(self, streams: tuple[LinkStream, ...], world: World) -> dict[str, Any]:
        """Return the selector, the streams it resolved to, and the broker if the link names one."""
        broker = {"broker": streams[0].link.broker} if self.roles() else {}
        return await described(self.link, streams, world) | broker


class LinkInjection(Injection):
    """An injection on links: measured at its beginning and right before its end, read back each second in between.

    ``reachable``: links that answered before the fault, where a kind probes them; the heal waits until they answer.
    """

    context: InjectionContext
    reachable: Sequence[Link] = ()

    @property
    @abstractmethod
    def measuring_us(self) -> int:
        """Time that one measurement may take."""

    @abstractmethod
    async def measure(self) -> Witness:
        """Probe the links and return what the probes observe."""

    @abstractmethod
    async def read_back(self) -> Witness:
        """Compare the state of Toxiproxy with what was requested."""

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

    async def confirm_healed(self) -> None:
        """Wait until every link that answered before the fault answers again."""
        await wait_until_answering(self.reachable, self.context)


class ToxicInjection(LinkInjection):
    """One toxic for each stream of each link.

    ``toxic_names``: the names of these toxics; ``streams``: the affected streams of each link; ``fault``: the fault, if
    it is a ``ToxicFault``.
    """

    def __init__(
        self,
        context: InjectionContext,
        toxics: Mapping[LinkStream, Toxic],
        roles: Mapping[str, Any],
        fault: Any = None,
    ) -> None:
        self.context = context
        self.fault = fault
        self.toxics = dict(toxics)
        self.toxic_names = frozenset(toxic.name for toxic in toxics.values())
        self.streams: dict[Link, set[Stream]] = {}
        for stream in toxics:
            self.streams.setdefault(stream.link, set()).add(stream.stream)
        self.targets = targets_of(self.streams, roles)
        names = sorted([stream.link.proxy, toxic.name] for stream, toxic in toxics.items())
        self.undo = Undo("remove_toxics", {"toxics": names})

    async def measure_before(self) -> None:
        """Measure the links before the fault."""

    async def inject(self) -> None:
        """Add all toxics."""
        for stream, toxic in self.toxics.items():
            await run_to_completion(self.context.world.add_toxic(stream.link.proxy, toxic))

    async def read_back(self) -> Witness:
        """Count the toxics that Toxiproxy has, with the requested attributes."""
        present = await self.context.world.toxics()
        lost = [
            stream.link.proxy
            for stream, toxic in self.toxics.items()
            if not any(
                (toxic.name, toxic.type, toxic.stream) == (other.name, other.type, other.stream)
                and toxic.attributes.items() <= other.attributes.items()
                for other in present.get(stream.link.proxy, ())
            )
        ]
        what = "toxics of this fault, read back from Toxiproxy" + (f"; {lost[0]} has lost its own" if lost else "")
        count = len(self.toxics)
        return Witness(what, count, count - len(lost), "toxics", count, not lost)


class ToxicFault(LinkFault):
    """A fault that consists of one toxic for each stream of each link."""

    toxic: ClassVar[str]
    injection: ClassVar[type[ToxicInjection]]

    @abstractmethod
    def attributes(self) -> dict[str, int]:
        """Return the toxic's attributes, by Toxiproxy's names and in its units."""

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Resolve the link; raise FaultError if it selects none."""
        streams = await resolve(self.link, context.world, draws)
        toxics = {stream: toxic_on(stream, context.fault, self.toxic, self.attributes()) for stream in streams}
        injection = self.injection(context, toxics, await self.described(streams, context.world), self)
        await injection.measure_before()
        return injection


class Reading(NamedTuple):
    """Measurement of one link: ``observed`` against ``asked``; ``ok`` if that shows the fault."""

    link: Link
    asked: float
    observed: float
    ok: bool


class ProbedInjection(ToxicInjection):
    """Toxics that the harness can verify by measuring its own test connections.

    ``what`` and ``unit`` are fields of the witness.
    """

    what: ClassVar[str]
    unit: ClassVar[str]

    @abstractmethod
    async def read(self, link: Link) -> Reading | None:
        """Measure this link now; None (or FaultError) if the result says nothing about the fault."""

    async def measure_before(self) -> None:
        """Find the links that answer before the fault."""
        self.reachable = await answering_links(self.streams, self.context)

    async def measure(self) -> Witness:
        """Measure every usable link; all must show the fault."""
        disabled = await self.context.world.disabled()
        usable = [link for link in await running(self.reachable, self.context) if link.proxy not in disabled]
        results = await asyncio.gather(*map(self._read_or_none, usable))
        readings = [reading for reading in results if reading is not None]
        if not readings:
            what = "nothing answers by itself at the end of these links; the toxics read back are the witness"
            return Witness(what, 0, 0, "probes", 0, ok=True)
        reading = next((reading for reading in readings if not reading.ok), readings[0])
        what = f"{self.what} (through {reading.link.proxy}, one of {len(readings)} links)"
        return Witness(what, reading.asked, round(reading.observed, 3), self.unit, len(readings), reading.ok)

    async def exchange(self, link: Link, ballast_bytes: int, limit_ms: int) -> Exchange | None:
        """Send one request over a new connection; None if no connection could be made."""
        try:
            async with dialled(link, self.context) as probe:
                return await probe.ask(ballast_bytes, limit_ms)
        except FaultError:
            return None

    async def _read_or_none(self, link: Link) -> Reading | None:
        try:
            return await self.read(link)
        except FaultError:
            return None


class ClosedConnectionInjection(ProbedInjection):
    """Toxics that close the connection of a request, ``timeout`` after it, instead of letting it be answered."""

    unit: ClassVar[str] = "ms"

    @property
    def measuring_us(self) -> int:
        """Time until the connection is closed."""
        return (int(self.fault.timeout) + SLACK_MS) * 1000

    async def read(self, link: Link) -> Reading | None:
        """Expect no answer, and a close no earlier than requested."""
        result = await self.exchange(link, 0, self.fault.timeout + ROOM_MS)
        if result is None or result.end == "silent":
            return None
        ok = result.end != "answered" and result.ms >= SHARE * self.fault.timeout
        return Reading(link, self.fault.timeout, result.ms, ok)

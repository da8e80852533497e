"""Base classes of the link faults.

A link that did not answer a probe before the fault is not probed during the fault, because its silence would prove
nothing. If no link can be probed, the state of Toxiproxy, read back each second, is the only witness of the fault.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.faults.kinds.fault import READ_BACK_US, Fault, FieldPath, Injection, Report
from aftershock.faults.kinds.probing import wait_until_answering
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.targets.links import LinkStream, LinkText, ToBroker, parse, replicated_over
from aftershock.faults.targets.values import Link, Stream, Toxic
from aftershock.faults.targets.world import World

SHARE = 0.8  # of a requested delay that a measurement must show


class LinkFault(Fault):
    """Base of faults on the links that the link selector ``link`` selects."""

    family = "link"
    exposure_target = "links"
    for_rule = "needed"

    link: LinkText

    def roles(self) -> dict[FieldPath, str]:
        return role_at_end(self.link)

    async def target_roles(self, streams: Sequence[LinkStream], world: World) -> dict[str, Any]:
        """Return the journal entry about the links, with the broker that holds the link selector's role, if any."""
        broker = {"broker": streams[0].link.broker} if self.roles() else {}
        return await link_roles(self.link, streams, world) | broker


class LinkInjection(Injection):
    """Injection that probes links at the beginning and right before the end of the fault.

    The links in ``reachable`` answered before the fault and must answer after the heal. A round of probes takes at most
    ``measuring_us``.
    """

    reachable: Sequence[Link] = ()

    @property
    @abstractmethod
    def measuring_us(self) -> int: ...

    @abstractmethod
    async def measure(self) -> Witness: ...

    @abstractmethod
    async def read_back(self) -> Witness: ...

    async def hold(self, until_us: int | None, report: Report) -> None:
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
        await wait_until_answering(self.reachable, self.context)


@dataclass(eq=False)
class ToxicInjection(LinkInjection):
    """Injection that adds one Toxiproxy toxic to each stream (upstream, downstream) of its links.

    ``streams`` maps each link to its affected streams.
    """

    toxics: dict[LinkStream, Toxic]

    def __post_init__(self) -> None:
        self.streams: dict[Link, set[Stream]] = {}
        for stream in self.toxics:
            self.streams.setdefault(stream.link, set()).add(stream.stream)
        names = sorted([stream.link.proxy, toxic.name] for stream, toxic in self.toxics.items())
        self.undo = Undo("remove_toxics", {"toxics": names})

    async def inject(self) -> None:
        for stream, toxic in self.toxics.items():
            await run_to_completion(self.context.world.add_toxic(stream.link.proxy, toxic))

    async def read_back(self) -> Witness:
        listed = await self.context.world.toxics()
        missing = [
            stream.link.proxy
            for stream, toxic in self.toxics.items()
            if not any(
                (toxic.name, toxic.type, toxic.stream) == (other.name, other.type, other.stream)
                and toxic.attributes.items() <= other.attributes.items()
                for other in listed.get(stream.link.proxy, ())
            )
        ]
        what = "toxics of this fault, read back from Toxiproxy"
        what = f"{what}; the toxic on the proxy {missing[0]} is missing or changed" if missing else what
        count = len(self.toxics)
        return Witness(what, count, count - len(missing), "toxics", count, not missing)

    async def foreign_latency_ms(self) -> dict[Link, float]:
        """Return the delay in ms that latency toxics of other faults add to a round trip over each link."""
        listed, own = await self.context.world.toxics(), {toxic.name for toxic in self.toxics.values()}
        foreign = {link: [t for t in listed.get(link.proxy, ()) if t.name not in own] for link in self.streams}
        return {
            link: sum(float(toxic.attributes.get("latency", 0)) for toxic in toxics if toxic.type == "latency")
            for link, toxics in foreign.items()
        }


def role_at_end(link: str) -> dict[FieldPath, str]:
    """Return the broker role at the end of the selector in the field ``link``, by field path; empty without a role."""
    selector = parse(link)
    return {("link",): selector.role} if isinstance(selector, ToBroker) and selector.role else {}


async def link_roles(asked: str, streams: Sequence[LinkStream], world: World) -> dict[str, Any]:
    """Return a journal entry with link selector, streams, and the partitions that followers fetch over the links."""
    roles: dict[str, Any] = {"asked": asked, "streams": sorted({stream.stream for stream in streams})}
    if crossing := await replicated_over({stream.link for stream in streams}, world):
        roles["crossing"] = crossing
    return roles


def link_targets(streams: Iterable[LinkStream], roles: Mapping[str, Any]) -> Targets:
    return Targets(links=tuple(sorted({stream.link.proxy for stream in streams})), roles=roles)


def toxic_on(stream: LinkStream, fault: str, type_: str, attributes: Mapping[str, int]) -> Toxic:
    """Return a toxic whose name is unique among all faults and streams."""
    return Toxic(f"{fault}:{stream.link.proxy}:{stream.stream}", type_, stream.stream, attributes)

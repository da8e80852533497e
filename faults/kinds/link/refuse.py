"""The doors at the end of links: who dials which, that they are to be had, and what one sees of them.

``refuse``: the doors at the end of some links are shut: connections are closed at once, and new ones refused.

The difference from ``cut`` is that everybody is told. It is Toxiproxy's proxy disabled. A connection is refused to the
side that opens it, so ``->`` shuts the doors that the source dials, and between racks ``<->`` shuts those of both.

``flap``: the doors at the end of some links are shut and opened again, over and over.

Each time they shut, every connection is closed and new ones are refused, as with ``refuse``; each time they open,
clients may dial again. How long each time lasts is ``down`` and ``up``, or, with ``jitter``, drawn around them by the
compiler. Once a round there is a witness: doors found shut while they should be, and found open while they should be.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
)
from aftershock.faults.kinds.link.base import LinkFault, LinkInjection, manned, targets_of
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import Duration
from aftershock.faults.runtime.probing import wait_until_answering, answering_links, probe_all, count_answers
from aftershock.faults.runtime.record import Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion, with_timeout
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.links import LinkStream, resolve
from aftershock.faults.targets.values import Link

SHUT_MS = 200  # a refusal takes a ms or two


async def dialled(link: str, context: InjectionContext, draws: Draws) -> tuple[LinkStream, ...]:
    """What the source dials of the links that are named. FaultError if there is none, or one is shut already."""
    chosen = tuple(each for each in await resolve(link, context.world, draws) if each.stream == "upstream")
    disabled = await context.world.disabled()
    if taken := sorted(each.link.proxy for each in chosen if each.link.proxy in disabled):
        raise FaultError(f"{taken[0]} is disabled already; let the other fault heal before this one begins")
    return chosen


async def shut(proxies: Sequence[str], world: World) -> Witness:
    """How many of the proxies Toxiproxy has as disabled."""
    disabled = await world.disabled()
    opened = [proxy for proxy in proxies if proxy not in disabled]
    what = "proxies disabled, read back from Toxiproxy" + (f"; {opened[0]} is enabled" if opened else "")
    return Witness(what, len(proxies), len(proxies) - len(opened), "proxies", len(proxies), not opened)


class RefuseInjection(LinkInjection):
    """The proxies of some links, disabled. ``reachable``: the links that answered before."""

    measuring_us = SHUT_MS * 1000

    def __init__(
        self, context: InjectionContext, links: Sequence[Link], reachable: Sequence[Link], roles: dict[str, Any]
    ) -> None:
        self.context = context
        self.reachable = reachable
        self.targets = targets_of(links, roles)
        self.undo = Undo("enable_proxies", {"proxies": list(self.targets.links)})

    async def inject(self) -> None:
        """Shut every door."""
        for proxy in self.targets.links:
            await run_to_completion(self.context.world.disable(proxy))

    async def measure(self) -> Witness:
        """Every link that answered before must say no, and at once: silence would be another fault."""
        closed = count_answers(await probe_all(self.reachable, self.context))["closed"]
        asked = len(self.reachable)
        what = "links on which a connection is refused or closed at once"
        if not asked:
            what = "no link answered before, so none can be probed; the proxies read back are the witness"
        return Witness(what, asked, closed, "links", asked, ok=closed == asked)

    async def read_back(self) -> Witness:
        """How many of the proxies Toxiproxy has as disabled."""
        return await shut(self.targets.links, self.context.world)

    async def confirm_healed(self) -> None:
        """Every link that answered before answers again."""
        await wait_until_answering(self.reachable, self.context)


class Refuse(LinkFault):
    """Close the connections over some links and refuse new ones."""

    band: ClassVar[Band] = Band("#e377c2", "refuse")
    proof: ClassVar[str] = "a refusal on every link that answered before; the proxies, read back each second"
    remedy: ClassVar[str] = "the proxies are enabled, and every link answers again"
    drops_traffic: ClassVar[bool] = True
    closes_connections: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (
        ExclusiveResource("door", "links"),
        ExclusiveResource("way", "links", by_plan=False),
    )
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["refuse"] = "refuse"

    def impact(self) -> Impact:
        """All that these links carry."""
        return "links"

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if there is no such link, or if another fault has shut one of them already."""
        stretches = await dialled(self.link, context, draws)
        links = [stretch.link for stretch in stretches]
        roles = await self.described(stretches, context.world)
        return RefuseInjection(context, links, await answering_links(links, context), roles)


PHASE_MS_MIN = 200  # a probe must have the time to find out


class Seen(NamedTuple):
    """Of so many doors looked at, how many were as they should be."""

    doors: int
    right: int


class FlapInjection(Injection):
    """The proxies of some links, disabled and enabled in turns. ``reachable``: the links that answered before."""

    def __init__(
        self,
        context: InjectionContext,
        links: Sequence[Link],
        reachable: Sequence[Link],
        phases_ms: Sequence[int],
        roles: Any,
    ) -> None:
        self.context = context
        self.reachable = reachable
        self.phases_ms = phases_ms
        self.targets = targets_of(links, roles)
        self.undo = Undo("enable_proxies", {"proxies": list(self.targets.links)})
        self.flapping = False  # a rehearsal only looks

    async def inject(self) -> None:
        """Shut every door for the first time."""
        await self._switch("shut")
        self.flapping = True

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Open and shut as drawn, and look each time."""
        clock, seen = self.context.clock, list[Seen]()
        ends_us = until_us or clock.now_us()
        phase_us = clock.now_us()
        for turn, phase_ms in enumerate(self.phases_ms):
            door: Literal["shut", "open"] = "open" if turn % 2 else "shut"
            if turn and self.flapping:
                await self._switch(door)
            phase_us = min(phase_us + phase_ms * 1000, ends_us)
            seen.append(await self._look(door, phase_us))
            await clock.sleep_until_us(phase_us)
            if door == "open" or phase_us == ends_us:
                report(_witness(seen))
                seen.clear()
            if phase_us == ends_us:
                return

    async def confirm_healed(self) -> None:
        """Every link that answered before answers again."""
        await wait_until_answering(self.reachable, self.context)

    async def _switch(self, door: Literal["shut", "open"]) -> None:
        switch = self.context.world.disable if door == "shut" else self.context.world.enable
        for proxy in self.targets.links:
            await run_to_completion(switch(proxy))

    async def _look(self, door: Literal["shut", "open"], until_us: int) -> Seen:
        """Through each link that answered before, as far as there is time; where there is none, at the proxies."""
        if not self.reachable:
            disabled = await self.context.world.disabled()
            return Seen(len(self.targets.links), sum((p in disabled) == (door == "shut") for p in self.targets.links))
        links, clock = await manned(self.reachable, self.context), self.context.clock
        left_ms = max(1, (until_us - clock.now_us()) // 1000)
        answers = await with_timeout(probe_all(links, self.context), clock, left_ms) or ()
        return Seen(len(answers), [*answers].count("closed" if door == "shut" else "answered"))


class Flap(LinkFault):
    """Shut and open the doors at the end of some links over and over."""

    band: ClassVar[Band] = Band("#f7b6d2", "flap")
    proof: ClassVar[str] = "each round: a refusal while shut, an answer while open, on every link that answered before"
    remedy: ClassVar[str] = "the proxies are enabled, and every link answers again"
    closes_connections: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (
        ExclusiveResource("door", "links"),
        ExclusiveResource("way", "links", by_plan=False),
    )
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["flap"] = "flap"
    down: Annotated[Duration, Field(ge=PHASE_MS_MIN, description="how long the doors are shut each time")]
    up: Annotated[Duration, Field(ge=PHASE_MS_MIN, description="how long they are open each time")]
    jitter: Annotated[Duration, Field(description="each time is drawn anew, so much around `down` and `up`")] = 0

    @model_validator(mode="after")
    def _never_too_short(self) -> Self:
        if min(self.down, self.up) - self.jitter < PHASE_MS_MIN:
            sentence = f"with jitter, `down` and `up` must be {PHASE_MS_MIN}ms at least; make the jitter smaller"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    def impact(self) -> Impact:
        """What gets through now and then may keep a node in office."""
        return "unknown"

    def draw(self, source: random.Random) -> dict[str, Any]:
        """``phases_ms``: shut, open, shut ... until the fault is over; and ``any`` roles."""
        draws, phases = super().draw(source), list[int]()
        while sum(phases) < (self.for_ or 0):
            base = self.up if len(phases) % 2 else self.down
            phases.append(round(source.uniform(base - self.jitter, base + self.jitter)))
        return draws | {"phases_ms": phases}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- it is about its own times
        """Doors that would be shut once and never open."""
        if self.for_ is not None and self.down + self.jitter >= self.for_:
            yield Problem(("down",), "the fault is over before the doors open once: shorten it, or use refuse")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if there is no such link, or if another fault has shut one of them already."""
        stretches = await dialled(self.link, context, draws)
        links = [stretch.link for stretch in stretches]
        roles = await self.described(stretches, context.world)
        return FlapInjection(context, links, await answering_links(links, context), draws["phases_ms"], roles)


def _witness(seen: Sequence[Seen]) -> Witness:
    doors, right = sum(each.doors for each in seen), sum(each.right for each in seen)
    what = "looks at a door that found it as it should be, shut or open" if doors else "no door could be looked at"
    return Witness(what, doors, right, "looks", doors, ok=doors == right)

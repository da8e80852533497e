"""``swizzle``: racks are cut off one by one, until all are, and healed one by one in another order.

::

    a  ====================            cut: a, b, c, a ``period`` apart
    b     =======================      healed: a, c, b, the last at the end of ``for``
    c        ==============

FoundationDB's swizzle-clogging, and its reason: most of what goes wrong with a cluster that loses its links goes wrong
as they come and go. Both orders are drawn, and differ. A rack is cut off as by ``cut: {rack: ...}``, clients included;
a link between two racks is dead until both are healed.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    ExclusiveResource,
    Family,
    Fault,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    TargetKind,
)
from aftershock.faults.kinds.link.base import described, targets_of, toxic_on
from aftershock.faults.kinds.link.cut import PROBE_SLACK_MS, no_answers, picked
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import Duration, format_duration
from aftershock.faults.runtime.probing import SILENCE_MS, wait_until_answering, answering_links
from aftershock.faults.runtime.record import Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.targets.links import LinkStream, links_of_rack
from aftershock.faults.targets.values import Link, Toxic

PLATEAU_MS = SILENCE_MS + PROBE_SLACK_MS + 800  # how long all must be cut for their silence to be seen
RACKS_MIN = 2
Put = tuple[str, Toxic]  # a toxic and the proxy it is on


class SwizzleInjection(Injection):
    """The racks' toxics, put on in one order and taken off in another. ``cut``: the racks that are cut off just now."""

    def __init__(
        self,
        context: InjectionContext,
        stretches: Mapping[str, Sequence[LinkStream]],
        order: Sequence[str],
        roles: Mapping[str, Any],
    ) -> None:
        self.context = context
        self.toxics = {rack: [_silence(context, rack, each) for each in own] for rack, own in stretches.items()}
        self.cut = list(order[:1])
        self.begun = False
        self.reachable: Sequence[Link] = ()
        self.targets = targets_of((stretch.link for own in stretches.values() for stretch in own), roles)
        self.undo = Undo("remove_toxics", {"toxics": sorted([proxy, toxic.name] for proxy, toxic in self._all())})
        self.turn = asyncio.Lock()  # the schedule and the read-back must not see each other's half

    async def inject(self) -> None:
        """Cut off the first rack."""
        self.begun = True
        await self._put_on(self.cut[0])

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Go on with the schedule, and read back each second; once all are cut off, nothing may answer."""
        clock = self.context.clock
        until_us = until_us or clock.now_us()
        period_us = self.targets.roles["period_ms"] * 1000
        all_cut_us = clock.now_us() + (len(self.toxics) - 1) * period_us
        schedule = asyncio.create_task(self._swizzle(clock.now_us(), until_us, period_us))
        try:
            await self._watch(min(all_cut_us, until_us), report)
            report(await no_answers(self.reachable, self.context))
            await self._watch(until_us, report)
            await schedule
        finally:
            schedule.cancel()
            await asyncio.gather(schedule, return_exceptions=True)

    async def confirm_healed(self) -> None:
        """Every link that answered before answers again."""
        await wait_until_answering(self.reachable, self.context)

    async def _swizzle(self, began_us: int, until_us: int, period_us: int) -> None:
        """All turns but the first cut, which was the injection, and the last heal, which is the undo."""
        if not self.begun:  # a rehearsal cuts nobody off
            return
        clock, roles = self.context.clock, self.targets.roles
        for number, rack in enumerate(roles["cut"][1:], start=1):
            await clock.sleep_until_us(began_us + number * period_us)
            async with self.turn:
                self.cut.append(rack)
                await self._put_on(rack)
        heals = roles["heal"][:-1]
        for number, rack in enumerate(heals):
            await clock.sleep_until_us(until_us - (len(heals) - number) * period_us)
            async with self.turn:
                self.cut.remove(rack)
                await self._take_off(rack)

    async def _put_on(self, rack: str) -> None:
        for proxy, toxic in self.toxics[rack]:
            await run_to_completion(self.context.world.add_toxic(proxy, toxic))

    async def _take_off(self, rack: str) -> None:
        for proxy, toxic in self.toxics[rack]:
            await run_to_completion(self.context.world.remove_toxic(proxy, toxic.name))

    async def _watch(self, until_us: int, report: Report) -> None:
        clock = self.context.clock
        while True:
            report(await self._read_back())
            if (now_us := clock.now_us()) >= until_us:
                return
            await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))

    async def _read_back(self) -> Witness:
        """Toxiproxy has the toxics of the racks that are cut off now, and none of the others'."""
        async with self.turn:
            now = await self.context.world.toxics()
            due = {(proxy, toxic.name) for rack in self.cut for proxy, toxic in self.toxics[rack]}
        ours = {(proxy, toxic.name) for proxy, toxic in self._all()}
        there = ours & {(proxy, toxic.name) for proxy, toxics in now.items() for toxic in toxics}
        what = f"toxics read back from Toxiproxy with {', '.join(self.cut)} cut off"
        return Witness(what, len(due), len(there & due) + len(there - due), "toxics", len(ours), ok=there == due)

    def _all(self) -> Iterator[Put]:
        return (put for own in self.toxics.values() for put in own)


class Swizzle(Fault):
    """Cut racks off one by one, and heal them in another order."""

    family: ClassVar[Family] = "rack and group"
    band: ClassVar[Band] = Band("#5b3a29", "swizzle")
    proof: ClassVar[str] = "the toxics due at each second, read back; no answer through any link once all are cut off"
    remedy: ClassVar[str] = "the toxics are removed, rack by rack, and every link answers again"
    exposure_target: ClassVar[TargetKind] = "links"
    drops_traffic: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("way", "links", by_plan=False),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 3_000  # as for a cut

    kind: Literal["swizzle"] = "swizzle"
    among: Annotated[
        tuple[str, ...], Field(description="the racks that have their turn; all of them if none is named")
    ] = ()
    period: Annotated[Duration, Field(ge=100, le=600_000)] = 1_000

    def impact(self) -> Impact:
        """Of racks that are cut one after the other nobody knows when which is."""
        return "unknown"

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Which order the racks are cut off in, and which of the others they are healed in."""
        return {"cut": source.random(), "heal": source.random()}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """There must be an order, and room for both."""
        if plan.cluster is None:
            return
        racks = self.among or tuple(plan.cluster.racks)
        if len({*racks}) < max(RACKS_MIN, len(racks)):
            where = ("among",) if self.among else ()
            yield Problem(where, "a swizzle needs two racks or more, each of them once")
        strangers = [rack for rack in self.among if rack not in plan.cluster.racks]
        if strangers:
            yield Problem(("among",), f"the cluster has no rack `{strangers[0]}`")
        least_ms = 2 * (len(racks) - 1) * self.period + PLATEAU_MS
        if self.for_ is not None and self.for_ < least_ms:
            sentence = f"to cut {len(racks)} racks off and heal them, {format_duration(self.period)} apart, takes "
            yield Problem(("for",), f"{sentence}{format_duration(least_ms)} at least: lengthen it, or shorten `period`")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if a rack has no link to another."""
        racks = sorted(self.among or {*context.world.racks().values()})
        cut = picked(racks, draws["cut"])
        heal = picked(racks, draws["heal"], unlike=cut)
        stretches = {rack: await links_of_rack(rack, "both", context.world) for rack in racks}
        every = [stretch for own in stretches.values() for stretch in own]
        roles = await described(f"racks {', '.join(cut)}", every, context.world)
        roles |= {"cut": list(cut), "heal": list(heal), "period_ms": self.period}
        injection = SwizzleInjection(context, stretches, cut, roles)
        injection.reachable = await answering_links((stretch.link for stretch in every), context)
        return injection


def _silence(context: InjectionContext, rack: str, stretch: LinkStream) -> Put:
    """Under a name that the toxic of the rack at the other end hasn't."""
    return stretch.link.proxy, toxic_on(stretch, f"{context.fault}:{rack}", "timeout", {"timeout": 0})

"""Fault ``swizzle``, which cuts off all racks one by one, and heals them one by one in another order.

``swizzle`` is modelled on FoundationDB's swizzle-clogging, because most defects show while links fail and recover. The
order of the cuts and the different order of the heals are drawn. Each rack is cut off as by the fault ``cut`` with
``rack``; a link between two racks works again only when both racks are healed.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Fault,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    report_each_second,
)
from aftershock.faults.kinds.link.base import link_roles, link_targets, toxic_on
from aftershock.faults.kinds.link.cut import permutation
from aftershock.faults.kinds.probing import SILENCE_US, answering_links, silence_witness, wait_until_answering
from aftershock.faults.runtime.record import Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import Duration, format_duration
from aftershock.faults.targets.links import links_of_rack
from aftershock.faults.targets.values import Link, Toxic

PLATEAU_MS = SILENCE_US // 1000 + 800  # time that all racks must be cut for a probe of their silence
RACKS_MIN = 2


@dataclass(eq=False)
class SwizzleInjection(Injection):
    """Toxics that cut racks off, added rack by rack and removed rack by rack in another order.

    ``toxics`` maps each rack to its proxies and toxics; ``cut`` lists the racks that are cut off now.
    """

    toxics: Mapping[str, Sequence[tuple[str, Toxic]]]
    reachable: Sequence[Link]

    def __post_init__(self) -> None:
        self.toxic_names = {(proxy, toxic.name) for toxics in self.toxics.values() for proxy, toxic in toxics}
        self.undo = Undo("remove_toxics", {"toxics": sorted([proxy, name] for proxy, name in self.toxic_names)})
        self.cut: list[str] = self.targets.roles["cut"][:1]
        self.injected = False
        self.update_lock = asyncio.Lock()  # a read-back must not see half of a change

    async def inject(self) -> None:
        self.injected = True
        await self._add_toxics(self.cut[0])

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Cut and heal racks, and read toxics back each second; while all racks are cut off, no link may answer."""
        clock = self.context.clock
        until_us = until_us or clock.now_us()
        period_us = self.targets.roles["period_ms"] * 1000
        all_cut_us = clock.now_us() + (len(self.toxics) - 1) * period_us
        schedule = asyncio.create_task(self._follow_schedule(clock.now_us(), until_us, period_us))
        try:
            await report_each_second(self._read_back, report, clock, min(all_cut_us, until_us))
            report(await silence_witness(self.reachable, self.context))
            await report_each_second(self._read_back, report, clock, until_us)
            await schedule
        finally:
            schedule.cancel()
            await asyncio.gather(schedule, return_exceptions=True)

    async def confirm_healed(self) -> None:
        await wait_until_answering(self.reachable, self.context)

    async def _follow_schedule(self, began_us: int, until_us: int, period_us: int) -> None:
        """Cut and heal racks, except the first cut, which is the injection, and the last heal, which is the undo."""
        if not self.injected:  # a rehearsal cuts no rack off
            return
        clock, roles = self.context.clock, self.targets.roles
        for number, rack in enumerate(roles["cut"][1:], start=1):
            await clock.sleep_until_us(began_us + number * period_us)
            async with self.update_lock:
                self.cut.append(rack)
                await self._add_toxics(rack)
        heals = roles["heal"][:-1]
        for number, rack in enumerate(heals):
            await clock.sleep_until_us(until_us - (len(heals) - number) * period_us)
            async with self.update_lock:
                self.cut.remove(rack)
                for proxy, toxic in self.toxics[rack]:
                    await run_to_completion(self.context.world.remove_toxic(proxy, toxic.name))

    async def _add_toxics(self, rack: str) -> None:
        for proxy, toxic in self.toxics[rack]:
            await run_to_completion(self.context.world.add_toxic(proxy, toxic))

    async def _read_back(self) -> Witness:
        """Return a witness that Toxiproxy has exactly the toxics of the racks that are cut off now."""
        async with self.update_lock:
            listed = await self.context.world.toxics()
            expected = {(proxy, toxic.name) for rack in self.cut for proxy, toxic in self.toxics[rack]}
        present = self.toxic_names & {(proxy, toxic.name) for proxy, toxics in listed.items() for toxic in toxics}
        what = f"toxics read back from Toxiproxy while these racks are cut off: {', '.join(self.cut)}"
        count = len(self.toxic_names)
        return Witness(what, len(expected), len(present), "toxics", count, ok=present == expected)


class Swizzle(Fault):
    """Cut racks off one by one, and heal them in another order."""

    family = "rack and group"
    band = Band("#5b3a29", "swizzle")
    proof = "Toxiproxy lists exactly the toxics due at each second. No link answers while all racks are cut off."
    remedy = "The toxics are removed rack by rack, which closes every affected connection. Every link answers again."
    exposure_target = "links"
    drops_traffic = True
    exclusive_resources = (ExclusiveResource("traffic", "links", by_plan=False),)
    for_rule = "needed"
    allowance_ms = 3_000  # as for a cut

    drawn = ("{period: 1s, for: 8s}",)
    kind: Literal["swizzle"] = "swizzle"
    among: Annotated[tuple[str, ...], Field(description="racks that are cut off in turn; by default all racks")] = ()
    period: Annotated[
        Duration, Field(ge=100, le=600_000, description="time between the cuts of two racks, and between their heals")
    ] = 1_000

    # the impact is unknown: the journal does not record when each rack is cut off

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Draw the numbers ``cut`` and ``heal``, which select the order of the cuts and the order of the heals."""
        return {"cut": source.random(), "heal": source.random()}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        if plan.cluster is None:
            return
        racks = self.among or tuple(plan.cluster.racks)
        if len({*racks}) < max(RACKS_MIN, len(racks)):
            where = ("among",) if self.among else ()
            yield Problem(where, "a swizzle needs two or more different racks: correct `among`, or add racks")
        if unknown := [rack for rack in self.among if rack not in plan.cluster.racks]:
            yield Problem(("among",), f"the cluster has no rack `{unknown[0]}`: use {', '.join(plan.cluster.racks)}")
        least_ms = 2 * (len(racks) - 1) * self.period + PLATEAU_MS
        if self.for_ is not None and self.for_ < least_ms:
            message = (
                f"the fault `swizzle` on {len(racks)} racks takes at least {format_duration(least_ms)}: lengthen "
                "`for`, or shorten `period`"
            )
            yield Problem(("for",), message)

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        racks = sorted(self.among or {*context.world.racks().values()})
        cut = permutation(racks, draws["cut"])
        heal = permutation(racks, draws["heal"], unlike=cut)
        streams = {rack: await links_of_rack(rack, "both", context.world) for rack in racks}
        all_streams = [stream for own in streams.values() for stream in own]
        roles = await link_roles(f"racks {', '.join(cut)}", all_streams, context.world)
        roles |= {"cut": list(cut), "heal": list(heal), "period_ms": self.period}
        toxics = {
            # the id has the rack, because a stream between two racks gets a toxic for each of its two ends
            rack: [(s.link.proxy, toxic_on(s, f"{context.fault}:{rack}", "timeout", {"timeout": 0})) for s in own]
            for rack, own in streams.items()
        }
        reachable = await answering_links((stream.link for stream in all_streams), context)
        return SwizzleInjection(context, link_targets(all_streams, roles), toxics, reachable)

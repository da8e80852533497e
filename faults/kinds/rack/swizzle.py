"""``swizzle``: racks are cut off one by one, until all are, and healed one by one in another order.

::

    a  ====================            cut: a, b, c, a ``period`` apart
    b     =======================      healed: a, c, b, the last at the end of ``for``
    c        ==============

It is FoundationDB's swizzle-clogging, for the same reason: most of what goes wrong in a cluster that loses its links
goes wrong as they come and go. Both orders are drawn, and differ. A rack is cut off as by ``cut: {rack: ...}``, clients
included; a link between two racks works again only when both are healed.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from aftershock.faults.kinds.fault import (
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
    report_each_second,
)
from aftershock.faults.kinds.link.base import described, targets_of, toxic_on
from aftershock.faults.kinds.link.cut import PROBE_SLACK_MS, no_answers, picked
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import Duration, format_duration
from aftershock.faults.runtime.probing import SILENCE_MS, answering_links, wait_until_answering
from aftershock.faults.runtime.record import Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.targets.links import LinkStream, links_of_rack
from aftershock.faults.targets.values import Link, Toxic

PLATEAU_MS = SILENCE_MS + PROBE_SLACK_MS + 800  # time that all racks must be cut for a probe of their silence
RACKS_MIN = 2
PlacedToxic = tuple[str, Toxic]  # a proxy and a toxic on it


class SwizzleInjection(Injection):
    """Toxics of the racks, added in one order and removed in another. ``cut``: the racks that are cut off now."""

    def __init__(
        self,
        context: InjectionContext,
        streams: Mapping[str, Sequence[LinkStream]],
        order: Sequence[str],
        roles: Mapping[str, Any],
    ) -> None:
        self.context = context
        self.toxics = {rack: [_silence(context, rack, stream) for stream in own] for rack, own in streams.items()}
        self.cut = list(order[:1])
        self.injected = False
        self.reachable: Sequence[Link] = ()
        self.targets = targets_of((stream.link for own in streams.values() for stream in own), roles)
        self.undo = Undo("remove_toxics", {"toxics": sorted([proxy, toxic.name] for proxy, toxic in self._all())})
        self.update_lock = asyncio.Lock()  # a read-back must not see half of a change

    async def inject(self) -> None:
        """Cut off the first rack."""
        self.injected = True
        await self._put_on(self.cut[0])

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Follow the schedule, and read back each second; once all racks are cut off, no link may answer."""
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
        """Wait until every link that answered before answers again."""
        await wait_until_answering(self.reachable, self.context)

    async def _swizzle(self, began_us: int, until_us: int, period_us: int) -> None:
        """Perform all steps but the first cut, which is the injection, and the last heal, which is the undo."""
        if not self.injected:  # a rehearsal cuts no rack off
            return
        clock, roles = self.context.clock, self.targets.roles
        for number, rack in enumerate(roles["cut"][1:], start=1):
            await clock.sleep_until_us(began_us + number * period_us)
            async with self.update_lock:
                self.cut.append(rack)
                await self._put_on(rack)
        heals = roles["heal"][:-1]
        for number, rack in enumerate(heals):
            await clock.sleep_until_us(until_us - (len(heals) - number) * period_us)
            async with self.update_lock:
                self.cut.remove(rack)
                await self._take_off(rack)

    async def _put_on(self, rack: str) -> None:
        for proxy, toxic in self.toxics[rack]:
            await run_to_completion(self.context.world.add_toxic(proxy, toxic))

    async def _take_off(self, rack: str) -> None:
        for proxy, toxic in self.toxics[rack]:
            await run_to_completion(self.context.world.remove_toxic(proxy, toxic.name))

    async def _watch(self, until_us: int, report: Report) -> None:
        await report_each_second(self._read_back, report, self.context.clock, until_us)

    async def _read_back(self) -> Witness:
        """Expect exactly the toxics of the racks that are cut off now."""
        async with self.update_lock:
            toxics = await self.context.world.toxics()
            expected = {(proxy, toxic.name) for rack in self.cut for proxy, toxic in self.toxics[rack]}
        own = {(proxy, toxic.name) for proxy, toxic in self._all()}
        present = own & {(proxy, toxic.name) for proxy, on_proxy in toxics.items() for toxic in on_proxy}
        what = f"toxics read back from Toxiproxy with {', '.join(self.cut)} cut off"
        return Witness(what, len(expected), len(present), "toxics", len(own), ok=present == expected)

    def _all(self) -> Iterator[PlacedToxic]:
        return (placed for toxics in self.toxics.values() for placed in toxics)


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
    among: Annotated[tuple[str, ...], Field(description="the racks that are cut; by default all")] = ()
    period: Annotated[Duration, Field(ge=100, le=600_000)] = 1_000

    def impact(self) -> Impact:
        """Return ``unknown``: the journal does not say when each rack is cut."""
        return "unknown"

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Draw the order of the cuts, and the order of the heals among the other ones."""
        return {"cut": source.random(), "heal": source.random()}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """Yield fewer than two racks, repeated and unknown racks, and a ``for`` too short for both orders."""
        if plan.cluster is None:
            return
        racks = self.among or tuple(plan.cluster.racks)
        if len({*racks}) < max(RACKS_MIN, len(racks)):
            where = ("among",) if self.among else ()
            yield Problem(where, "a swizzle needs two or more racks, each of them once")
        unknown = [rack for rack in self.among if rack not in plan.cluster.racks]
        if unknown:
            yield Problem(("among",), f"the cluster has no rack `{unknown[0]}`")
        least_ms = 2 * (len(racks) - 1) * self.period + PLATEAU_MS
        if self.for_ is not None and self.for_ < least_ms:
            sentence = f"cutting {len(racks)} racks off and healing them, {format_duration(self.period)} apart, takes "
            yield Problem(
                ("for",), f"{sentence}at least {format_duration(least_ms)}: lengthen `for`, or shorten `period`"
            )

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Resolve the links of each rack; raise FaultError if a rack has none to another."""
        racks = sorted(self.among or {*context.world.racks().values()})
        cut = picked(racks, draws["cut"])
        heal = picked(racks, draws["heal"], unlike=cut)
        streams = {rack: await links_of_rack(rack, "both", context.world) for rack in racks}
        all_streams = [stream for own in streams.values() for stream in own]
        roles = await described(f"racks {', '.join(cut)}", all_streams, context.world)
        roles |= {"cut": list(cut), "heal": list(heal), "period_ms": self.period}
        injection = SwizzleInjection(context, streams, cut, roles)
        injection.reachable = await answering_links((stream.link for stream in all_streams), context)
        return injection


def _silence(context: InjectionContext, rack: str, stream: LinkStream) -> PlacedToxic:
    """Return a toxic whose name differs from that of the rack at the other end."""
    return stream.link.proxy, toxic_on(stream, f"{context.fault}:{rack}", "timeout", {"timeout": 0})

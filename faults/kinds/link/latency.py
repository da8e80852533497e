"""How a latency is witnessed: the same small request over the same link, before and during.

Rules. A link counts as slowed if the median of its probes rose, over the quickest before the fault (a busy host only
adds, so a quiet moment is waited for, but not for long), by at least 0.8 x the delay in force (the smallest in force
while the probes ran, for each stream it sits on). A probe during which the delay changed is thrown away: Toxiproxy
then lets a held chunk go early. Delays of other faults on the link, read from Toxiproxy, come off first, so that
overlapping faults don't vouch for each other. A link that gives no answer is as slow as the time it kept us waiting;
if that is less than the delay, something else broke it (its broker is down, say) and it is left out. A link with no
way in from the host can't be probed. Where no link is left, the toxics read back are the only witness, and ``what``
says so.

Latency toxics that follow a schedule: put on with its first delay, updated at each turn, probed at each spike.

A delay on links that changes as the compiler has drawn it: what ``latency`` and ``slow_rack`` share.

Toxiproxy's own ``jitter`` can't be reproduced, so all that changes is a schedule: one delay for every ``every`` of the
fault, and the toxics are updated as it says::

    jitter   delay +- jitter, uniform            ramp_to   in equal steps from delay to ramp_to
    spikes   drawn turns of a larger delay, neither the first nor the last

All of them go together; a spike replaces what it falls on.

Toxics of several faults on one link add up. An update lets one chunk that a toxic holds go early, and a delay is not
a queue: whatever comes meanwhile is late by the same time, all together. How it is witnessed stands in
``slowness.py``; a spike is probed as it comes.

``latency``: delay what flows over some links, always alike or by a schedule (``delayed.py``).
"""

import asyncio
import math
import random
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import Band, Draws, Fault, Impact, Injection, InjectionContext, PlanContext, Report
from aftershock.faults.kinds.link.base import LinkFault, ToxicInjection, toxic_on
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import Duration, format_duration
from aftershock.faults.runtime.record import Witness
from aftershock.faults.targets.links import LinkStream, resolve
from aftershock.faults.targets.values import Link, Toxic

PROBES = 3
TRIES = 6
SHARE = 0.8
QUIET_MS = 3.0  # a link this quick is at rest, however short the delay asked for
QUIET_TURNS = 10
QUIET_TURN_US = 50_000


@dataclass(frozen=True)
class _Measured:
    answered: bool
    ms: float


@dataclass
class _Lowest:
    """The smallest delay that was in force while a measuring lasted: any of its probes may have met that one."""

    ms: int


@dataclass(frozen=True)
class _Rise:
    link: Link
    rise_ms: float
    asked_ms: float

    @property
    def margin_ms(self) -> float:
        return self.rise_ms - SHARE * self.asked_ms


class Slowness:
    """Probes some links before and during a latency fault. ``in_force_ms`` is the delay on each stream just now."""

    def __init__(self, context: InjectionContext, own: Mapping[LinkStream, str], delay_ms: int) -> None:
        self.context = context
        self.own = frozenset(own.values())
        self.streams: dict[Link, set[str]] = {}
        for stretch in own:
            self.streams.setdefault(stretch.link, set()).add(stretch.stream)
        self.before: dict[Link, float] = {}
        self.in_force_ms = delay_ms
        self._lowest: list[_Lowest] = []
        self._turns = 0  # odd while the delay is being changed

    def changing_to(self, delay_ms: int) -> None:
        """The delay is about to change: from here on either may be met."""
        for lowest in self._lowest:
            lowest.ms = min(lowest.ms, delay_ms)
        self._turns += 1

    def changed_to(self, delay_ms: int) -> None:
        """The delay has changed on all links."""
        self.in_force_ms = delay_ms
        self._turns += 1

    async def measure_before(self) -> None:
        """The round trips before the fault; a link that doesn't answer has none, and won't be asked again."""
        others = await self._others_ms()
        links = list(self.streams)
        for turn in range(QUIET_TURNS):
            if turn:
                await self.context.clock.sleep_until_us(self.context.clock.now_us() + QUIET_TURN_US)
            measured = await asyncio.gather(*(self._probes(link) for link in links))
            for link, results in zip(links, measured, strict=True):
                if answers := [result.ms for result in results if result.answered]:
                    quickest = max(0.0, min(answers) - others[link])
                    self.before[link] = min(quickest, self.before.get(link, quickest))
            links = [link for link in links if self.before.get(link, 0.0) > self._quiet_ms(link)]
            if not links:
                return

    async def measure(self, probes: int = PROBES) -> Witness:
        """Probe every link that answered before; the witness is of the one that rose least for its delay."""
        if not self.before:
            return _unprobed("there is no way into these links from the host")
        lowest = _Lowest(self.in_force_ms)
        self._lowest.append(lowest)
        others = await self._others_ms()
        measured = await asyncio.gather(*(self._probe(link, probes) for link in self.before))
        self._lowest.remove(lowest)
        rises = [
            _Rise(link, result.ms - others[link] - self.before[link], lowest.ms * len(self.streams[link]))
            for link, result in zip(self.before, measured, strict=True)
            if result.answered or result.ms >= SHARE * lowest.ms * len(self.streams[link])
        ]
        return _judged(rises, probes) if rises else _unprobed("nothing answers at the end of these links")

    def _quiet_ms(self, link: Link) -> float:
        """So little that it can't make a true delay look too small."""
        return max(QUIET_MS, (1 - SHARE) * self.in_force_ms * len(self.streams[link]))

    async def _probe(self, link: Link, probes: int) -> _Measured:
        results = await self._probes(link, probes)
        answered = [result.ms for result in results if result.answered]
        return _Measured(bool(answered), median(answered or [result.ms for result in results]))

    async def _probes(self, link: Link, probes: int = PROBES) -> list[_Measured]:
        """So many undisturbed ones, or as many as there are in TRIES; where every one was disturbed, these."""
        undisturbed: list[_Measured] = []
        disturbed: list[_Measured] = []
        while len(undisturbed) < probes and len(undisturbed) + len(disturbed) < TRIES:
            turn = self._turns
            result = await self._once(link)
            (undisturbed if turn == self._turns and turn % 2 == 0 else disturbed).append(result)
        return undisturbed or disturbed

    async def _once(self, link: Link) -> _Measured:
        began_us = self.context.clock.now_us()
        try:
            return _Measured(answered=True, ms=await self.context.world.probe_ms(link))
        except FaultError:
            return _Measured(answered=False, ms=(self.context.clock.now_us() - began_us) / 1000)

    async def _others_ms(self) -> dict[Link, float]:
        return await others_ms(self.streams, self.own, self.context)


async def others_ms(links: Iterable[Link], own: Container[str], context: InjectionContext) -> dict[Link, float]:
    """The delay that latency toxics, but for our ``own``, put on a round trip over each link."""
    now = await context.world.toxics()
    return {
        link: float(
            sum(
                toxic.attributes.get("latency", 0)
                for toxic in now.get(link.proxy, ())
                if toxic.type == "latency" and toxic.name not in own
            )
        )
        for link in links
    }


def _judged(rises: list[_Rise], probes: int) -> Witness:
    least = min(rises, key=lambda rise: rise.margin_ms)
    what = f"the median round trip through {least.link.proxy}, the least slowed of {len(rises)} links, rose"
    ok = least.margin_ms >= 0
    return Witness(what, least.asked_ms, round(least.rise_ms, 3), "ms", probes * len(rises), ok)


def _unprobed(why: str) -> Witness:
    return Witness(f"no probe, {why}; the toxics read back are the witness", 0, 0, "probes", 0, ok=True)


PROBE_SLACK_MS = 100  # what a probe takes beside the delay, generously


@dataclass(frozen=True)
class Schedule:
    """One delay for each turn of ``every_ms``; a single one lasts. ``spikes``: the turns that are one."""

    delays_ms: tuple[int, ...]
    every_ms: int
    spikes: frozenset[int] = frozenset()

    @property
    def steady_ms(self) -> int:
        """The largest delay that is no spike."""
        return max((ms for turn, ms in enumerate(self.delays_ms) if turn not in self.spikes), default=0)


class DelayInjection(ToxicInjection):
    """One latency toxic for each stream of each link, changed as the schedule says."""

    def __init__(
        self, context: InjectionContext, stretches: tuple[LinkStream, ...], schedule: Schedule, roles: Mapping[str, Any]
    ) -> None:
        first = {"latency": schedule.delays_ms[0], "jitter": 0}
        super().__init__(context, {each: toxic_on(each, context.fault, "latency", first) for each in stretches}, roles)
        self.schedule = schedule
        own = {stretch: toxic.name for stretch, toxic in self.toxics.items()}
        self.slowness = Slowness(context, own, schedule.delays_ms[0])
        streams = max(len(streams) for streams in self.slowness.streams.values())
        self.measuring_us = PROBES * (schedule.steady_ms * streams + PROBE_SLACK_MS) * 1000
        self.began_us = 0
        self.turn = asyncio.Lock()  # the schedule and the read-back must not see each other's half

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Watch as every link fault is watched, while the schedule goes on."""
        self.began_us = self.context.clock.now_us()
        schedule = asyncio.create_task(self._follow_schedule(report))
        try:
            await super().hold(until_us, report)
        finally:
            schedule.cancel()
            await asyncio.gather(schedule, return_exceptions=True)

    async def measure(self) -> Witness:
        """How much slower the round trips are."""
        return await self.slowness.measure()

    async def read_back(self) -> Witness:
        """The toxics, not in the middle of a change."""
        async with self.turn:
            return await super().read_back()

    async def _follow_schedule(self, report: Report) -> None:
        async with asyncio.TaskGroup() as spikes:
            for turn, delay_ms in enumerate(self.schedule.delays_ms[1:], start=1):
                await self.context.clock.sleep_until_us(self.began_us + turn * self.schedule.every_ms * 1000)
                async with self.turn:
                    await self._update(delay_ms, report)
                if turn in self.schedule.spikes:
                    spikes.create_task(self._probe_spike(report))

    async def _update(self, delay_ms: int, report: Report) -> None:
        self.slowness.changing_to(delay_ms)
        for stretch, old in list(self.toxics.items()):
            self.toxics[stretch] = replace(old, attributes={**old.attributes, "latency": delay_ms})
            await self._update_one(stretch.link.proxy, self.toxics[stretch], report)
        self.slowness.changed_to(delay_ms)

    async def _update_one(self, proxy: str, toxic: Toxic, report: Report) -> None:
        try:
            await self.context.world.update_toxic(proxy, toxic)
        except FaultError as error:
            report(Witness(f"an update of the toxic on {proxy}: {error}", 1, 0, "updates", 1, ok=False))

    async def _probe_spike(self, report: Report) -> None:
        """One probe of each link, which a turn has room for."""
        report(await self.slowness.measure(probes=1))


MOMENT_MS = 500  # a delay that still makes "moments" when it lies on both streams


class Spikes(BaseModel):
    """So many turns, drawn, of a larger delay; a turn is one ``every``, and the first and the last are none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: Annotated[StrictInt, Field(ge=1, le=100)]
    delay: Annotated[Duration, Field(ge=1, le=600_000)]


class DelayedFault(Fault):
    """A fault that delays what flows over some links."""

    delay: Annotated[Duration, Field(ge=1, le=600_000)]
    jitter: Annotated[Duration, Field(description="the delay is drawn anew every `every`, so much around it")] = 0
    ramp_to: Annotated[Duration, Field(ge=1, le=600_000, description="the delay at the end")] | None = None
    spikes: Spikes | None = None
    every: Annotated[Duration, Field(ge=100, description="how long a delay lasts where it changes")] = 500

    @model_validator(mode="after")
    def _never_negative(self) -> Self:
        lowest = min(self.delay, self.ramp_to or self.delay)
        if self.jitter > lowest:
            sentence = f"jitter of {self.jitter}ms is more than the delay of {lowest}ms; make it smaller"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    @property
    def turns(self) -> int:
        """How many delays a schedule has."""
        return math.ceil((self.for_ or 0) / self.every)

    def draw(self, source: random.Random) -> dict[str, Any]:
        """``delay_ms``: one for every turn, where it changes; ``spikes``: which turns are; and ``any`` roles."""
        draws = super().draw(source)
        if not (self.jitter or self.ramp_to or self.spikes):
            return draws
        delays = [round(source.uniform(base - self.jitter, base + self.jitter)) for base in self._bases()]
        if self.spikes:
            inner = range(1, self.turns - 1)
            draws["spikes"] = sorted(source.sample(inner, min(self.spikes.count, len(inner))))
            delays = [self.spikes.delay if turn in draws["spikes"] else ms for turn, ms in enumerate(delays)]
        return draws | {"delay_ms": delays}

    def impact(self) -> Impact:
        """A short delay is nothing but late."""
        spike = self.spikes.delay if self.spikes else 0
        largest = max(self.delay + self.jitter, (self.ramp_to or 0) + self.jitter, spike)
        return "moments" if largest <= MOMENT_MS else "unknown"

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- it is about its own times
        """Schedules that don't fit into the time the fault has."""
        if self.for_ is None:
            return
        if self.ramp_to is not None and self.turns < 2:  # noqa: PLR2004 -- from one delay to another
            yield Problem(("ramp_to",), f"a ramp takes two turns at least: make `every` {self.for_ // 2}ms or less")
        if self.spikes and self.spikes.count > self.turns - 2:
            sentence = f"there are {self.turns} turns, the first and the last without a spike: "
            yield Problem(("spikes", "count"), sentence + "ask for fewer, or for a shorter `every`")
        if self.spikes and 2 * self.spikes.delay + PROBE_SLACK_MS > self.every:
            sentence = "a spike ends with its turn, and what it holds is let go then: make `every` "
            room = format_duration(2 * self.spikes.delay + PROBE_SLACK_MS)
            yield Problem(("spikes", "delay"), sentence + f"{room} or longer, a round trip with such a delay")

    async def injection(
        self, context: InjectionContext, stretches: tuple[LinkStream, ...], roles: Mapping[str, Any], draws: Draws
    ) -> DelayInjection:
        """The delay on these streams, which have been probed without it."""
        delays = tuple(draws.get("delay_ms") or (self.delay,))
        schedule = Schedule(delays, self.every, frozenset(draws.get("spikes") or ()))
        injection = DelayInjection(context, stretches, schedule, roles)
        await injection.slowness.measure_before()
        return injection

    def _bases(self) -> list[float]:
        end, last = self.delay if self.ramp_to is None else self.ramp_to, max(1, self.turns - 1)
        return [self.delay + (end - self.delay) * turn / last for turn in range(self.turns)]


class Latency(DelayedFault, LinkFault):
    """Delay one or both directions of some links."""

    band: ClassVar[Band] = Band("#ff7f0e", "latency")
    proof: ClassVar[str] = "probes through each link, slower by the delay asked for; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed"
    allowance_ms: ClassVar[int] = 500

    kind: Literal["latency"] = "latency"

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if the selector names no link."""
        stretches = await resolve(self.link, context.world, draws)
        return await self.injection(context, stretches, await self.described(stretches, context.world), draws)

"""Latency faults: ``latency`` delays traffic over some links, constantly or by a schedule; base of ``slow_rack``.

Schedule. Toxiproxy's own ``jitter`` is not reproducible, so a changing delay is a schedule that the compiler draws: one
delay for every ``every`` of the fault (a turn), at which the toxics are updated::

    jitter   delay +- jitter, uniform            ramp_to   in equal steps from delay to ramp_to
    spikes   drawn turns of a larger delay, never the first or the last

All three can be combined; a spike replaces the delay of its turn. Toxics of several faults on one link add up. When a
toxic is updated, one chunk of data that it holds is sent early. A delay does not limit throughput: all data is late by
the same time.

Witness. The same small request goes over the same link before and during the fault. A link counts as slowed if the
median of its probes rose, compared with the fastest before the fault, by at least 0.8 x the delay in force (the
smallest in force while the probes ran, for each affected stream). A busy host only adds time, so the measurement before
the fault waits a short time for a quiet moment. A probe during which the delay changed is discarded. Delays of other
faults on the link, read from Toxiproxy, are subtracted first, so that overlapping faults don't count for each other.
The latency of a link without an answer is the time that the probe waited; if that is less than the delay, something
else broke it (its broker is down, for example) and it is left out. A link that can't be dialled from the host can't be
probed. If no link remains, the toxics read back are the only witness, and ``what`` says so. Spikes are probed when they
occur.
"""

import asyncio
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    Fault,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
)
from aftershock.faults.kinds.link.base import SHARE, LinkFault, ToxicInjection, foreign_latency_ms, toxic_on
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import Duration, format_duration
from aftershock.faults.runtime.record import Witness
from aftershock.faults.targets.links import LinkStream, resolve
from aftershock.faults.targets.values import Link

PROBES = 3
TRIES = 6
PROBE_SLACK_MS = 100  # upper bound of a probe's time beyond the delay
QUIET_MS = 3.0  # a link this fast is idle, however short the requested delay
QUIET_TRIES = 10
QUIET_PAUSE_US = 50_000
MOMENT_MS = 500  # on both streams it adds up to the second that the impact `moments` allows


class Spikes(BaseModel):
    """Turns of a larger delay, drawn among all but the first and the last."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: Annotated[StrictInt, Field(ge=1, le=100)]
    delay: Annotated[Duration, Field(ge=1, le=600_000)]


class DelayedFault(Fault):
    """Parameters and schedule of a fault that delays traffic over some links."""

    delay: Annotated[Duration, Field(ge=1, le=600_000)]
    jitter: Annotated[Duration, Field(description="the delay is redrawn every `every`, this much around it")] = 0
    ramp_to: Annotated[Duration, Field(ge=1, le=600_000, description="the delay at the end")] | None = None
    spikes: Spikes | None = None
    every: Annotated[Duration, Field(ge=100, description="how long each delay of a schedule lasts")] = 500

    @model_validator(mode="after")
    def _never_negative(self) -> Self:
        lowest = min(self.delay, self.ramp_to or self.delay)
        if self.jitter > lowest:
            sentence = f"jitter of {self.jitter}ms is more than the delay of {lowest}ms; make it smaller"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    @property
    def turns(self) -> int:
        """Number of delays in a schedule."""
        return math.ceil((self.for_ or 0) / self.every)

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Draw ``delay_ms``, one for every turn, if the delay changes; ``spikes``: their turns; and ``any`` roles."""
        draws = super().draw(source)
        if not (self.jitter or self.ramp_to or self.spikes):
            return draws
        end, last = self.delay if self.ramp_to is None else self.ramp_to, max(1, self.turns - 1)
        bases = [self.delay + (end - self.delay) * turn / last for turn in range(self.turns)]
        delays = [round(source.uniform(base - self.jitter, base + self.jitter)) for base in bases]
        if self.spikes:
            inner = range(1, self.turns - 1)
            draws["spikes"] = sorted(source.sample(inner, min(self.spikes.count, len(inner))))
            delays = [self.spikes.delay if turn in draws["spikes"] else ms for turn, ms in enumerate(delays)]
        return draws | {"delay_ms": delays}

    def impact(self) -> Impact:
        """Return ``moments`` if no delay is longer than ``MOMENT_MS``."""
        spike = self.spikes.delay if self.spikes else 0
        largest = max(self.delay + self.jitter, (self.ramp_to or 0) + self.jitter, spike)
        return "moments" if largest <= MOMENT_MS else "unknown"

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- only its own times matter
        """Yield schedules that don't fit into the fault's ``for``."""
        if self.for_ is None:
            return
        if self.ramp_to is not None and self.turns < 2:  # noqa: PLR2004 -- from one delay to another
            yield Problem(("ramp_to",), f"a ramp needs at least two turns: make `every` {self.for_ // 2}ms or less")
        if self.spikes and self.spikes.count > self.turns - 2:
            sentence = f"there are {self.turns} turns, and the first and the last can't be spikes: "
            yield Problem(("spikes", "count"), sentence + "lower `count`, or make `every` shorter")
        if self.spikes and 2 * self.spikes.delay + PROBE_SLACK_MS > self.every:
            room = format_duration(2 * self.spikes.delay + PROBE_SLACK_MS)
            sentence = f"a spike ends with its turn, before a round trip with this delay: make `every` {room} or longer"
            yield Problem(("spikes", "delay"), sentence)

    async def injection_on(
        self, context: InjectionContext, streams: tuple[LinkStream, ...], roles: Mapping[str, Any], draws: Draws
    ) -> "DelayInjection":
        """Return the injection on these streams, after measuring them without the delay."""
        delays = tuple(draws.get("delay_ms") or (self.delay,))
        schedule = Schedule(delays, self.every, frozenset(draws.get("spikes") or ()))
        injection = DelayInjection(context, streams, schedule, roles)
        await injection.measure_before()
        return injection


class Latency(DelayedFault, LinkFault):
    """Delay one or both directions of some links."""

    band: ClassVar[Band] = Band("#ff7f0e", "latency")
    proof: ClassVar[str] = "probes through each link, slower by the delay asked for; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed"
    allowance_ms: ClassVar[int] = 500

    kind: Literal["latency"] = "latency"

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Resolve the link; raise FaultError if it selects none."""
        streams = await resolve(self.link, context.world, draws)
        return await self.injection_on(context, streams, await self.described(streams, context.world), draws)


@dataclass(frozen=True)
class Schedule:
    """One delay for each turn of ``every_ms``; a single delay lasts for the whole fault.

    ``spikes``: the turns that are spikes.
    """

    delays_ms: tuple[int, ...]
    every_ms: int
    spikes: frozenset[int] = frozenset()

    @property
    def steady_ms(self) -> int:
        """Largest delay outside spikes."""
        return max((ms for turn, ms in enumerate(self.delays_ms) if turn not in self.spikes), default=0)


@dataclass
class _LowestDelay:
    """Smallest delay in force during one measurement, which applies to any of its probes."""

    ms: int


@dataclass(frozen=True)
class _Probe:
    answered: bool
    ms: float


class DelayInjection(ToxicInjection):
    """One latency toxic for each stream of each link, updated by the schedule.

    ``before_ms``: fastest round trips before the fault.
    """

    def __init__(
        self, context: InjectionContext, streams: tuple[LinkStream, ...], schedule: Schedule, roles: Mapping[str, Any]
    ) -> None:
        first = {"latency": schedule.delays_ms[0], "jitter": 0}
        toxics = {stream: toxic_on(stream, context.fault, "latency", first) for stream in streams}
        super().__init__(context, toxics, roles)
        self.schedule = schedule
        self.before_ms: dict[Link, float] = {}
        self.delay_ms = schedule.delays_ms[0]
        self.update_lock = asyncio.Lock()  # a read-back must not see half of an update
        self._lowest: list[_LowestDelay] = []
        self._changes = 0  # odd while the delay is being changed

    @property
    def measuring_us(self) -> int:
        """Time of all probes of a link with the largest steady delay on every affected stream."""
        streams = max(map(len, self.streams.values()))
        return PROBES * (self.schedule.steady_ms * streams + PROBE_SLACK_MS) * 1000

    async def measure_before(self) -> None:
        """Measure the round trips before the fault; a link that doesn't answer is not probed again."""
        foreign_ms = await self._foreign_ms()
        links, clock = list(self.streams), self.context.clock
        for attempt in range(QUIET_TRIES):
            if attempt:
                await clock.sleep_until_us(clock.now_us() + QUIET_PAUSE_US)
            results = await asyncio.gather(*(self._probe_link(link, PROBES) for link in links))
            for link, probes in zip(links, results, strict=True):
                if answered := [probe.ms for probe in probes if probe.answered]:
                    fastest = max(0.0, min(answered) - foreign_ms[link])
                    self.before_ms[link] = min(fastest, self.before_ms.get(link, fastest))
            # a round trip this short can't make a true delay look too small
            quiet_ms = {link: max(QUIET_MS, (1 - SHARE) * self._asked_ms(link, self.delay_ms)) for link in links}
            links = [link for link in links if self.before_ms.get(link, 0.0) > quiet_ms[link]]
            if not links:
                return

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Observe like every link injection, while the schedule goes on."""
        schedule = asyncio.create_task(self._follow_schedule(self.context.clock.now_us(), report))
        try:
            await super().hold(until_us, report)
        finally:
            schedule.cancel()
            await asyncio.gather(schedule, return_exceptions=True)

    async def measure(self, probes: int = PROBES) -> Witness:
        """Probe every link that answered before; the witness describes the link with the smallest rise."""
        if not self.before_ms:
            return _unprobed("there is no way into these links from the host")
        lowest = _LowestDelay(self.delay_ms)
        self._lowest.append(lowest)
        foreign_ms = await self._foreign_ms()
        results = await asyncio.gather(*(self._probe_link(link, probes) for link in self.before_ms))
        self._lowest.remove(lowest)
        rises: list[tuple[float, int, Link]] = []
        for link, link_probes in zip(self.before_ms, results, strict=True):
            answered = [probe.ms for probe in link_probes if probe.answered]
            took_ms = median(answered or [probe.ms for probe in link_probes])
            asked_ms = self._asked_ms(link, lowest.ms)
            if answered or took_ms >= SHARE * asked_ms:
                rises.append((took_ms - foreign_ms[link] - self.before_ms[link], asked_ms, link))
        if not rises:
            return _unprobed("nothing answers at the end of these links")
        rise_ms, asked_ms, link = min(rises, key=lambda rise: rise[0] - SHARE * rise[1])
        what = f"the median round trip through {link.proxy}, the least slowed of {len(rises)} links, rose"
        ok = rise_ms - SHARE * asked_ms >= 0
        return Witness(what, asked_ms, round(rise_ms, 3), "ms", probes * len(rises), ok)

    async def read_back(self) -> Witness:
        """Read the toxics back, but not in the middle of an update."""
        async with self.update_lock:
            return await super().read_back()

    def _asked_ms(self, link: Link, delay_ms: int) -> int:
        return delay_ms * len(self.streams[link])

    async def _foreign_ms(self) -> dict[Link, float]:
        return await foreign_latency_ms(self.streams, self.toxic_names, self.context)

    async def _probe_link(self, link: Link, count: int) -> list[_Probe]:
        """Return up to ``count`` undisturbed probes out of ``TRIES``, or disturbed probes if there are no others."""
        undisturbed: list[_Probe] = []
        disturbed: list[_Probe] = []
        while len(undisturbed) < count and len(undisturbed) + len(disturbed) < TRIES:
            changes, began_us = self._changes, self.context.clock.now_us()
            try:
                probe = _Probe(answered=True, ms=await self.context.world.probe_ms(link))
            except FaultError:
                probe = _Probe(answered=False, ms=(self.context.clock.now_us() - began_us) / 1000)
            (undisturbed if changes == self._changes and changes % 2 == 0 else disturbed).append(probe)
        return undisturbed or disturbed

    async def _follow_schedule(self, began_us: int, report: Report) -> None:
        async with asyncio.TaskGroup() as spike_probes:
            for turn, delay_ms in enumerate(self.schedule.delays_ms[1:], start=1):
                await self.context.clock.sleep_until_us(began_us + turn * self.schedule.every_ms * 1000)
                async with self.update_lock:
                    await self._update(delay_ms, report)
                if turn in self.schedule.spikes:
                    spike_probes.create_task(self._probe_spike(report))

    async def _update(self, delay_ms: int, report: Report) -> None:
        for lowest in self._lowest:  # from here on, a running measurement may meet either delay
            lowest.ms = min(lowest.ms, delay_ms)
        self._changes += 1
        for stream, old in list(self.toxics.items()):
            self.toxics[stream] = replace(old, attributes={**old.attributes, "latency": delay_ms})
            try:
                await self.context.world.update_toxic(stream.link.proxy, self.toxics[stream])
            except FaultError as error:
                what = f"an update of the toxic on {stream.link.proxy}: {error}"
                report(Witness(what, 1, 0, "updates", 1, ok=False))
        self.delay_ms = delay_ms
        self._changes += 1

    async def _probe_spike(self, report: Report) -> None:
        report(await self.measure(probes=1))  # a turn has room for one probe of each link


def _unprobed(reason: str) -> Witness:
    return Witness(f"no probe, {reason}; the toxics read back are the witness", 0, 0, "probes", 0, ok=True)

"""Faults ``latency`` and ``slow_rack``, which delay traffic over some links, constantly or by a schedule of delays.

``latency`` delays the links that ``link`` selects; ``slow_rack`` delays all traffic into and out of a rack, as if the
rack were far away. A delay does not limit throughput, and the delays of several faults on one link add up.

The schedule of delays divides the fault into intervals of the length ``every``. The compiler draws one delay for each
interval, because Toxiproxy's own ``jitter`` is not reproducible, and the latency toxics are updated at the start of
each interval. ``jitter`` draws each delay uniformly around ``delay``; ``ramp_to`` raises or lowers the delay in equal
steps; ``spikes`` draws intervals with another delay. When the delay of a toxic is changed, Toxiproxy sends some data
early.

The witness compares round trips of small requests, less the delays that other faults add to the link. The median round
trip over a link must exceed the fastest round trip before the fault by at least 0.8 x the smallest delay in force
during the measurement (twice that if both directions are delayed). A request without a response counts with the time
that it waited; if it failed sooner than the delay, another fault is on its link, and the link is not judged.
"""

import asyncio
import math
import random
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    Fault,
    Injection,
    InjectionContext,
    OnLink,
    PlanContext,
    Report,
)
from aftershock.faults.kinds.link.base import SHARE, LinkFault, ToxicInjection, link_roles, link_targets, toxic_on
from aftershock.faults.runtime.record import Witness
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import Duration, format_duration
from aftershock.faults.targets.links import LinkStream, Ways, links_of_rack, resolve
from aftershock.faults.targets.values import Link
from aftershock.faults.targets.world import World

PROBES = 3
TRIES = 6
PROBE_SLACK_MS = 100  # upper bound of a probe's time beyond the delay
QUIET_MS = 3.0  # a link this fast is idle, however short the requested delay
QUIET_TRIES = 10
QUIET_PAUSE_US = 50_000


class Spikes(BaseModel):
    """Delay spikes, that is ``count`` intervals of the schedule that are drawn to have another delay."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: Annotated[StrictInt, Field(ge=1, le=100)]
    delay: Annotated[Duration, Field(ge=1, le=600_000)]


class DelayFault(Fault):
    """Base of faults that delay traffic over some links, with the parameters of the schedule of delays."""

    unavailable = "moments"
    proof = "Probes through each link are slower by the requested delay. Toxiproxy lists the toxics (read each second)."
    remedy = "The toxics are removed. Connections stay open."
    exposure_target = "links"
    for_rule = "needed"

    delay: Annotated[Duration, Field(ge=1, le=600_000)]
    jitter: Annotated[Duration, Field(description="largest difference from `delay`, drawn for each interval")] = 0
    ramp_to: Annotated[Duration, Field(ge=1, le=600_000)] | None = Field(
        default=None, description="the delay at the end of the fault, reached from `delay` in equal steps"
    )
    spikes: Spikes | None = None
    every: Annotated[Duration, Field(ge=100, description="length of an interval, in which the delay is constant")] = 500

    @model_validator(mode="after")
    def _never_negative(self) -> Self:
        lowest_ms = min(self.delay, self.ramp_to or self.delay)
        if self.jitter > lowest_ms:
            raise ValueError(f"`jitter` of {self.jitter}ms exceeds the lowest delay of {lowest_ms}ms; lower `jitter`")
        return self

    @property
    def intervals(self) -> int:
        return math.ceil((self.for_ or 0) / self.every)

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Draw the fault's random choices, including the delay of each interval and the intervals with spikes."""
        draws = super().draw(source)
        if not (self.jitter or self.ramp_to or self.spikes):
            return draws
        end, last = self.delay if self.ramp_to is None else self.ramp_to, max(1, self.intervals - 1)
        bases = [self.delay + (end - self.delay) * number / last for number in range(self.intervals)]
        delays = [round(source.uniform(base - self.jitter, base + self.jitter)) for base in bases]
        if self.spikes:
            inner = range(1, self.intervals - 1)
            draws["spikes"] = sorted(source.sample(inner, min(self.spikes.count, len(inner))))
            delays = [self.spikes.delay if number in draws["spikes"] else ms for number, ms in enumerate(delays)]
        return draws | {"delay_ms": delays}

    def delay_ms(self) -> int:
        """Return the largest delay of the schedule, for both directions."""
        spike_ms = self.spikes.delay if self.spikes else 0
        return 2 * max(self.delay + self.jitter, (self.ramp_to or 0) + self.jitter, spike_ms)

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- only its own times matter
        if self.for_ is None:
            return
        if self.ramp_to is not None and self.intervals < 2:  # noqa: PLR2004 -- from one delay to another
            message = f"`ramp_to` needs at least two intervals of the length `every`: set `every: {self.for_ // 2}ms`"
            yield Problem(("ramp_to",), message)
        if self.spikes and self.spikes.count > self.intervals - 2:
            message = f"only {max(0, self.intervals - 2)} intervals can be spikes (not the first and the last)"
            yield Problem(("spikes", "count"), f"{message}: lower `count` or `every`")
        if self.spikes and 2 * self.spikes.delay + PROBE_SLACK_MS > self.every:
            room = format_duration(2 * self.spikes.delay + PROBE_SLACK_MS)
            message = f"a spike lasts {self.every}ms (`every`), too short to measure the delay: set `every` to {room}"
            yield Problem(("spikes", "delay"), message)

    @abstractmethod
    async def select(self, world: World, draws: Draws) -> tuple[Sequence[LinkStream], dict[str, Any]]:
        """Return the link streams to delay, and the journal entry ``roles`` about the targets."""

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        streams, roles = await self.select(context.world, draws)
        delays_ms: Sequence[int] = draws.get("delay_ms") or [self.delay]
        first = {"latency": delays_ms[0], "jitter": 0}
        toxics = {stream: toxic_on(stream, context.fault, "latency", first) for stream in streams}
        spikes = frozenset(draws.get("spikes") or ())
        injection = DelayInjection(context, link_targets(streams, roles), toxics, delays_ms, self.every * 1000, spikes)
        await injection.measure_before()
        return injection


class Latency(DelayFault, LinkFault):
    """Delay traffic over some links, in one direction or in both directions."""

    band = Band("#ff7f0e", "latency")
    allowance_ms = 500

    drawn = (
        "{link: CLIENT_LINK, delay: [20ms, 100ms, 400ms]}",
        "{link: CLIENT_LINK, delay: 50ms, jitter: 40ms}",
        "{link: NODE_LINK, delay: [20ms, 100ms, 400ms]}",
    )
    on_link = OnLink("open", "accepted", "late", "slow responses")
    kind: Literal["latency"] = "latency"

    async def select(self, world: World, draws: Draws) -> tuple[Sequence[LinkStream], dict[str, Any]]:
        streams = await resolve(self.link, world, draws)
        return streams, await self.target_roles(streams, world)


class SlowRack(DelayFault):
    """Delay all traffic into and out of a rack."""

    family = "rack and group"
    band = Band("#ffbb78", "slow_rack")
    allowance_ms = 1_000

    drawn = ("{rack: RACK, delay: [20ms, 100ms], ways: [both, in, out]}",)
    kind: Literal["slow_rack"] = "slow_rack"
    rack: str
    ways: Annotated[Ways, Field(description="direction of the delayed traffic, as seen from the rack")] = "both"

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().problems(plan)
        if plan.cluster is not None and tuple(plan.cluster.racks) == (self.rack,):
            yield Problem(("rack",), "the cluster has one rack, and traffic within a rack is not delayed: add a rack")

    async def select(self, world: World, draws: Draws) -> tuple[Sequence[LinkStream], dict[str, Any]]:  # noqa: ARG002 -- nothing is drawn
        streams = await links_of_rack(self.rack, self.ways, world)
        return streams, await link_roles(f"rack {self.rack}", streams, world)


@dataclass(eq=False)
class DelayInjection(ToxicInjection):
    """One latency toxic for each stream of each link, updated at the start of each interval of the schedule.

    ``delays_ms`` has the delay of each interval, ``spikes`` the indices of the intervals with spikes, ``before_ms`` the
    fastest round trip over each link before the fault, and ``history_ms`` the delays of the intervals that have
    started, with the current delay last. ``updating`` is True while the latency toxics are updated.
    """

    delays_ms: Sequence[int]
    every_us: int
    spikes: frozenset[int]
    before_ms: dict[Link, float] = field(default_factory=dict, init=False)
    updating: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.history_ms = [self.delays_ms[0]]
        self.update_lock = asyncio.Lock()  # a read-back must not see half of an update

    @property
    def measuring_us(self) -> int:
        steady_ms = max((ms for number, ms in enumerate(self.delays_ms) if number not in self.spikes), default=0)
        return PROBES * (steady_ms * max(map(len, self.streams.values())) + PROBE_SLACK_MS) * 1000

    async def measure_before(self) -> None:
        """Measure the fastest round trip over each link; on a busy host, repeat up to ``QUIET_TRIES`` times."""
        foreign_ms = await self.foreign_latency_ms()
        links, clock = list(self.streams), self.context.clock
        for attempt in range(QUIET_TRIES):
            if attempt:
                await clock.sleep_until_us(clock.now_us() + QUIET_PAUSE_US)
            results = await asyncio.gather(*(self._probe_link(link, PROBES) for link in links))
            for link, probes in zip(links, results, strict=True):
                if answered := [ms for ms, is_answered in probes if is_answered]:
                    fastest = max(0.0, min(answered) - foreign_ms[link])
                    self.before_ms[link] = min(fastest, self.before_ms.get(link, fastest))
            # a round trip this short can't make a true delay look too small
            quiet_ms = {
                link: max(QUIET_MS, (1 - SHARE) * self.delays_ms[0] * len(self.streams[link])) for link in links
            }
            links = [link for link in links if self.before_ms.get(link, 0.0) > quiet_ms[link]]
            if not links:
                return

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Update the toxics by the schedule of delays, and measure the links at the beginning and end of the fault."""
        schedule = asyncio.create_task(self._follow_schedule(self.context.clock.now_us(), report))
        try:
            await super().hold(until_us, report)
        finally:
            schedule.cancel()
            await asyncio.gather(schedule, return_exceptions=True)

    async def measure(self, probes: int = PROBES) -> Witness:
        """Measure round trips over the links; the witness describes the link whose round trip has risen least."""
        first = len(self.history_ms) - 1
        foreign_ms = await self.foreign_latency_ms()
        results = await asyncio.gather(*(self._probe_link(link, probes) for link in self.before_ms))
        lowest_ms = min(self.history_ms[first:])
        rises: list[tuple[float, int, Link]] = []
        for link, link_probes in zip(self.before_ms, results, strict=True):
            answered = [ms for ms, is_answered in link_probes if is_answered]
            took_ms = median(answered or [ms for ms, _ in link_probes])
            asked_ms = lowest_ms * len(self.streams[link])
            if answered or took_ms >= SHARE * asked_ms:
                rises.append((took_ms - foreign_ms[link] - self.before_ms[link], asked_ms, link))
        if not rises:
            reason = "no broker answers" if self.before_ms else "the harness can't send requests"
            what = f"{reason} over the fault's links, so Toxiproxy's list of toxics is the only evidence"
            return Witness(what, 0, 0, "probes", 0, ok=True)
        rise_ms, asked_ms, link = min(rises, key=lambda rise: rise[0] - SHARE * rise[1])
        what = f"rise of the median round trip through {link.proxy}, the smallest rise of {len(rises)} links"
        ok = rise_ms - SHARE * asked_ms >= 0
        return Witness(what, asked_ms, round(rise_ms, 3), "ms", probes * len(rises), ok)

    async def read_back(self) -> Witness:
        async with self.update_lock:
            return await super().read_back()

    async def _probe_link(self, link: Link, count: int) -> list[tuple[float, bool]]:
        """Probe a link until ``count`` probes ran with a constant delay, at most ``TRIES`` times.

        Each result is a probe's duration in ms, and True if the probe was answered. If there was a probe with a
        constant delay, only such probes are returned.
        """
        undisturbed: list[tuple[float, bool]] = []
        disturbed: list[tuple[float, bool]] = []
        while len(undisturbed) < count and len(undisturbed) + len(disturbed) < TRIES:
            before, began_us = (len(self.history_ms), self.updating), self.context.clock.now_us()
            try:
                probe = await self.context.world.probe_ms(link), True
            except FaultError:
                probe = (self.context.clock.now_us() - began_us) / 1000, False
            unchanged = before == (len(self.history_ms), self.updating) and not self.updating
            (undisturbed if unchanged else disturbed).append(probe)
        return undisturbed or disturbed

    async def _follow_schedule(self, began_us: int, report: Report) -> None:
        """Update the latency toxics at the start of each interval, and measure the links in each spike."""

        async def probe_spike() -> None:
            report(await self.measure(probes=1))  # an interval has room for a single probe of each link

        async with asyncio.TaskGroup() as spike_probes:
            for number, delay_ms in enumerate(self.delays_ms[1:], start=1):
                await self.context.clock.sleep_until_us(began_us + number * self.every_us)
                async with self.update_lock:
                    self.updating = True
                    self.history_ms.append(delay_ms)
                    for stream, old in list(self.toxics.items()):
                        self.toxics[stream] = replace(old, attributes={**old.attributes, "latency": delay_ms})
                        try:
                            await self.context.world.update_toxic(stream.link.proxy, self.toxics[stream])
                        except FaultError as error:
                            what = f"the toxic on the proxy {stream.link.proxy} could not be updated: {error}"
                            report(Witness(what, 1, 0, "updates", 1, ok=False))
                    self.updating = False
                if number in self.spikes:
                    spike_probes.create_task(probe_spike())

"""``latency``: delay what flows over some links.

Toxiproxy's own ``jitter`` can't be reproduced, so jitter is a schedule: the compiler draws one delay for every
``every`` of the fault, uniform in ``delay`` +- ``jitter``, and the toxic is updated as the schedule says. Toxics of
several faults on one link add up. How it is witnessed stands in ``slowness.py``.
"""

import asyncio
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.fault import READ_BACK_US, Band, Draws, Fault, Report, Scene, Strike
from aftershock.faults.kinds.slowness import PROBES, Slowness
from aftershock.faults.links import LinkText, Stretch, ToBroker, resolve
from aftershock.faults.links import parse as parse_link
from aftershock.faults.record import Targets, Undo, Witness
from aftershock.faults.units import Duration
from aftershock.faults.waiting import to_the_end
from aftershock.faults.world import Link, Toxic, World

PROBE_SLACK_MS = 100  # what a probe takes beside the delay, generously


class Latency(Fault):
    """Delay one or both directions of some links."""

    band: ClassVar[Band] = Band("#ff7f0e", "latency")
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 500

    kind: Literal["latency"] = "latency"
    link: LinkText
    delay: Annotated[Duration, Field(ge=1, le=600_000)]
    jitter: Duration = 0
    every: Annotated[Duration, Field(ge=100)] = 500

    @model_validator(mode="after")
    def _never_negative(self) -> Self:
        if self.jitter > self.delay:
            sentence = f"jitter of {self.jitter}ms is more than the delay of {self.delay}ms; make it smaller"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    def roles(self) -> dict[tuple[str, ...], str]:
        """The broker at the link's end, where it names one."""
        selector = parse_link(self.link)
        return {("link",): selector.role} if isinstance(selector, ToBroker) and selector.role else {}

    def draw(self, source: random.Random) -> dict[str, Any]:
        """``delay_ms``: one delay for every ``every`` of the fault, where there is jitter; and ``any`` roles."""
        draws = super().draw(source)
        if self.jitter:
            steps = math.ceil((self.for_ or 0) / self.every)
            lowest, highest = self.delay - self.jitter, self.delay + self.jitter
            draws["delay_ms"] = [round(source.uniform(lowest, highest)) for _ in range(steps)]
        return draws

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if the selector names no link."""
        stretches = await resolve(self.link, scene.world, draws)
        delays = tuple(draws.get("delay_ms") or (self.delay,))
        roles: dict[str, Any] = {"asked": self.link, "streams": sorted({stretch.stream for stretch in stretches})}
        if self.roles():
            roles["broker"] = stretches[0].link.broker
        if crossing := await _crossing({stretch.link for stretch in stretches}, scene.world):
            roles["crossing"] = crossing
        strike = LatencyStrike(scene, stretches, delays, self.every, roles)
        await strike.slowness.measure_before()
        return strike


async def _crossing(links: set[Link], world: World) -> dict[str, list[int]]:
    """The partitions, by topic, whose followers fetch over these links now; their records are what meets the fault."""
    replication = [link for link in links if link.channel == "replication"]
    if not replication:
        return {}
    racks, crossing = world.racks(), dict[str, list[int]]()
    for state in await world.partitions():
        homes = {racks[replica] for replica in state.replicas if replica != state.leader and replica in racks}
        if any(link.broker == state.leader and link.source_rack in homes for link in replication):
            crossing.setdefault(state.topic, []).append(state.partition)
    return crossing


class LatencyStrike(Strike):
    """One latency toxic for each stream of each link."""

    def __init__(
        self,
        scene: Scene,
        stretches: tuple[Stretch, ...],
        delays_ms: tuple[int, ...],
        every_ms: int,
        roles: Mapping[str, Any],
    ) -> None:
        self.scene = scene
        self.delays_ms = delays_ms
        self.every_us = every_ms * 1000
        self.toxics = {stretch: _toxic(scene.fault, stretch, delays_ms[0]) for stretch in stretches}
        own = {stretch: toxic.name for stretch, toxic in self.toxics.items()}
        self.slowness = Slowness(scene, own, delays_ms[0])
        proxies = sorted({stretch.link.proxy for stretch in stretches})
        self.targets = Targets(links=tuple(proxies), roles=roles)
        names = sorted([stretch.link.proxy, toxic.name] for stretch, toxic in self.toxics.items())
        self.undo = Undo("remove_toxics", {"toxics": names})
        self.began_us = 0
        self.turn = asyncio.Lock()  # the schedule and the read-back must not see each other's half

    async def inject(self) -> None:
        """Put all the toxics on."""
        for stretch, toxic in self.toxics.items():
            await to_the_end(self.scene.world.add_toxic(stretch.link.proxy, toxic))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Probe, then read the toxics back once a second, and probe again right before the heal."""
        self.began_us = self.scene.clock.now_us()
        until_us = until_us or self.began_us
        schedule = asyncio.create_task(self._follow_schedule(report))
        try:
            await self._watch(until_us, report)
        finally:
            schedule.cancel()
            await asyncio.gather(schedule, return_exceptions=True)

    async def _watch(self, until_us: int, report: Report) -> None:
        clock = self.scene.clock
        await self._read_back(report)
        report(await self.slowness.measure())
        streams = max(len(streams) for streams in self.slowness.streams.values())
        probing_us = PROBES * (max(self.delays_ms) * streams + PROBE_SLACK_MS) * 1000
        last_probe_us = until_us - probing_us
        probe_again = clock.now_us() < last_probe_us
        while (now_us := clock.now_us()) < (last_probe_us if probe_again else until_us):
            await clock.sleep_until_us(min(now_us + READ_BACK_US, last_probe_us if probe_again else until_us))
            await self._read_back(report)
        if probe_again:
            report(await self.slowness.measure())
            await clock.sleep_until_us(until_us)
            await self._read_back(report)

    async def _read_back(self, report: Report) -> None:
        async with self.turn:
            now = await self.scene.world.toxics()
        there = [
            stretch
            for stretch, toxic in self.toxics.items()
            if any(_same(toxic, other) for other in now.get(stretch.link.proxy, ()))
        ]
        gone = [stretch.link.proxy for stretch in self.toxics if stretch not in there]
        what = "toxics of this fault, read back from Toxiproxy" + (f"; {gone[0]} has lost its own" if gone else "")
        report(Witness(what, len(self.toxics), len(there), "toxics", len(self.toxics), not gone))

    async def _follow_schedule(self, report: Report) -> None:
        for step, delay_ms in enumerate(self.delays_ms[1:], start=1):
            await self.scene.clock.sleep_until_us(self.began_us + step * self.every_us)
            async with self.turn:
                await self._update(delay_ms, report)

    async def _update(self, delay_ms: int, report: Report) -> None:
        self.slowness.changing_to(delay_ms)
        for stretch, old in list(self.toxics.items()):
            self.toxics[stretch] = replace(old, attributes={**old.attributes, "latency": delay_ms})
            try:
                await self.scene.world.update_toxic(stretch.link.proxy, self.toxics[stretch])
            except FaultError as error:
                report(
                    Witness(f"an update of the toxic on {stretch.link.proxy}: {error}", 1, 0, "updates", 1, ok=False)
                )
        self.slowness.changed_to(delay_ms)


def _toxic(fault: str, stretch: Stretch, delay_ms: int) -> Toxic:
    name = f"{fault}:{stretch.link.proxy}:{stretch.stream}"
    return Toxic(name, "latency", stretch.stream, {"latency": delay_ms, "jitter": 0})


def _same(ours: Toxic, other: Toxic) -> bool:
    return (ours.name, ours.type, ours.stream) == (other.name, other.type, other.stream) and ours.attributes[
        "latency"
    ] == other.attributes.get("latency")

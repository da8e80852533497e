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
from aftershock.faults.fault import Among, Band, Draws, Family, Fault, Place, Report, Scene, Strike
from aftershock.faults.kinds.linked import ToxicStrike, described, role_of, toxic_on
from aftershock.faults.kinds.slowness import PROBES, Slowness
from aftershock.faults.links import LinkText, Stretch, resolve
from aftershock.faults.record import Witness
from aftershock.faults.units import Duration

PROBE_SLACK_MS = 100  # what a probe takes beside the delay, generously


class Latency(Fault):
    """Delay one or both directions of some links."""

    family: ClassVar[Family] = "link"
    band: ClassVar[Band] = Band("#ff7f0e", "latency")
    proof: ClassVar[str] = "probes through each link, slower by the delay asked for; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed"
    met_by: ClassVar[Among] = "links"
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
        return role_of(self.link)

    def draw(self, source: random.Random) -> dict[str, Any]:
        """``delay_ms``: one delay for every ``every`` of the fault, where there is jitter; and ``any`` roles."""
        draws = super().draw(source)
        if self.jitter:
            steps = math.ceil((self.for_ or 0) / self.every)
            lowest, highest = self.delay - self.jitter, self.delay + self.jitter
            draws["delay_ms"] = [round(source.uniform(lowest, highest)) for _ in range(steps)]
        return draws

    def links(self) -> dict[Place, str]:
        """The link."""
        return {("link",): self.link}

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if the selector names no link."""
        stretches = await resolve(self.link, scene.world, draws)
        delays = tuple(draws.get("delay_ms") or (self.delay,))
        roles = await described(self.link, stretches, scene.world)
        if self.roles():
            roles["broker"] = stretches[0].link.broker
        strike = LatencyStrike(scene, stretches, delays, self.every, roles)
        await strike.slowness.measure_before()
        return strike


class LatencyStrike(ToxicStrike):
    """One latency toxic for each stream of each link, changed as the schedule says."""

    def __init__(
        self,
        scene: Scene,
        stretches: tuple[Stretch, ...],
        delays_ms: tuple[int, ...],
        every_ms: int,
        roles: Mapping[str, Any],
    ) -> None:
        first = {"latency": delays_ms[0], "jitter": 0}
        super().__init__(scene, {each: toxic_on(each, scene.fault, "latency", first) for each in stretches}, roles)
        self.delays_ms = delays_ms
        self.every_us = every_ms * 1000
        own = {stretch: toxic.name for stretch, toxic in self.toxics.items()}
        self.slowness = Slowness(scene, own, delays_ms[0])
        streams = max(len(streams) for streams in self.slowness.streams.values())
        self.measuring_us = PROBES * (max(delays_ms) * streams + PROBE_SLACK_MS) * 1000
        self.began_us = 0
        self.turn = asyncio.Lock()  # the schedule and the read-back must not see each other's half

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Watch as every link fault is watched, while the schedule goes on."""
        self.began_us = self.scene.clock.now_us()
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

"""Latency toxics that follow a schedule: put on with its first delay, updated at each turn, probed at each spike."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from aftershock.errors import FaultError
from aftershock.faults.fault import Report, Scene
from aftershock.faults.links import Stretch
from aftershock.faults.record import Witness
from aftershock.faults.strikes.linked import ToxicStrike, toxic_on
from aftershock.faults.strikes.slowness import PROBES, Slowness
from aftershock.faults.values import Toxic

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


class DelayStrike(ToxicStrike):
    """One latency toxic for each stream of each link, changed as the schedule says."""

    def __init__(
        self, scene: Scene, stretches: tuple[Stretch, ...], schedule: Schedule, roles: Mapping[str, Any]
    ) -> None:
        first = {"latency": schedule.delays_ms[0], "jitter": 0}
        super().__init__(scene, {each: toxic_on(each, scene.fault, "latency", first) for each in stretches}, roles)
        self.schedule = schedule
        own = {stretch: toxic.name for stretch, toxic in self.toxics.items()}
        self.slowness = Slowness(scene, own, schedule.delays_ms[0])
        streams = max(len(streams) for streams in self.slowness.streams.values())
        self.measuring_us = PROBES * (schedule.steady_ms * streams + PROBE_SLACK_MS) * 1000
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
        async with asyncio.TaskGroup() as spikes:
            for turn, delay_ms in enumerate(self.schedule.delays_ms[1:], start=1):
                await self.scene.clock.sleep_until_us(self.began_us + turn * self.schedule.every_ms * 1000)
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
            await self.scene.world.update_toxic(proxy, toxic)
        except FaultError as error:
            report(Witness(f"an update of the toxic on {proxy}: {error}", 1, 0, "updates", 1, ok=False))

    async def _probe_spike(self, report: Report) -> None:
        """One probe of each link, which a turn has room for."""
        report(await self.slowness.measure(probes=1))

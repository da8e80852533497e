"""How a latency is witnessed: the same small request over the same link, before and during.

Rules. A link counts as slowed if the median of its probes rose, over the quickest before the fault (a busy host only
adds, so a quiet moment is waited for, but not for long), by at least 0.8 x the delay in force (the smallest in force
while the probes ran, for each stream it sits on). A probe during which the delay changed is thrown away: Toxiproxy
then lets a held chunk go early. Delays of other faults on the link, read from Toxiproxy, come off first, so that
overlapping faults don't vouch for each other. A link that gives no answer is as slow as the time it kept us waiting;
if that is less than the delay, something else broke it (its broker is down, say) and it is left out. A link with no
way in from the host can't be probed. Where no link is left, the toxics read back are the only witness, and ``what``
says so.
"""

import asyncio
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from aftershock.errors import FaultError
from aftershock.faults.fault import Scene
from aftershock.faults.links import Stretch
from aftershock.faults.record import Witness
from aftershock.faults.values import Link

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

    def __init__(self, scene: Scene, own: Mapping[Stretch, str], delay_ms: int) -> None:
        self.scene = scene
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
                await self.scene.clock.sleep_until_us(self.scene.clock.now_us() + QUIET_TURN_US)
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
        began_us = self.scene.clock.now_us()
        try:
            return _Measured(answered=True, ms=await self.scene.world.probe_ms(link))
        except FaultError:
            return _Measured(answered=False, ms=(self.scene.clock.now_us() - began_us) / 1000)

    async def _others_ms(self) -> dict[Link, float]:
        return await others_ms(self.streams, self.own, self.scene)


async def others_ms(links: Iterable[Link], own: Container[str], scene: Scene) -> dict[Link, float]:
    """The delay that latency toxics, but for our ``own``, put on a round trip over each link."""
    now = await scene.world.toxics()
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

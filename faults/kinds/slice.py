"""``slice``: what is sent over some links arrives in small pieces, with a pause after each.

It is Toxiproxy's ``slicer`` toxic without its variation, whose randomness can't be seeded: what it reads at once it
halves until no piece is larger than ``average_size``. So there are at least as many pauses as the size goes into the
message, and at most twice as many. The witness takes the time of a question with ballast.
"""

import asyncio
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.fault import Band
from aftershock.faults.strikes.linked import ToxicFault, ToxicFaultStrike
from aftershock.faults.strikes.probed import ROOM_MS, SHARE, SLACK_MS, ProbedStrike, Reading
from aftershock.faults.strikes.slowness import others_ms
from aftershock.faults.units import Duration, Size
from aftershock.faults.values import Exchange, Link

PROBES = 3
PIECES = 20  # that a probe's ballast is at least cut into, there and back
BALLAST_BYTES_MAX = 200_000


class SliceStrike(ProbedStrike):
    """``before``: the quickest such question on each link, in ms, without what the delays of other faults add."""

    what: ClassVar[str] = "the quickest of three questions with ballast took longer than before, by at least"
    unit: ClassVar[str] = "ms"
    fault: "Slice"

    def measuring_ms(self) -> int:
        """Twice the pauses that there are at least, on both streams."""
        return 4 * PIECES * self.fault.delay + SLACK_MS

    async def look_before(self) -> None:
        """How long the question takes on each link that answers."""
        await super().look_before()
        others = await others_ms(self.reachable, self.own, self.scene)
        quickest = {link: await self._quickest(link) for link in self.reachable}
        self.before = {link: seen.ms - others[link] for link, seen in quickest.items() if seen is not None}

    async def read(self, link: Link) -> Reading | None:
        """Slower by most of the pauses that there are at least."""
        seen = await self._quickest(link)
        if seen is None or link not in self.before:
            return None
        others = await others_ms([link], self.own, self.scene)
        asked_ms, rise_ms = self._pauses(link, seen) * self.fault.delay, seen.ms - self.before[link] - others[link]
        return Reading(link, asked_ms, rise_ms, rise_ms >= SHARE * asked_ms)

    async def _quickest(self, link: Link) -> Exchange | None:
        ballast_bytes = min(BALLAST_BYTES_MAX, PIECES * self.fault.average_size)
        limit_ms = 8 * PIECES * self.fault.delay + ROOM_MS
        seen = await asyncio.gather(*(self.exchange(link, ballast_bytes, limit_ms) for _ in range(PROBES)))
        answered = [each for each in seen if each is not None and each.end == "answered"]
        return min(answered, key=lambda each: each.ms, default=None)

    def _pauses(self, link: Link, seen: Exchange) -> int:
        crossed = {"upstream": seen.sent_bytes, "downstream": seen.received_bytes}
        return sum((crossed[stream] - 1) // self.fault.average_size for stream in self.streams[link])


class Slice(ToxicFault):
    """Cut what is sent over some links into small pieces."""

    band: ClassVar[Band] = Band("#e7ba52", "slice")
    proof: ClassVar[str] = "questions with ballast, slower by the pauses between their pieces; the toxics, read back"
    remedy: ClassVar[str] = "the toxics are removed; connections are kept"
    allowance_ms: ClassVar[int] = 2_000
    toxic: ClassVar[str] = "slicer"
    strike: ClassVar[type[ToxicFaultStrike]] = SliceStrike

    kind: Literal["slice"] = "slice"
    average_size: Annotated[Size, Field(ge=16, le=10_000, description="the largest piece; few are half of it or less")]
    delay: Annotated[Duration, Field(ge=1, le=1_000, description="after each piece")] = 10

    def attributes(self) -> dict[str, int]:
        """In bytes and us."""
        return {"average_size": self.average_size, "size_variation": 0, "delay": self.delay * 1000}

"""``bandwidth``: so many bytes a second go over a link, and no more.

It is Toxiproxy's ``bandwidth`` toxic, which counts each connection by itself: a client with three connections gets
three times the rate (``tests/contract/test_toxics.py``). What is sent faster waits in the sender's buffers. The witness
sends a question with ballast and takes the time until its answer is there, whole.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.fault import Band, Stake
from aftershock.faults.strikes.linked import ToxicFault, ToxicFaultStrike
from aftershock.faults.strikes.probed import ROOM_MS, SLACK_MS, ProbedStrike, Reading
from aftershock.faults.units import ByteRate
from aftershock.faults.values import Exchange, Link

BALLAST_MS = 400  # so much of the rate is sent to measure it
BALLAST_BYTES_MIN, BALLAST_BYTES_MAX = 300, 1_000_000
ABOVE = 1.1  # a timer of Toxiproxy's is late, never early; the rest is what a question has besides its ballast
BELOW = 0.9  # of what the link carried before: else the limit is none


class BandwidthStrike(ProbedStrike):
    """``before``: what each link carried, in bytes a second."""

    what: ClassVar[str] = "bytes a second, there and back, over a connection of our own"
    unit: ClassVar[str] = "B/s"
    fault: "Bandwidth"

    def measuring_ms(self) -> int:
        """As long as the ballast takes in both directions."""
        return 2 * self._takes_ms + SLACK_MS

    async def look_before(self) -> None:
        """What each link that answers carries now."""
        await super().look_before()
        self.before: dict[Link, float] = {}
        for link in self.reachable:
            if (rate := await self._rate(link)) is not None:
                self.before[link] = rate

    async def read(self, link: Link) -> Reading | None:
        """No faster than asked for, and slower than before."""
        rate = await self._rate(link)
        if rate is None or link not in self.before:
            return None
        ok = rate <= ABOVE * self.fault.rate and rate <= BELOW * self.before[link]
        return Reading(link, self.fault.rate, rate, ok)

    @property
    def _ballast_bytes(self) -> int:
        return min(BALLAST_BYTES_MAX, max(BALLAST_BYTES_MIN, self.fault.rate * BALLAST_MS // 1000))

    @property
    def _takes_ms(self) -> int:
        return self._ballast_bytes * 1000 // self.fault.rate

    async def _rate(self, link: Link) -> float | None:
        exchange = await self.exchange(link, self._ballast_bytes, 4 * self._takes_ms + ROOM_MS)
        if exchange is None or exchange.end != "answered":
            return None
        return self._limited_bytes(link, exchange) * 1000 / exchange.ms

    def _limited_bytes(self, link: Link, exchange: Exchange) -> int:
        crossed = {"upstream": exchange.sent_bytes, "downstream": exchange.received_bytes}
        return sum(crossed[stream] for stream in self.streams[link])


class Bandwidth(ToxicFault):
    """Let so many bytes a second over each connection of some links."""

    band: ClassVar[Band] = Band("#bcbd22", "bandwidth")
    proof: ClassVar[str] = "bytes a second over a connection of our own; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed; connections are kept"
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("rate", "links"),)
    allowance_ms: ClassVar[int] = 2_000
    toxic: ClassVar[str] = "bandwidth"
    strike: ClassVar[type[ToxicFaultStrike]] = BandwidthStrike

    kind: Literal["bandwidth"] = "bandwidth"
    rate: Annotated[
        ByteRate, Field(ge=1000, multiple_of=1000, description="of each connection, in whole kilobytes a second")
    ]

    def attributes(self) -> dict[str, int]:
        """Toxiproxy counts in kB/s, of 1000 bytes each."""
        return {"rate": self.rate // 1000}

"""``bandwidth``: so many bytes a second go over a link, and no more.

It is Toxiproxy's ``bandwidth`` toxic, which counts each connection by itself: a client with three connections gets
three times the rate (``tests/contract/test_toxics.py``). What is sent faster waits in the sender's buffers. The witness
sends a question with ballast and takes the time until its answer is there, whole.

``slice``: what is sent over some links arrives in small pieces, with a pause after each.

It is Toxiproxy's ``slicer`` toxic without its variation, whose randomness can't be seeded: what it reads at once it
halves until no piece is larger than ``average_size``. So there are at least as many pauses as the size goes into the
message, and at most twice as many. The witness takes the time of a question with ballast.

``limit_data``: a connection is closed when so many bytes have gone over it.

It is Toxiproxy's ``limit_data`` toxic; it counts each stream of each connection by itself, from when the toxic meets
the connection. The last message is cut short where the limit falls.
"""

import asyncio
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.kinds.fault import Band, ExclusiveResource
from aftershock.faults.kinds.link.base import (
    ROOM_MS,
    SHARE,
    SLACK_MS,
    ProbedInjection,
    Reading,
    ToxicFault,
    ToxicFaultInjection,
    dialled,
)
from aftershock.faults.kinds.link.latency import others_ms
from aftershock.faults.plan.units import ByteRate, Duration, Size
from aftershock.faults.targets.values import Exchange, Link

BALLAST_MS = 400  # so much of the rate is sent to measure it
BALLAST_BYTES_MIN, BALLAST_BYTES_MAX = 300, 1_000_000
ABOVE = 1.1  # a timer of Toxiproxy's is late, never early; the rest is what a question has besides its ballast
BELOW = 0.9  # of what the link carried before: else the limit is none


class BandwidthInjection(ProbedInjection):
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
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("rate", "links"),)
    allowance_ms: ClassVar[int] = 2_000
    toxic: ClassVar[str] = "bandwidth"
    injection: ClassVar[type[ToxicFaultInjection]] = BandwidthInjection

    kind: Literal["bandwidth"] = "bandwidth"
    rate: Annotated[
        ByteRate, Field(ge=1000, multiple_of=1000, description="of each connection, in whole kilobytes a second")
    ]

    def attributes(self) -> dict[str, int]:
        """Toxiproxy counts in kB/s, of 1000 bytes each."""
        return {"rate": self.rate // 1000}


PROBES = 3
PIECES = 20  # that a probe's ballast is at least cut into, there and back
SLICE_BALLAST_BYTES_MAX = 200_000


class SliceInjection(ProbedInjection):
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
        others = await others_ms(self.reachable, self.own, self.context)
        quickest = {link: await self._quickest(link) for link in self.reachable}
        self.before = {link: seen.ms - others[link] for link, seen in quickest.items() if seen is not None}

    async def read(self, link: Link) -> Reading | None:
        """Slower by most of the pauses that there are at least."""
        seen = await self._quickest(link)
        if seen is None or link not in self.before:
            return None
        others = await others_ms([link], self.own, self.context)
        asked_ms, rise_ms = self._pauses(link, seen) * self.fault.delay, seen.ms - self.before[link] - others[link]
        return Reading(link, asked_ms, rise_ms, rise_ms >= SHARE * asked_ms)

    async def _quickest(self, link: Link) -> Exchange | None:
        ballast_bytes = min(SLICE_BALLAST_BYTES_MAX, PIECES * self.fault.average_size)
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
    injection: ClassVar[type[ToxicFaultInjection]] = SliceInjection

    kind: Literal["slice"] = "slice"
    average_size: Annotated[Size, Field(ge=16, le=10_000, description="the largest piece; few are half of it or less")]
    delay: Annotated[Duration, Field(ge=1, le=1_000, description="after each piece")] = 10

    def attributes(self) -> dict[str, int]:
        """In bytes and us."""
        return {"average_size": self.average_size, "size_variation": 0, "delay": self.delay * 1000}


LIMIT_BALLAST_BYTES_MIN, LIMIT_BALLAST_BYTES_MAX = 300, 250_000
QUESTIONS_MAX = 60


class LimitDataInjection(ProbedInjection):
    """A connection of our own asks until it is closed."""

    what: ClassVar[str] = "bytes had crossed a connection of our own, whole messages, when it was closed"
    unit: ClassVar[str] = "B"
    fault: "LimitData"

    def measuring_ms(self) -> int:
        """As long as a handful of questions take."""
        return 1_000

    async def read(self, link: Link) -> Reading | None:
        """Closed, and what had crossed till then is no more than the limit."""
        crossed = {"upstream": 0, "downstream": 0}
        async with dialled(link, self.context) as probe:
            for _ in range(QUESTIONS_MAX):
                seen = await probe.ask(self._ballast_bytes, ROOM_MS)
                if seen.end != "answered":
                    break
                crossed["upstream"] += seen.sent_bytes
                crossed["downstream"] += seen.received_bytes
        if seen.end == "silent":
            return None
        crossed_bytes = max(crossed[stream] for stream in self.streams[link])
        ok = seen.end != "answered" and crossed_bytes <= self.fault.bytes_
        return Reading(link, self.fault.bytes_, crossed_bytes, ok)

    @property
    def _ballast_bytes(self) -> int:
        return min(LIMIT_BALLAST_BYTES_MAX, max(LIMIT_BALLAST_BYTES_MIN, self.fault.bytes_ // 4))


class LimitData(ToxicFault):
    """Close each connection over some links when so many bytes have gone over it."""

    band: ClassVar[Band] = Band("#8ca252", "limit_data")
    proof: ClassVar[str] = "bytes that crossed a connection of our own until it was closed; the toxics, read back"
    remedy: ClassVar[str] = "the toxics are removed; connections that are left are kept"
    allowance_ms: ClassVar[int] = 2_000
    toxic: ClassVar[str] = "limit_data"
    injection: ClassVar[type[ToxicFaultInjection]] = LimitDataInjection

    kind: Literal["limit_data"] = "limit_data"
    bytes_: Annotated[Size, Field(alias="bytes", ge=1, le=10_000_000, description="of each stream of each connection")]

    def attributes(self) -> dict[str, int]:
        """In bytes."""
        return {"bytes": self.bytes_}

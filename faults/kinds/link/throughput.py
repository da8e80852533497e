"""``bandwidth``, ``slice`` and ``limit_data``: limits on the bytes that cross some links.

``bandwidth``: a link carries at most ``rate`` bytes a second. It is Toxiproxy's ``bandwidth`` toxic, which limits each
connection separately: a client with three connections gets three times the rate (``tests/contract/test_toxics.py``).
Data sent faster waits in the sender's buffers. The witness sends a request with ballast and measures the time until the
whole response has arrived.

``slice``: data arrives in small pieces, with a pause after each. It is Toxiproxy's ``slicer`` toxic without its
variation, whose randomness can't be seeded: it halves what it reads at once until no piece is larger than
``average_size``. So a message has at least one pause for each ``average_size`` bytes, and at most two. The
witness measures the time of a request with ballast.

``limit_data``: a connection is closed after ``bytes`` bytes. It is Toxiproxy's ``limit_data`` toxic; it counts each
stream of each connection by itself, from the moment the toxic is on the connection. The last message is truncated at
the limit.
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
    ToxicInjection,
    dialled,
    foreign_latency_ms,
)
from aftershock.faults.plan.units import ByteRate, Duration, Size
from aftershock.faults.targets.values import Exchange, Link

BALLAST_MS = 400  # the ballast is what the rate allows in this time
BALLAST_BYTES_MIN, BALLAST_BYTES_MAX = 300, 1_000_000
ABOVE = 1.1  # Toxiproxy's timers are late, never early; the rest is the request's size besides its ballast
BELOW = 0.9  # of the rate before the fault; a higher rate shows no limit


class BandwidthInjection(ProbedInjection):
    """Links with limited bandwidth. ``before``: the rate of each link before the fault, in bytes a second."""

    what: ClassVar[str] = "bytes a second, there and back, over a connection of our own"
    unit: ClassVar[str] = "B/s"
    fault: "Bandwidth"

    @property
    def measuring_us(self) -> int:
        """Time to send the ballast (test data that fills the rate limit) in both directions, in microseconds."""
        return (2 * self._takes_ms + SLACK_MS) * 1000

    async def measure_before(self) -> None:
        """Measure the rate of each link that answers."""
        await super().measure_before()
        self.before: dict[Link, float] = {}
        for link in self.reachable:
            if (rate := await self._rate(link)) is not None:
                self.before[link] = rate

    async def read(self, link: Link) -> Reading | None:
        """Expect a rate no higher than requested, and lower than before."""
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
    """Limit the bytes a second of each connection over some links."""

    band: ClassVar[Band] = Band("#bcbd22", "bandwidth")
    proof: ClassVar[str] = "bytes a second over a connection of our own; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed; connections are kept"
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("rate", "links"),)
    allowance_ms: ClassVar[int] = 2_000
    toxic: ClassVar[str] = "bandwidth"
    injection: ClassVar[type[ToxicInjection]] = BandwidthInjection

    kind: Literal["bandwidth"] = "bandwidth"
    rate: Annotated[
        ByteRate, Field(ge=1000, multiple_of=1000, description="of each connection, in whole kilobytes a second")
    ]

    def attributes(self) -> dict[str, int]:
        """Return the rate in kB/s, of 1000 bytes each."""
        return {"rate": self.rate // 1000}


PROBES = 3
PIECES = 20  # minimum number of pieces of a probe's ballast, in each direction
SLICE_BALLAST_BYTES_MAX = 200_000


class SliceInjection(ProbedInjection):
    """Sliced links. ``before``: the fastest request on each link, in ms, without the delays of other faults."""

    what: ClassVar[str] = "the fastest of three requests with ballast took longer than before, by at least"
    unit: ClassVar[str] = "ms"
    fault: "Slice"

    @property
    def measuring_us(self) -> int:
        """Time of twice the minimum number of pauses, on both streams."""
        return (4 * PIECES * self.fault.delay + SLACK_MS) * 1000

    async def measure_before(self) -> None:
        """Measure the request on each link that answers."""
        await super().measure_before()
        foreign_ms = await foreign_latency_ms(self.reachable, self.toxic_names, self.context)
        fastest = {link: await self._fastest(link) for link in self.reachable}
        self.before = {link: result.ms - foreign_ms[link] for link, result in fastest.items() if result is not None}

    async def read(self, link: Link) -> Reading | None:
        """Expect a request slower by most of the minimum time of the pauses."""
        result = await self._fastest(link)
        if result is None or link not in self.before:
            return None
        foreign_ms = await foreign_latency_ms([link], self.toxic_names, self.context)
        asked_ms, rise_ms = (
            self._pauses(link, result) * self.fault.delay,
            result.ms - self.before[link] - foreign_ms[link],
        )
        return Reading(link, asked_ms, rise_ms, rise_ms >= SHARE * asked_ms)

    async def _fastest(self, link: Link) -> Exchange | None:
        ballast_bytes = min(SLICE_BALLAST_BYTES_MAX, PIECES * self.fault.average_size)
        limit_ms = 8 * PIECES * self.fault.delay + ROOM_MS
        results = await asyncio.gather(*(self.exchange(link, ballast_bytes, limit_ms) for _ in range(PROBES)))
        answered = [result for result in results if result is not None and result.end == "answered"]
        return min(answered, key=lambda result: result.ms, default=None)

    def _pauses(self, link: Link, result: Exchange) -> int:
        crossed = {"upstream": result.sent_bytes, "downstream": result.received_bytes}
        return sum((crossed[stream] - 1) // self.fault.average_size for stream in self.streams[link])


class Slice(ToxicFault):
    """Split the data that is sent over some links into small pieces."""

    band: ClassVar[Band] = Band("#e7ba52", "slice")
    proof: ClassVar[str] = "questions with ballast, slower by the pauses between their pieces; the toxics, read back"
    remedy: ClassVar[str] = "the toxics are removed; connections are kept"
    allowance_ms: ClassVar[int] = 2_000
    toxic: ClassVar[str] = "slicer"
    injection: ClassVar[type[ToxicInjection]] = SliceInjection

    kind: Literal["slice"] = "slice"
    average_size: Annotated[Size, Field(ge=16, le=10_000, description="the largest piece; few are half of it or less")]
    delay: Annotated[Duration, Field(ge=1, le=1_000, description="after each piece")] = 10

    def attributes(self) -> dict[str, int]:
        """Return sizes in bytes and the delay in us."""
        return {"average_size": self.average_size, "size_variation": 0, "delay": self.delay * 1000}


LIMIT_BALLAST_BYTES_MIN, LIMIT_BALLAST_BYTES_MAX = 300, 250_000
REQUESTS_MAX = 60


class LimitDataInjection(ProbedInjection):
    """Connections that are closed after a number of bytes: the probe sends requests until that happens."""

    what: ClassVar[str] = "bytes had crossed a connection of our own, whole messages, when it was closed"
    unit: ClassVar[str] = "B"
    fault: "LimitData"

    @property
    def measuring_us(self) -> int:
        """Time of a few requests."""
        return (1_000) * 1000

    async def read(self, link: Link) -> Reading | None:
        """Expect a close, after no more bytes than the limit."""
        crossed = {"upstream": 0, "downstream": 0}
        async with dialled(link, self.context) as probe:
            for _ in range(REQUESTS_MAX):
                result = await probe.ask(self._ballast_bytes, ROOM_MS)
                if result.end != "answered":
                    break
                crossed["upstream"] += result.sent_bytes
                crossed["downstream"] += result.received_bytes
        if result.end == "silent":
            return None
        crossed_bytes = max(crossed[stream] for stream in self.streams[link])
        ok = result.end != "answered" and crossed_bytes <= self.fault.bytes_
        return Reading(link, self.fault.bytes_, crossed_bytes, ok)

    @property
    def _ballast_bytes(self) -> int:
        return min(LIMIT_BALLAST_BYTES_MAX, max(LIMIT_BALLAST_BYTES_MIN, self.fault.bytes_ // 4))


class LimitData(ToxicFault):
    """Close each connection over some links after a number of bytes."""

    band: ClassVar[Band] = Band("#8ca252", "limit_data")
    proof: ClassVar[str] = "bytes that crossed a connection of our own until it was closed; the toxics, read back"
    remedy: ClassVar[str] = "the toxics are removed; connections that are left are kept"
    allowance_ms: ClassVar[int] = 2_000
    toxic: ClassVar[str] = "limit_data"
    injection: ClassVar[type[ToxicInjection]] = LimitDataInjection

    kind: Literal["limit_data"] = "limit_data"
    bytes_: Annotated[Size, Field(alias="bytes", ge=1, le=10_000_000, description="of each stream of each connection")]

    def attributes(self) -> dict[str, int]:
        """Return the limit in bytes."""
        return {"bytes": self.bytes_}

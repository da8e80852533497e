"""Fault kinds that add one Toxiproxy toxic to each stream of a link, and test connections that the harness makes.

``blackhole`` (Toxiproxy's toxic ``timeout``) discards sent data and closes a connection ``timeout`` after its last
data. The heal of a ``blackhole`` closes all remaining connections, because their streams lack the lost data.

``reset`` (``reset_peer``) discards data and ends its connection ``timeout`` later. Toxiproxy sends a TCP reset only on
connections made during the fault; earlier connections see an ordinary close. A client that dials a port which Docker
forwards on loopback always sees an ordinary close, because Docker's forwarder doesn't pass a reset on
(``tests/contract/test_toxics.py``).

``slow_close`` passes the close of a connection on late, so the client keeps a connection that the broker has closed, or
the reverse. The heal of a ``slow_close`` passes delayed closes on immediately.

``bandwidth`` limits each connection to ``rate``, so a client with three connections gets three times the rate
(``tests/contract/test_toxics.py``). Data sent faster than ``rate`` waits in the sender's buffers.

``slice`` (``slicer``) halves data until no piece is larger than ``average_size`` and pauses after each piece, so a
message is late by one to two pauses for each ``average_size`` bytes. Toxiproxy's random variation of the size of the
pieces can't be seeded and is not used.

``limit_data`` closes a connection after ``bytes`` bytes of a stream, which truncates the last message on the
connection.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Injection,
    InjectionContext,
    OnLink,
    PlanContext,
)
from aftershock.faults.kinds.link.base import SHARE, LinkFault, ToxicInjection, link_targets, toxic_on
from aftershock.faults.kinds.probing import answering_links, links_to_running_brokers
from aftershock.faults.runtime.record import Witness
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import ByteRate, Duration, Size
from aftershock.faults.targets.links import resolve
from aftershock.faults.targets.values import Exchange, Link
from aftershock.faults.targets.world import Probe

ROOM_MS = 2_000  # further time that an exchange may take on a busy host
SLACK_MS = 300  # usual time of an exchange beyond the fault's effect
PROBES = 3  # the fastest counts, because a busy host only adds time


class Reading(NamedTuple):
    """Measured effect of a toxic on one link, and the expected effect (``asked``)."""

    link: Link
    asked: float
    observed: float
    ok: bool


@dataclass(eq=False)
class MeasuredInjection(ToxicInjection):
    """Toxics whose effect the harness measures on its own connections; ``unit`` is the unit of the measured effect.

    ``before`` has the result of ``sample`` for each link before the fault.
    """

    what: ClassVar[str]
    unit: ClassVar[str]
    fault: Any
    before: dict[Link, float] = field(default_factory=dict, init=False)

    async def measure_before(self) -> None:
        self.reachable = await answering_links(self.streams, self.context)
        samples = {link: await self.sample(link) for link in self.reachable}
        self.before = {link: sample for link, sample in samples.items() if sample is not None}

    async def sample(self, link: Link) -> float | None:  # noqa: ARG002 -- for kinds that compare with the state before
        """Return a value to compare before and during the fault, in ``unit``; None if the link doesn't answer."""
        return None

    @abstractmethod
    async def read(self, link: Link) -> Reading | None:
        """Measure a link during the fault; None (or FaultError) if the result says nothing about the fault."""

    async def measure(self) -> Witness:
        """Measure all usable links; the witness describes the first link without the effect of the fault, if any."""
        disabled = await self.context.world.disabled()
        running = await links_to_running_brokers(self.reachable, self.context)
        links = [link for link in running if link.proxy not in disabled]
        results = await asyncio.gather(*map(self.read, links), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, FaultError):
                raise result
        readings = [reading for reading in results if isinstance(reading, Reading)]
        if not readings:
            what = "no broker answers over the fault's links, so Toxiproxy's list of toxics is the only evidence"
            return Witness(what, 0, 0, "probes", 0, ok=True)
        reading = next((reading for reading in readings if not reading.ok), readings[0])
        what = f"{self.what} (through {reading.link.proxy}, one of {len(readings)} links)"
        return Witness(what, reading.asked, round(reading.observed, 3), self.unit, len(readings), reading.ok)

    @asynccontextmanager
    async def connection(self, link: Link) -> AsyncIterator[Probe]:
        probe = await self.context.world.dial(link)
        try:
            yield probe
        finally:
            await probe.hang_up()

    async def exchange(self, link: Link, ballast_bytes: int, limit_ms: int) -> Exchange | None:
        """Send one request of ``ballast_bytes`` over a new connection; return None if no connection can be made."""
        try:
            async with self.connection(link) as probe:
                return await probe.ask(ballast_bytes, limit_ms)
        except FaultError:
            return None

    def crossed_bytes(self, link: Link, exchange: Exchange) -> list[int]:
        """Return the number of bytes of a request and its response on each affected stream of a link."""
        crossed = {"upstream": exchange.sent_bytes, "downstream": exchange.received_bytes}
        return [crossed[stream] for stream in self.streams[link]]


class ToxicFault(LinkFault):
    """Base of faults that consist of one toxic (Toxiproxy's name ``toxic``) on each stream of each link."""

    toxic: ClassVar[str]
    injection: ClassVar[type[MeasuredInjection]]
    allowance_ms = 2_000

    @abstractmethod
    def attributes(self) -> dict[str, int]:
        """Return the attributes of the fault's toxic, with the names and units of Toxiproxy's HTTP API."""

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        streams = await resolve(self.link, context.world, draws)
        toxics = {stream: toxic_on(stream, context.fault, self.toxic, self.attributes()) for stream in streams}
        targets = link_targets(streams, await self.target_roles(streams, context.world))
        injection = self.injection(context, targets, toxics, self)
        await injection.measure_before()
        return injection


class ClosedConnectionInjection(MeasuredInjection):
    """Toxics that close a connection ``timeout`` after a request, without a response to the request."""

    what = "time until the connection of a request was closed without an answer"
    unit = "ms"

    @property
    def measuring_us(self) -> int:
        return (int(self.fault.timeout) + SLACK_MS) * 1000

    async def read(self, link: Link) -> Reading | None:
        result = await self.exchange(link, 0, self.fault.timeout + ROOM_MS)
        if result is None or result.end == "silent":
            return None
        ok = result.end != "answered" and result.ms >= SHARE * self.fault.timeout
        return Reading(link, self.fault.timeout, result.ms, ok)


class Blackhole(ToxicFault):
    """Discard all data that is sent over some links, and close connections without traffic."""

    band = Band("#393b79", "blackhole")
    unavailable = "links"
    proof = (
        "Connections are closed `timeout` after a request, unanswered. Toxiproxy lists the toxics (read each second)."
    )
    remedy = "The toxics are removed, which closes every connection that is still open. Clients must reconnect."
    drops_traffic = True
    exclusive_resources = (ExclusiveResource("traffic", "links", by_plan=False),)
    allowance_ms = 3_000
    toxic = "timeout"
    injection = ClosedConnectionInjection

    drawn = ("{link: CLIENT_LINK, timeout: [500ms, 2s]}",)
    on_link = OnLink("closed `timeout` after the last data", "closed in the same way", "lost", "closed connections")
    kind: Literal["blackhole"] = "blackhole"
    timeout: Annotated[
        Duration, Field(ge=100, le=60_000, description="time from a connection's last data to its close")
    ]

    def attributes(self) -> dict[str, int]:
        return {"timeout": self.timeout}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- only its own two times matter
        if self.for_ is not None and self.timeout >= self.for_:
            yield Problem(
                ("timeout",),
                "the fault ends before a connection is closed: lower `timeout`, or use `cut`",
            )


class Reset(ToxicFault):
    """Discard data that is sent over some links, and end its connection by a TCP reset."""

    band = Band("#ad494a", "reset")
    proof = "The connection of a request is ended instead of answered. Toxiproxy lists the toxics (read each second)."
    remedy = "The toxics are removed. Clients can connect again."
    drops_traffic = True
    closes_connections = True
    exclusive_resources = (ExclusiveResource("traffic", "links", by_plan=False),)
    toxic = "reset_peer"
    injection = ClosedConnectionInjection

    drawn = ("{link: CLIENT_LINK, timeout: [0s, 200ms]}", "{link: NODE_LINK, timeout: 200ms}")
    on_link = OnLink(
        "closed `timeout` after data is sent", "reset `timeout` after data is sent", "lost", "lost connections"
    )
    kind: Literal["reset"] = "reset"
    timeout: Annotated[
        Duration, Field(le=60_000, description="time from data sent on a connection to the reset of the connection")
    ] = 0

    # the impact is unknown: data that crosses before a reset may keep a leader in place

    def attributes(self) -> dict[str, int]:
        return {"timeout": self.timeout}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- only its own two times matter
        if self.for_ is not None and self.timeout >= self.for_:
            yield Problem(("timeout",), "the fault ends before a connection can be reset: lower `timeout`")


class SlowCloseInjection(MeasuredInjection):
    """Toxics that delay closes of a connection; ``sample`` returns the time of the fastest of three closes."""

    what = "rise of the time until the broker sees a closed connection and closes its own end (fastest of three)"
    unit = "ms"

    @property
    def measuring_us(self) -> int:
        return (2 * int(self.fault.delay) + SLACK_MS) * 1000

    async def read(self, link: Link) -> Reading | None:
        ms = await self.sample(link)
        if ms is None or link not in self.before:
            return None
        asked_ms, rise_ms = self.fault.delay * len(self.streams[link]), ms - self.before[link]
        return Reading(link, asked_ms, rise_ms, rise_ms >= SHARE * asked_ms)

    async def sample(self, link: Link) -> float | None:
        async def close_ms() -> float | None:
            try:
                async with self.connection(link) as probe:
                    result = await probe.ask(0, ROOM_MS)  # the connection must reach the broker before it can be closed
                    return await probe.close_ms(2 * self.fault.delay + ROOM_MS) if result.end == "answered" else None
            except FaultError:
                return None

        closes = await asyncio.gather(*(close_ms() for _ in range(PROBES)))
        return min((ms for ms in closes if ms is not None), default=None)


class SlowClose(ToxicFault):
    """Delay the close of connections over some links."""

    band = Band("#7b4173", "slow_close")
    unavailable = "moments"
    proof = "Closes of the harness's connections arrive late. Toxiproxy lists the toxics (read each second)."
    remedy = "The toxics are removed, and the delayed closes are passed on."
    toxic = "slow_close"
    injection = SlowCloseInjection

    drawn = ("{link: CLIENT_LINK, delay: [100ms, 400ms]}",)
    on_link = OnLink("open; a close arrives late", "accepted", "not affected", "connections that the broker has closed")
    kind: Literal["slow_close"] = "slow_close"
    delay: Annotated[
        Duration, Field(ge=50, le=60_000, description="delay before a close is passed on, in each direction")
    ]

    def delay_ms(self) -> int:
        """Return the delay until both ends know of a close."""
        return 2 * self.delay

    def attributes(self) -> dict[str, int]:
        return {"delay": self.delay}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- only its own two times matter
        if self.for_ is not None and self.delay >= self.for_:
            yield Problem(("delay",), "the fault ends before a delayed close is passed on: lower `delay`")


BALLAST_MS = 400  # the ballast of a request is what the rate allows in this time
ABOVE = 1.1  # largest share of the requested rate: Toxiproxy's timers are late, and a request is more than its ballast
BELOW = 0.9  # largest share of the rate before the fault: a higher rate shows no limit


class BandwidthInjection(MeasuredInjection):
    """Toxics that limit bandwidth; ``sample`` returns the rate over one connection of a link, in bytes a second."""

    what = "data rate in both directions over one connection of the harness"
    unit = "B/s"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ballast_bytes = min(1_000_000, max(300, self.fault.rate * BALLAST_MS // 1000))
        self.ballast_ms = self.ballast_bytes * 1000 // self.fault.rate

    @property
    def measuring_us(self) -> int:
        return (2 * int(self.ballast_ms) + SLACK_MS) * 1000

    async def read(self, link: Link) -> Reading | None:
        rate = await self.sample(link)
        if rate is None or link not in self.before:
            return None
        ok = rate <= ABOVE * self.fault.rate and rate <= BELOW * self.before[link]
        return Reading(link, self.fault.rate, rate, ok)

    async def sample(self, link: Link) -> float | None:
        exchange = await self.exchange(link, self.ballast_bytes, 4 * self.ballast_ms + ROOM_MS)
        if exchange is None or exchange.end != "answered":
            return None
        return sum(self.crossed_bytes(link, exchange)) * 1000 / exchange.ms


class Bandwidth(ToxicFault):
    """Limit the bytes per second of each connection over some links."""

    band = Band("#bcbd22", "bandwidth")
    proof = "The rate over a connection of the harness is limited. Toxiproxy lists the toxics (read each second)."
    remedy = "The toxics are removed. Connections stay open."
    exclusive_resources = (ExclusiveResource("rate", "links"),)
    toxic = "bandwidth"
    injection = BandwidthInjection

    drawn = ("{link: CLIENT_LINK, rate: [2kB/s, 20kB/s]}", "{link: NODE_LINK, rate: [20kB/s, 200kB/s]}")
    on_link = OnLink("open", "accepted", "late", "slow responses")
    kind: Literal["bandwidth"] = "bandwidth"
    rate: Annotated[
        ByteRate,
        Field(ge=1000, multiple_of=1000, description="data rate limit of each connection, in whole kB per second"),
    ]

    def attributes(self) -> dict[str, int]:
        return {"rate": self.rate // 1000}


PIECES = 20  # minimum number of pieces of a probe's ballast, in each direction


class SliceInjection(MeasuredInjection):
    """Toxics that slice data; ``sample`` returns the fastest of three round trips, less the delays of other faults."""

    what = "rise of the round trip of a large request (fastest of three)"
    unit = "ms"

    @property
    def measuring_us(self) -> int:
        return (4 * PIECES * int(self.fault.delay) + SLACK_MS) * 1000  # twice the minimum number of pauses, both ways

    async def sample(self, link: Link) -> float | None:
        foreign_ms = await self.foreign_latency_ms()
        result = await self._fastest(link)
        return None if result is None else result.ms - foreign_ms[link]

    async def read(self, link: Link) -> Reading | None:
        result = await self._fastest(link)
        if result is None or link not in self.before:
            return None
        foreign_ms = await self.foreign_latency_ms()
        pauses = sum((crossed - 1) // self.fault.average_size for crossed in self.crossed_bytes(link, result))
        asked_ms, rise_ms = pauses * self.fault.delay, result.ms - self.before[link] - foreign_ms[link]
        return Reading(link, asked_ms, rise_ms, rise_ms >= SHARE * asked_ms)

    async def _fastest(self, link: Link) -> Exchange | None:
        ballast_bytes = min(200_000, PIECES * self.fault.average_size)
        limit_ms = 8 * PIECES * self.fault.delay + ROOM_MS
        results = await asyncio.gather(*(self.exchange(link, ballast_bytes, limit_ms) for _ in range(PROBES)))
        answered = [result for result in results if result is not None and result.end == "answered"]
        return min(answered, key=lambda result: result.ms, default=None)


class Slice(ToxicFault):
    """Split the data that is sent over some links into small pieces, with a pause after each piece."""

    band = Band("#e7ba52", "slice")
    proof = (
        "Large requests take longer by the pauses between the pieces. Toxiproxy lists the toxics (read each second)."
    )
    remedy = "The toxics are removed. Connections stay open."
    toxic = "slicer"
    injection = SliceInjection

    drawn = ("{link: CLIENT_LINK, average_size: 64B, delay: [1ms, 10ms]}",)
    on_link = OnLink("open", "accepted", "late", "slow responses")
    kind: Literal["slice"] = "slice"
    average_size: Annotated[
        Size,
        Field(
            ge=16,
            le=10_000,
            description="size limit of the pieces of data; most pieces exceed half of this size",
        ),
    ]
    delay: Annotated[Duration, Field(ge=1, le=1_000, description="pause after each piece of data")] = 10

    def attributes(self) -> dict[str, int]:
        return {"average_size": self.average_size, "size_variation": 0, "delay": self.delay * 1000}


REQUESTS_MAX = 60


class LimitDataInjection(MeasuredInjection):
    """Toxics that close a connection after a number of bytes; ``read`` sends requests until the close."""

    measuring_us = 1_000_000
    what = "bytes of whole messages that crossed a connection of the harness before it was closed"
    unit = "B"

    async def read(self, link: Link) -> Reading | None:
        ballast_bytes = min(250_000, max(300, self.fault.bytes_ // 4))
        crossed = [0] * len(self.streams[link])
        async with self.connection(link) as probe:
            for _ in range(REQUESTS_MAX):
                result = await probe.ask(ballast_bytes, ROOM_MS)
                if result.end != "answered":
                    break
                crossed = [sum(pair) for pair in zip(crossed, self.crossed_bytes(link, result), strict=True)]
        if result.end == "silent":
            return None
        ok = result.end != "answered" and max(crossed) <= self.fault.bytes_
        return Reading(link, self.fault.bytes_, max(crossed), ok)


class LimitData(ToxicFault):
    """Close each connection over some links after a number of bytes."""

    band = Band("#8ca252", "limit_data")
    proof = "A connection of the harness is closed within the limit. Toxiproxy lists the toxics (read each second)."
    remedy = "The toxics are removed. Connections that are still open stay open."
    toxic = "limit_data"
    injection = LimitDataInjection

    drawn = ("{link: CLIENT_LINK, bytes: [2kB, 20kB]}",)
    on_link = OnLink("closed after `bytes` more bytes", "closed after `bytes` bytes", "truncated", "truncated messages")
    kind: Literal["limit_data"] = "limit_data"
    bytes_: Annotated[
        Size,
        Field(
            alias="bytes",
            ge=1,
            le=10_000_000,
            description="data that may cross each direction of a connection before the connection is closed",
        ),
    ]

    def attributes(self) -> dict[str, int]:
        return {"bytes": self.bytes_}

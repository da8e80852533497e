"""``reset`` and ``slow_close``: connections over some links are ended, or their end arrives late.

``reset``: sending data over some links ends the connection, ``timeout`` after it. It is Toxiproxy's ``reset_peer``
toxic. The sent data is lost; on the way back (``downstream``) that is a broker's response, so acknowledgements become
ambiguous. Connections made during the fault end with a TCP reset, those made before with an ordinary close (Toxiproxy
arms the reset as a connection starts). A client that dials a port which Docker forwards on loopback sees an ordinary
close of both: Docker's forwarder passes no reset on (``tests/contract/test_toxics.py``).

``slow_close``: the close of a connection is passed on late, so one side keeps a connection that the other has closed.
It is Toxiproxy's ``slow_close`` toxic. It has no effect while connections live, only when a side closes one, such as a
broker that stops or a client with idle connections. The heal passes on delayed closes immediately.
"""

import asyncio
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import Band, ExclusiveResource, Impact, PlanContext
from aftershock.faults.kinds.link.base import (
    ROOM_MS,
    SHARE,
    SLACK_MS,
    ClosedConnectionInjection,
    ProbedInjection,
    Reading,
    ToxicFault,
    ToxicInjection,
    dialled,
)
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import Duration
from aftershock.faults.targets.values import Link


class ResetInjection(ClosedConnectionInjection):
    """Connections ended by a reset or a close."""

    what: ClassVar[str] = "the connection of a request was reset or closed instead of answered, after"


class Reset(ToxicFault):
    """Close the connection of every sender over some links."""

    band: ClassVar[Band] = Band("#ad494a", "reset")
    proof: ClassVar[str] = "a question whose connection is ended instead of answered; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed; clients dial again"
    drops_traffic: ClassVar[bool] = True
    closes_connections: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("way", "links", by_plan=False),)
    allowance_ms: ClassVar[int] = 2_000
    toxic: ClassVar[str] = "reset_peer"
    injection: ClassVar[type[ToxicInjection]] = ResetInjection

    kind: Literal["reset"] = "reset"
    timeout: Annotated[Duration, Field(le=60_000, description="from what is sent to the reset")] = 0

    def impact(self) -> Impact:
        """Return ``unknown``: what gets through before a reset may keep a leader in place."""
        return "unknown"

    def attributes(self) -> dict[str, int]:
        """Return the time in ms."""
        return {"timeout": self.timeout}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- only its own two times matter
        """Yield a reset that would come after the fault's end."""
        if self.for_ is not None and self.timeout >= self.for_:
            yield Problem(("timeout",), "the fault ends before a connection can be reset: shorten `timeout`")


PROBES = 3


class SlowCloseInjection(ProbedInjection):
    """Links that pass closes on late. ``before``: the time of a close on each link before the fault, in ms."""

    what: ClassVar[str] = "the fastest of three closes, passed on to the broker and back, took longer than before, by"
    unit: ClassVar[str] = "ms"
    fault: "SlowClose"

    @property
    def measuring_us(self) -> int:
        """Time of a close to the broker and back."""
        return (2 * self.fault.delay + SLACK_MS) * 1000

    async def measure_before(self) -> None:
        """Measure a close on each link that answers."""
        await super().measure_before()
        fastest = {link: await self._fastest(link) for link in self.reachable}
        self.before = {link: ms for link, ms in fastest.items() if ms is not None}

    async def read(self, link: Link) -> Reading | None:
        """Expect a close slower by most of the delay of each stream."""
        ms = await self._fastest(link)
        if ms is None or link not in self.before:
            return None
        asked_ms, rise_ms = self.fault.delay * len(self.streams[link]), ms - self.before[link]
        return Reading(link, asked_ms, rise_ms, rise_ms >= SHARE * asked_ms)

    async def _fastest(self, link: Link) -> float | None:
        """Return the fastest of ``PROBES`` concurrent closes."""
        closes = await asyncio.gather(*(self._close_ms(link) for _ in range(PROBES)))
        return min((ms for ms in closes if ms is not None), default=None)

    async def _close_ms(self, link: Link) -> float | None:
        try:
            async with dialled(link, self.context) as probe:
                result = await probe.ask(0, ROOM_MS)  # the connection must reach the broker before it can be closed
                return await probe.close_ms(2 * self.fault.delay + ROOM_MS) if result.end == "answered" else None
        except FaultError:
            return None


class SlowClose(ToxicFault):
    """Pass the end of connections over some links on late."""

    band: ClassVar[Band] = Band("#7b4173", "slow_close")
    proof: ClassVar[str] = "closes of our own connections, passed on late; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed, and the closes held back are passed on"
    allowance_ms: ClassVar[int] = 2_000
    toxic: ClassVar[str] = "slow_close"
    injection: ClassVar[type[ToxicInjection]] = SlowCloseInjection

    kind: Literal["slow_close"] = "slow_close"
    delay: Annotated[Duration, Field(ge=50, le=60_000, description="of a close, on each stream")]

    def impact(self) -> Impact:
        """Return ``moments`` for a delay of a second at most: nothing is affected while connections live."""
        return "moments" if self.delay <= 1_000 else "unknown"  # noqa: PLR2004 -- the limit of `moments`

    def attributes(self) -> dict[str, int]:
        """Return the time in ms."""
        return {"delay": self.delay}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- only its own two times matter
        """Yield a delay longer than the fault."""
        if self.for_ is not None and self.delay >= self.for_:
            yield Problem(("delay",), "the fault ends before a close with this delay is passed on: shorten `delay`")

"""``reset``: whoever sends over some links has its connection ended, ``timeout`` after what it sent.

It is Toxiproxy's ``reset_peer`` toxic. What was sent is lost; on the way back (``downstream``) that is an answer to
what the broker did: an ambiguous acknowledgement. Connections made while it lasts end with a TCP reset, those made
before with an ordinary close (Toxiproxy arms the reset as a connection starts). A client that dials a port which Docker
forwards on loopback sees an ordinary close of both: Docker's forwarder passes no reset on
(``tests/contract/test_toxics.py``).

``slow_close``: the end of a connection over some links is passed on late, so one side holds what the other left.

It is Toxiproxy's ``slow_close`` toxic. It says nothing while connections live: it is met when a side closes one, as a
broker that stops or a client that idles does. The heal passes on at once what it held back.
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
    EndedInjection,
    ProbedInjection,
    Reading,
    ToxicFault,
    ToxicFaultInjection,
    dialled,
)
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import Duration
from aftershock.faults.targets.values import Link


class ResetInjection(EndedInjection):
    """A connection that is ended."""

    what: ClassVar[str] = "a question's connection was reset or closed instead of answered, after"


class Reset(ToxicFault):
    """End the connection of whoever sends over some links."""

    band: ClassVar[Band] = Band("#ad494a", "reset")
    proof: ClassVar[str] = "a question whose connection is ended instead of answered; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed; clients dial again"
    drops_traffic: ClassVar[bool] = True
    closes_connections: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("way", "links", by_plan=False),)
    allowance_ms: ClassVar[int] = 2_000
    toxic: ClassVar[str] = "reset_peer"
    injection: ClassVar[type[ToxicFaultInjection]] = ResetInjection

    kind: Literal["reset"] = "reset"
    timeout: Annotated[Duration, Field(le=60_000, description="from what is sent to the reset")] = 0

    def impact(self) -> Impact:
        """What gets through before a connection is reset may keep a node in office."""
        return "unknown"

    def attributes(self) -> dict[str, int]:
        """In ms."""
        return {"timeout": self.timeout}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- it is about its own two times
        """A reset that the fault does not live to see."""
        if self.for_ is not None and self.timeout >= self.for_:
            yield Problem(("timeout",), "the fault is over before a connection could be reset: shorten it")


PROBES = 3


class SlowCloseInjection(ProbedInjection):
    """``before``: how soon each link passed a close on, in ms."""

    what: ClassVar[str] = "the quickest of three closes, passed on to the broker and back, took longer than before, by"
    unit: ClassVar[str] = "ms"
    fault: "SlowClose"

    def measuring_ms(self) -> int:
        """A close there, and one back."""
        return 2 * self.fault.delay + SLACK_MS

    async def look_before(self) -> None:
        """How long a close takes on each link that answers."""
        await super().look_before()
        quickest = {link: await self._quickest(link) for link in self.reachable}
        self.before = {link: ms for link, ms in quickest.items() if ms is not None}

    async def read(self, link: Link) -> Reading | None:
        """Slower by most of the delay of each stream."""
        ms = await self._quickest(link)
        if ms is None or link not in self.before:
            return None
        asked_ms, rise_ms = self.fault.delay * len(self.streams[link]), ms - self.before[link]
        return Reading(link, asked_ms, rise_ms, rise_ms >= SHARE * asked_ms)

    async def _quickest(self, link: Link) -> float | None:
        """All at the same time: a close waits, it keeps nobody busy."""
        closes = await asyncio.gather(*(self._close_ms(link) for _ in range(PROBES)))
        return min((ms for ms in closes if ms is not None), default=None)

    async def _close_ms(self, link: Link) -> float | None:
        try:
            async with dialled(link, self.context) as probe:
                asked = await probe.ask(0, ROOM_MS)  # it must be open all the way before it can be closed
                return await probe.close_ms(2 * self.fault.delay + ROOM_MS) if asked.end == "answered" else None
        except FaultError:
            return None


class SlowClose(ToxicFault):
    """Pass the end of connections over some links on late."""

    band: ClassVar[Band] = Band("#7b4173", "slow_close")
    proof: ClassVar[str] = "closes of our own connections, passed on late; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed, and the closes held back are passed on"
    allowance_ms: ClassVar[int] = 2_000
    toxic: ClassVar[str] = "slow_close"
    injection: ClassVar[type[ToxicFaultInjection]] = SlowCloseInjection

    kind: Literal["slow_close"] = "slow_close"
    delay: Annotated[Duration, Field(ge=50, le=60_000, description="of a close, on each stream")]

    def impact(self) -> Impact:
        """Nothing while connections live."""
        return "moments" if self.delay <= 1_000 else "unknown"  # noqa: PLR2004 -- the second that `Takes` speaks of

    def attributes(self) -> dict[str, int]:
        """In ms."""
        return {"delay": self.delay}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- it is about its own two times
        """A delay that no close would see whole."""
        if self.for_ is not None and self.delay >= self.for_:
            yield Problem(
                ("delay",), "the fault is over before a close held back so long would be passed on: shorten it"
            )

"""``stall`` and ``blackhole``: traffic over some links stops, with or without loss.

``stall``: traffic stands still and continues where it stopped; connections are kept. It is Toxiproxy's ``bandwidth``
toxic at rate 0. Sent data waits in Toxiproxy and then in the sender's own buffers; the heal delivers it in order and
without loss (``tests/contract/test_toxics.py``). That is the difference from ``cut`` and ``blackhole``, which lose data
and end every connection. A request over a connection made before the fault must be answered over that connection after
the heal, unless something else closed it.

``blackhole``: sent data vanishes, and a connection on which nothing more is sent is closed after ``timeout``. It is
Toxiproxy's ``timeout`` toxic; each chunk that it discards restarts the time-out. The heal closes the connections that
are still open, because the lost data is missing from the stream: clients reconnect after it
(``tests/contract/test_toxics.py``). Use ``cut`` if connections should stay open, and ``stall`` if nothing should be
lost.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import Band, ExclusiveResource, Impact, PlanContext, Report
from aftershock.faults.kinds.link.base import ClosedConnectionInjection, ToxicFault, ToxicInjection
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import Duration
from aftershock.faults.runtime.probing import (
    SILENCE_MS,
    answering_links,
    count_answers,
    probe_all,
)
from aftershock.faults.runtime.record import Witness
from aftershock.faults.runtime.waiting import run_to_completion, with_timeout
from aftershock.faults.runtime.world import Probe
from aftershock.faults.targets.values import Exchange, Link

PROBE_SLACK_MS = 200
HELD_DEADLINE_MS = 30_000
FOREVER_MS = 24 * 3_600_000


class StallInjection(ToxicInjection):
    """Stalled links.

    ``kept``: a connection over each link, made before the fault; ``held``: the request sent over it during the fault.
    """

    @property
    def measuring_us(self) -> int:
        """Time until silence counts as no answer."""
        return (SILENCE_MS + PROBE_SLACK_MS) * 1000

    async def measure_before(self) -> None:
        """Connect over each link that answers."""
        self.reachable = await answering_links(self.streams, self.context)
        self.kept: dict[Link, Probe] = {link: await self.context.world.dial(link) for link in self.reachable}
        self.held: dict[Link, asyncio.Task[Exchange]] = {}

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Send a request over each kept connection, and observe that none is answered."""
        for link, probe in self.kept.items():
            self.held[link] = asyncio.create_task(probe.ask(0, FOREVER_MS))
        try:
            await super().hold(until_us, report)
        except asyncio.CancelledError:
            await self._hang_up(self.kept)
            raise
        await self._hang_up([link for link in self.kept if self.held[link].done()])

    async def measure(self) -> Witness:
        """Expect no answer on kept and new connections; connections closed by another cause are left out."""
        answers = count_answers(await probe_all(self.reachable, self.context))
        ends = [task.result().end if task.done() else "silent" for task in self.held.values()]
        answered = answers["answered"] + ends.count("answered")
        asked = answered + answers["silent"] + ends.count("silent")
        what = "requests answered over connections that stay open and silent until the heal lets them continue"
        if not asked:
            what = "no link answers by itself, so none can be probed; the toxics read back are the witness"
        return Witness(what, 0, answered, "answers", asked, ok=not answered)

    async def confirm_healed(self) -> None:
        """Wait until the held requests are answered, and every link answers."""
        try:
            if self.held:
                await self._await_held()
            await super().confirm_healed()
        finally:
            await self._hang_up(self.kept)

    async def _hang_up(self, links: Iterable[Link]) -> None:
        for link in links:
            await run_to_completion(self.kept[link].hang_up())

    async def _await_held(self) -> None:
        settled = asyncio.wait(self.held.values())
        if await with_timeout(settled, self.context.clock, HELD_DEADLINE_MS) is None:
            late = [link.proxy for link, task in self.held.items() if not task.done()]
            raise FaultError(
                f"the request that {late[0]} held back is not answered {HELD_DEADLINE_MS // 1000} s after the heal"
            )


class Stall(ToxicFault):
    """Stop traffic over some links, and continue it afterwards over the same connections."""

    band: ClassVar[Band] = Band("#7f7f7f", "stall")
    proof: ClassVar[str] = "silence on connections of our own, kept and new; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed; connections are kept, and what was held back arrives over them"
    drops_traffic: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (
        ExclusiveResource("rate", "links"),
        ExclusiveResource("way", "links", by_plan=False),
    )
    allowance_ms: ClassVar[int] = 2_000
    toxic: ClassVar[str] = "bandwidth"
    injection: ClassVar[type[ToxicInjection]] = StallInjection

    kind: Literal["stall"] = "stall"

    def impact(self) -> Impact:
        """Return ``unknown``: what gets through now and then may keep a leader in place."""
        return "unknown"

    def attributes(self) -> dict[str, int]:
        """Return a rate of zero."""
        return {"rate": 0}


class BlackholeInjection(ClosedConnectionInjection):
    """Connections closed after ``timeout``."""

    what: ClassVar[str] = "a request got no answer, and its connection was closed after; the heal closes those left"


class Blackhole(ToxicFault):
    """Discard all data that is sent over some links, and close connections without traffic."""

    band: ClassVar[Band] = Band("#393b79", "blackhole")
    proof: ClassVar[str] = "a question without answer, its connection closed after `timeout`; the toxics, read back"
    remedy: ClassVar[str] = "the toxics are removed, which closes every connection: it heals by reconnecting"
    drops_traffic: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("way", "links", by_plan=False),)
    allowance_ms: ClassVar[int] = 3_000
    toxic: ClassVar[str] = "timeout"
    injection: ClassVar[type[ToxicInjection]] = BlackholeInjection

    kind: Literal["blackhole"] = "blackhole"
    timeout: Annotated[Duration, Field(ge=100, le=60_000, description="a silent connection is closed after it")]

    def impact(self) -> Impact:
        """Return ``links``: nothing crosses them."""
        return "links"

    def attributes(self) -> dict[str, int]:
        """Return the time in ms."""
        return {"timeout": self.timeout}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- only its own two times matter
        """Yield a timeout longer than the fault."""
        if self.for_ is not None and self.timeout >= self.for_:
            yield Problem(
                ("timeout",), "the fault ends before a connection can be closed: shorten `timeout`, or use cut"
            )

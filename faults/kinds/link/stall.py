"""Fault ``stall``, which stops traffic over some links, until the heal continues it over the same connections.

``stall`` is Toxiproxy's ``bandwidth`` toxic at rate 0. Sent data waits in Toxiproxy and then in the sender's own
buffers; the heal of a ``stall`` delivers the data in order and without loss (``tests/contract/test_toxics.py``), while
``cut`` and ``blackhole`` lose data. A request that is sent during the stall over an earlier connection must be answered
over this connection after the heal, unless another fault closes the connection.
"""

import asyncio
from collections.abc import Iterable
from typing import Literal

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Injection,
    InjectionContext,
    OnLink,
    Report,
)
from aftershock.faults.kinds.link.base import LinkFault, ToxicInjection, link_targets, toxic_on
from aftershock.faults.kinds.probing import SILENCE_US, answering_links, silence_witness
from aftershock.faults.runtime.record import Witness
from aftershock.faults.runtime.waiting import run_to_completion, with_timeout
from aftershock.faults.targets.links import resolve
from aftershock.faults.targets.values import Exchange, Link
from aftershock.faults.targets.world import Probe

ANSWERED_DEADLINE_MS = 30_000
FOREVER_MS = 24 * 3_600_000


class StallInjection(ToxicInjection):
    """Stall of links; the harness sends a request over each of its ``connections`` from before the fault."""

    measuring_us = SILENCE_US

    async def connect(self) -> None:
        self.reachable = await answering_links(self.streams, self.context)
        self.connections: dict[Link, Probe] = {link: await self.context.world.dial(link) for link in self.reachable}
        self.requests: dict[Link, asyncio.Task[Exchange]] = {}

    async def hold(self, until_us: int | None, report: Report) -> None:
        for link, connection in self.connections.items():
            self.requests[link] = asyncio.create_task(connection.ask(0, FOREVER_MS))
        try:
            await super().hold(until_us, report)
        except asyncio.CancelledError:
            await self._hang_up(self.connections)
            raise
        await self._hang_up([link for link in self.connections if self.requests[link].done()])

    async def measure(self) -> Witness:
        """Return a witness that requests get no answer over connections from before the fault, nor over new ones."""
        held = [task.result().end if task.done() else "silent" for task in self.requests.values()]
        return await silence_witness(self.reachable, self.context, held)

    async def confirm_healed(self) -> None:
        """Wait until the requests that were sent during the stall are answered, and every link answers."""
        try:
            if self.requests:
                answered = asyncio.wait(self.requests.values())
                if await with_timeout(answered, self.context.clock, ANSWERED_DEADLINE_MS) is None:
                    late = [link.proxy for link, task in self.requests.items() if not task.done()]
                    raise FaultError(
                        f"a request sent over {late[0]} during the stall has no answer {ANSWERED_DEADLINE_MS // 1000} s"
                        " after the heal; look at the broker's log"
                    )
            await super().confirm_healed()
        finally:
            await self._hang_up(self.connections)

    async def _hang_up(self, links: Iterable[Link]) -> None:
        for link in links:
            await run_to_completion(self.connections[link].hang_up())


class Stall(LinkFault):
    """Stop all data on some links, and deliver the data after the fault over the same connections."""

    band = Band("#7f7f7f", "stall")
    unavailable = "links"
    proof = "No request is answered over old or new connections. Toxiproxy lists the toxics (read each second)."
    remedy = "The toxics are removed. Connections stay open, and the delayed data arrives."
    drops_traffic = True
    exclusive_resources = (ExclusiveResource("rate", "links"), ExclusiveResource("traffic", "links", by_plan=False))
    allowance_ms = 2_000

    drawn = ("{link: CLIENT_LINK}", "{link: NODE_LINK}")
    on_link = OnLink(
        "silent; continue after the heal", "accepted, silent", "arrives after the heal", "timeouts, late responses"
    )
    kind: Literal["stall"] = "stall"

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        streams = await resolve(self.link, context.world, draws)
        toxics = {stream: toxic_on(stream, context.fault, "bandwidth", {"rate": 0}) for stream in streams}
        targets = link_targets(streams, await self.target_roles(streams, context.world))
        injection = StallInjection(context, targets, toxics)
        await injection.connect()
        return injection

"""How most toxics are witnessed: by what becomes of connections of our own over the links they sit on.

Rules. Only a link that answered before the fault is tried during it. One whose broker does not run, or whose proxy is
disabled, is another fault's affair by then, and so is one where an overlapping fault leaves nothing to be read; both
are left out. Of the others every one must show the harm; the witness is of one that does not, else of the first. Where
no link is left, the toxics read back are the only witness, and ``what`` says so.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar, NamedTuple

from aftershock.errors import FaultError
from aftershock.faults.fault import Scene
from aftershock.faults.record import Witness
from aftershock.faults.strikes.linked import ToxicFaultStrike
from aftershock.faults.strikes.probing import answer_again, answering
from aftershock.faults.values import Exchange, Link
from aftershock.faults.world import Probe

ROOM_MS = 2_000  # what an exchange may take on a busy host beyond what the fault makes of it
SLACK_MS = 300  # what it takes beyond that, as a rule
SHARE = 0.8  # of a delay asked for that must be seen


class Reading(NamedTuple):
    """What one link showed: ``observed`` against ``asked``, and whether that is the harm."""

    link: Link
    asked: float
    observed: float
    ok: bool


class ProbedStrike(ToxicFaultStrike):
    """Toxics that show in connections of our own. ``what`` and ``unit`` are the witness's."""

    what: ClassVar[str]
    unit: ClassVar[str]
    reachable: Sequence[Link] = ()

    @abstractmethod
    async def read(self, link: Link) -> Reading | None:
        """What this link shows now; None where that says nothing about the fault."""

    async def look_before(self) -> None:
        """Which links answer."""
        self.reachable = await answering(self.streams, self.scene)

    async def measure(self) -> Witness:
        """Every link that is left must show the harm."""
        links = await serving(self.reachable, self.scene)
        readings = [each for each in await asyncio.gather(*map(self._read, links)) if each is not None]
        if not readings:
            what = "nothing answers by itself at the end of these links; the toxics read back are the witness"
            return Witness(what, 0, 0, "probes", 0, ok=True)
        told = next((each for each in readings if not each.ok), readings[0])
        what = f"{self.what} (through {told.link.proxy}, one of {len(readings)} links)"
        return Witness(what, told.asked, round(told.observed, 3), self.unit, len(readings), told.ok)

    async def confirm_healed(self) -> None:
        """Every link that answered before answers again."""
        await answer_again(self.reachable, self.scene)

    async def exchange(self, link: Link, ballast_bytes: int, limit_ms: int) -> Exchange | None:
        """One question over a connection of its own; None if there was no connection to be had."""
        try:
            async with dialled(link, self.scene) as probe:
                return await probe.ask(ballast_bytes, limit_ms)
        except FaultError:
            return None

    async def _read(self, link: Link) -> Reading | None:
        try:
            return await self.read(link)
        except FaultError:
            return None


class EndedStrike(ProbedStrike):
    """Toxics that end the connection of a question instead of having it answered, ``timeout`` after it."""

    unit: ClassVar[str] = "ms"

    def measuring_ms(self) -> int:
        """As long as a connection lives on."""
        return int(self.fault.timeout) + SLACK_MS

    async def read(self, link: Link) -> Reading | None:
        """No answer, and ended no earlier than asked for."""
        seen = await self.exchange(link, 0, self.fault.timeout + ROOM_MS)
        if seen is None or seen.end == "silent":
            return None
        ok = seen.end != "answered" and seen.ms >= SHARE * self.fault.timeout
        return Reading(link, self.fault.timeout, seen.ms, ok)


@asynccontextmanager
async def dialled(link: Link, scene: Scene) -> AsyncIterator[Probe]:
    """A connection through a link, for as long as the block lasts."""
    probe = await scene.world.dial(link)
    try:
        yield probe
    finally:
        await probe.hang_up()


async def serving(links: Sequence[Link], scene: Scene) -> list[Link]:
    """Those whose broker runs and whose proxy is enabled."""
    disabled = await scene.world.disabled()
    return [link for link in await manned(links, scene) if link.proxy not in disabled]


async def manned(links: Sequence[Link], scene: Scene) -> list[Link]:
    """Those whose broker runs."""
    return [link for link in links if await scene.world.state(link.broker) == "running"]

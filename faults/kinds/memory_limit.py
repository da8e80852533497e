"""``memory_limit``: one node gets no more than so much memory; with too little, the kernel kills it.

The limit counts everything: heap, threads, and the page cache of its logs, which goes first. With a limit below what
the JVM itself needs the process is killed, which is a fault as well; the heal starts it again.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.fault import Band, Stake
from aftershock.faults.record import Witness
from aftershock.faults.strikes.limited import LimitFault, LimitStrike
from aftershock.faults.units import Size
from aftershock.faults.values import Limits

USED_UP = 0.95
_MIB = 1_048_576


class MemoryLimitStrike(LimitStrike):
    """One node at its limit. ``most_bytes``: the most that it had in use under it; ``killed``: for its memory."""

    most_bytes = 0
    killed = False

    async def sample(self) -> None:
        """What it has in use, once the limit is on."""
        world = self.scene.world
        if await world.limits(self.victim) == self.wanted:
            self.killed = self.killed or await world.state(self.victim) == "exited"
            self.most_bytes = max(self.most_bytes, await world.memory_used(self.victim))

    def bitten(self) -> Witness:
        """The most in use, which must be about all there was; or its death."""
        if self.killed:
            return Witness(f"node {self.victim} was killed under its memory limit", 1, 1, "kills", n=1, ok=True)
        limit_bytes = self.wanted.memory_bytes or 0
        what = f"the most memory that node {self.victim} had in use under its limit"
        return Witness(what, limit_bytes, self.most_bytes, "bytes", n=1, ok=self.most_bytes >= USED_UP * limit_bytes)


class MemoryLimit(LimitFault):
    """Give a node no more than so much memory for a while."""

    band: ClassVar[Band] = Band("#7f7f7f", "memory limit")
    proof: ClassVar[str] = "as much in use as the limit allows, or the node killed; the limit, read back each second"
    remedy: ClassVar[str] = "the limit of before, and the node, killed or not, in the ISR of all it holds"
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("memory", "brokers"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 8_000  # a killed node is back 3-7 s after its start
    limit_strike: ClassVar[type[LimitStrike]] = MemoryLimitStrike

    kind: Literal["memory_limit"] = "memory_limit"
    memory: Annotated[Size, Field(ge=16 * _MIB)]

    def lowered(self, before: Limits) -> Limits:
        """Less memory, as much processor as before."""
        return Limits(before.cpus, self.memory)

"""``cpu_quota``: one node gets no more than a share of the processors (the kernel's CFS bandwidth control).

Whenever its quota of a 100 ms period is used up, all of its threads stand still till the next: a slow broker, whose
every request is late, and none refused.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.fault import Band, Stake
from aftershock.faults.record import Witness
from aftershock.faults.strikes.limited import LimitFault, LimitStrike
from aftershock.faults.values import Limits


class CpuQuotaStrike(LimitStrike):
    """One node whose threads stand still for most of each period. ``throttled``: the kernel's count, first and last."""

    throttled: tuple[int, int] | None = None

    async def sample(self) -> None:
        """Periods throttled so far."""
        now = (await self.scene.world.throttled(self.victim)).throttled
        self.throttled = (self.throttled[0] if self.throttled else now, now)

    def bitten(self) -> Witness:
        """Periods throttled since the quota was put on."""
        first, last = self.throttled or (0, 0)
        what = f"periods in which the kernel held the threads of node {self.victim}"
        return Witness(what, 1, last - first, "periods", n=1, ok=last > first)


class CpuQuota(LimitFault):
    """Give a node no more than a share of the processors for a while."""

    band: ClassVar[Band] = Band("#bcbd22", "cpu quota")
    proof: ClassVar[str] = "periods that the kernel throttled; the quota, read back each second"
    remedy: ClassVar[str] = "the quota of before, and the node in the ISR of all it holds"
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("cpu", "brokers"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 4_000
    limit_strike: ClassVar[type[LimitStrike]] = CpuQuotaStrike

    kind: Literal["cpu_quota"] = "cpu_quota"
    cpus: Annotated[float, Field(ge=0.01, le=64, description="processors: 0.2 is a fifth of one")]

    def lowered(self, before: Limits) -> Limits:
        """Less processor, as much memory as before."""
        return Limits(self.cpus, before.memory_bytes)

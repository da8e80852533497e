"""A node with less of the machine: what it may have is lowered, and put back.

Rules. The limit is the engine's; that it bites is seen in what the kernel counts (periods throttled, memory in use)
while the fault lasts. A limit that the node never runs against proves nothing.

``cpu_quota``: one node gets no more than a share of the processors (the kernel's CFS bandwidth control).

Whenever its quota of a 100 ms period is used up, all of its threads stand still till the next: a slow broker, whose
every request is late, and none refused.

``memory_limit``: one node gets no more than so much memory; with too little, the kernel kills it.

The limit counts everything: heap, threads, and the page cache of its logs, which goes first. With a limit below what
the JVM itself needs the process is killed, which is a fault as well; the heal starts it again.
"""

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    ExclusiveResource,
    Family,
    Injection,
    InjectionContext,
    Report,
)
from aftershock.faults.kinds.process.base import NodeFault, node_duties, out_of_service_reason, require_running
from aftershock.faults.plan.units import Size
from aftershock.faults.runtime.record import Targets, Undo, Witness, all_of
from aftershock.faults.runtime.waiting import run_to_completion, wait_until
from aftershock.faults.targets.roles import resolve
from aftershock.faults.targets.values import BrokerId, Limits

BACK_DEADLINE_MS = 60_000


class LimitInjection(Injection):
    """One node under limits. ``before``: those it had; ``wanted``: those of the fault."""

    def __init__(
        self, context: InjectionContext, victim: BrokerId, targets: Targets, before: Limits, wanted: Limits
    ) -> None:
        self.context = context
        self.victim = victim
        self.targets = targets
        self.before = before
        self.wanted = wanted
        restore = Undo("restore_limits", {"broker": victim, **vars(before)})
        # a node that ran out of memory was killed for it
        self.undo = all_of([restore, Undo("start", {"broker": victim})])

    @abstractmethod
    async def sample(self) -> None:
        """Look at what the kernel counts; asked first before the limits are put on."""

    @abstractmethod
    def bitten(self) -> Witness:
        """Whether the node has run against its limit, by what was seen."""

    async def inject(self) -> None:
        """Put the limits on."""
        await self.sample()
        await run_to_completion(self.context.world.limit(self.victim, self.wanted))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """The limits must read back all the time, and in the end the node must have run against them."""
        clock = self.context.clock
        while until_us is not None and (now_us := clock.now_us()) < until_us:
            report(await self.read_back())
            await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))
            await self.sample()
        report(self.bitten())

    async def read_back(self) -> Witness:
        """The limits as the engine has them now."""
        as_asked = await self.context.world.limits(self.victim) == self.wanted
        what = f"the limits of node {self.victim}, read back, are the ones asked for"
        return Witness(what, asked=1, observed=float(as_asked), unit="reads", n=1, ok=as_asked)

    async def confirm_healed(self) -> None:
        """The limits of before, and the node in service."""
        await wait_until(self._missing, self.context.clock, BACK_DEADLINE_MS)

    async def _missing(self) -> str | None:
        now = await self.context.world.limits(self.victim)
        return await out_of_service_reason(self.victim, self.context) if now == self.before else f"its limits are {now}"


class LimitFault(NodeFault):
    """A fault that gives one node less."""

    family: ClassVar[Family] = "process"
    drops_traffic: ClassVar[bool] = False
    limit_injection: ClassVar[type[LimitInjection]]

    @abstractmethod
    def lowered(self, before: Limits) -> Limits:
        """The limits to put on, given those there are."""

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if the node doesn't run."""
        victim = await resolve(self.broker, context.world, draws, "broker")
        await require_running(victim, context.world)
        led = [state for state in await context.world.partitions() if state.leader == victim]
        before = await context.world.limits(victim)
        wanted = self.lowered(before)
        limits = {key: value for key, value in vars(wanted).items() if value is not None}
        roles = {"asked": self.broker, **await node_duties(victim, led, context.world), **limits}
        return self.limit_injection(context, victim, Targets(brokers=(victim,), roles=roles), before, wanted)


class CpuQuotaInjection(LimitInjection):
    """One node whose threads stand still for most of each period. ``throttled``: the kernel's count, first and last."""

    throttled: tuple[int, int] | None = None

    async def sample(self) -> None:
        """Periods throttled so far."""
        now = (await self.context.world.throttled(self.victim)).throttled
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
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("cpu", "brokers"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 4_000
    limit_injection: ClassVar[type[LimitInjection]] = CpuQuotaInjection

    kind: Literal["cpu_quota"] = "cpu_quota"
    cpus: Annotated[float, Field(ge=0.01, le=64, description="processors: 0.2 is a fifth of one")]

    def lowered(self, before: Limits) -> Limits:
        """Less processor, as much memory as before."""
        return Limits(self.cpus, before.memory_bytes)


USED_UP = 0.95
_MIB = 1_048_576


class MemoryLimitInjection(LimitInjection):
    """One node at its limit. ``most_bytes``: the most that it had in use under it; ``killed``: for its memory."""

    most_bytes = 0
    killed = False

    async def sample(self) -> None:
        """What it has in use, once the limit is on."""
        world = self.context.world
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
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("memory", "brokers"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 8_000  # a killed node is back 3-7 s after its start
    limit_injection: ClassVar[type[LimitInjection]] = MemoryLimitInjection

    kind: Literal["memory_limit"] = "memory_limit"
    memory: Annotated[Size, Field(ge=16 * _MIB)]

    def lowered(self, before: Limits) -> Limits:
        """Less memory, as much processor as before."""
        return Limits(before.cpus, self.memory)

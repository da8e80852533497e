"""``cpu_quota`` and ``memory_limit``: lower the limits of one node, and restore the limits at the end.

The container engine enforces a limit, and kernel counters (throttled periods, memory in use) show its effect. If the
node never reaches its limit, the fault had no effect, and its witness fails.

``cpu_quota`` gives the node a share of the processors (the kernel's CFS bandwidth control). Once a node has used up its
quota of a 100 ms period, all its threads stop until the next period: a slow broker that delays all requests and refuses
none.

``memory_limit`` limits all memory of a node: heap, threads, and the page cache of the logs, which is evicted first. If
the limit is below the JVM's own needs, the kernel kills the process, which is a valid fault too; the heal starts the
node again.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    ExclusiveResource,
    Injection,
    InjectionContext,
    Report,
)
from aftershock.faults.kinds.process.base import NodeFault, led_partitions, node_duties, wait_until_in_service
from aftershock.faults.plan.units import Size
from aftershock.faults.runtime.record import Targets, Undo, Witness, all_of
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.targets.roles import resolve
from aftershock.faults.targets.values import BrokerId, Limits


@dataclass(eq=False)
class LimitInjection(Injection):
    """CPU or memory limits of one node; ``lowered``: the limits during the fault."""

    victim: BrokerId
    lowered: Limits

    @abstractmethod
    async def sample(self) -> None:
        """Read the kernel's counters of the node; called the first time before the limits are set."""

    @abstractmethod
    def limit_reached(self) -> Witness:
        """Return a witness that the node has reached its CPU or memory limit."""

    async def inject(self) -> None:
        await self.sample()
        await run_to_completion(self.context.world.limit(self.victim, self.lowered))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report the node's limits each second, and at the end whether the node reached its limits."""
        clock = self.context.clock
        while until_us is not None and (now_us := clock.now_us()) < until_us:
            report(await self.read_back())
            await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))
            await self.sample()
        report(self.limit_reached())

    async def read_back(self) -> Witness:
        ok = await self.context.world.limits(self.victim) == self.lowered
        what = f"the limits of node {self.victim}, read back from the engine, are the requested limits"
        return Witness(what, asked=1, observed=float(ok), unit="reads", n=1, ok=ok)

    async def confirm_healed(self) -> None:
        await wait_until_in_service(self.victim, self.context)


class LimitFault(NodeFault):
    """Base of faults that lower the limits of one node."""

    drops_traffic = False
    limit_injection: ClassVar[type[LimitInjection]]

    @abstractmethod
    def lower(self, before: Limits) -> Limits:
        """Return the CPU and memory limits to set, given the node's current limits."""

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        victim = await resolve(self.broker, context.world, draws, "broker")
        led = await led_partitions(victim, context.world)
        before = await context.world.limits(victim)
        lowered = self.lower(before)
        limits = {key: value for key, value in vars(lowered).items() if value is not None}
        roles = {"asked": self.broker, **await node_duties(victim, led, context.world), **limits}
        # a node that ran out of memory was killed, so the undo also starts the node
        restore = Undo("restore_limits", {"broker": victim, **vars(before)})
        undo = all_of([restore, Undo("start", {"broker": victim})])
        targets = Targets(brokers=(victim,), roles=roles)
        return self.limit_injection(context, targets, victim, lowered, undo=undo)


class CpuQuotaInjection(LimitInjection):
    """``throttled``: the kernel's count of throttled CPU periods, when first and when last read."""

    throttled: tuple[int, int] | None = None

    async def sample(self) -> None:
        count = (await self.context.world.throttled(self.victim)).throttled
        self.throttled = (self.throttled[0] if self.throttled else count, count)

    def limit_reached(self) -> Witness:
        first, last = self.throttled or (0, 0)
        what = f"periods in which the kernel throttled node {self.victim}"
        return Witness(what, 1, last - first, "periods", n=1, ok=last > first)


class CpuQuota(LimitFault):
    """Limit the processor time of a node."""

    band = Band("#bcbd22", "cpu quota")
    proof = "The kernel counts periods in which it throttled the node. The engine reports the quota (read each second)."
    remedy = "The earlier quota is restored, and the node is in the ISR of all its partitions."
    exclusive_resources = (ExclusiveResource("cpu", "brokers"),)
    for_rule = "needed"
    allowance_ms = 4_000
    limit_injection = CpuQuotaInjection

    kind: Literal["cpu_quota"] = "cpu_quota"
    cpus: Annotated[
        float,
        Field(ge=0.01, le=64, description="number of processors that the node may use; 0.2 is a fifth of a processor"),
    ]

    def lower(self, before: Limits) -> Limits:
        return Limits(self.cpus, before.memory_bytes)


USED_UP = 0.95  # share of the limit that counts as reached


class MemoryLimitInjection(LimitInjection):
    """``bytes_max``: maximum memory in use under the limit; ``killed``: True if the kernel killed the node."""

    bytes_max = 0
    killed = False

    async def sample(self) -> None:
        """Read the node's memory in use, once the memory limit is set."""
        world = self.context.world
        if await world.limits(self.victim) == self.lowered:
            self.killed = self.killed or await world.state(self.victim) == "exited"
            self.bytes_max = max(self.bytes_max, await world.memory_used(self.victim))

    def limit_reached(self) -> Witness:
        """Report the node's maximum memory in use, which must be close to the limit, or its kill by the kernel."""
        if self.killed:
            return Witness(f"node {self.victim} was killed under its memory limit", 1, 1, "kills", n=1, ok=True)
        limit_bytes = self.lowered.memory_bytes or 0
        what = f"largest memory use of node {self.victim} under its limit"
        return Witness(what, limit_bytes, self.bytes_max, "bytes", n=1, ok=self.bytes_max >= USED_UP * limit_bytes)


class MemoryLimit(LimitFault):
    """Limit the memory of a node."""

    band = Band("#7f7f7f", "memory limit")
    proof = (
        "The node uses nearly all memory that the limit allows, or the kernel kills it. The engine reports the "
        "limit (read each second)."
    )
    remedy = (
        "The earlier limit is restored. The node is started if the kernel killed it, and is in the ISR of all its "
        "partitions."
    )
    exclusive_resources = (ExclusiveResource("memory", "brokers"),)
    for_rule = "needed"
    allowance_ms = 8_000  # a killed node is back 3-7 s after its start
    limit_injection = MemoryLimitInjection

    kind: Literal["memory_limit"] = "memory_limit"
    memory: Annotated[Size, Field(ge=16 * 1_048_576)]

    def lower(self, before: Limits) -> Limits:
        return Limits(before.cpus, self.memory)

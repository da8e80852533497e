"""Faults ``cpu_quota`` and ``memory_limit``, which lower the CPU or memory limit of one node until the heal.

If a node under ``cpu_quota`` or ``memory_limit`` never reaches its limit, the fault has no effect, and its witness
fails. Once a node has used up its CPU quota of a 100 ms period (CFS bandwidth control), the kernel stops all threads of
the node until the next period. ``memory_limit`` limits all memory of a node, including the page cache of its logs,
which the kernel evicts first. If a memory limit is below the needs of the JVM, the kernel kills the node's process, and
the heal starts the node again.
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
from aftershock.faults.runtime.record import Targets, Undo, Witness, all_of
from aftershock.faults.runtime.undo import set_limits
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.sections.units import Size
from aftershock.faults.targets.roles import resolve
from aftershock.faults.targets.values import BrokerId


@dataclass(eq=False)
class LimitInjection(Injection):
    """Injection that lowers a node's limit ``name``, a field of ``Limits``, to ``value``; the other limit stays."""

    victim: BrokerId
    name: str
    value: float

    @abstractmethod
    async def sample(self) -> None:
        """Read the CPU or memory counters of the node from the kernel; first called before the limits are set."""

    @abstractmethod
    def limit_reached(self) -> Witness:
        """Return a witness that the node has reached its CPU or memory limit."""

    async def inject(self) -> None:
        await self.sample()
        await run_to_completion(set_limits(self.context.world, self.victim, {self.name: self.value}))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report the node's limits each second, and at the end whether the node reached its limits."""
        clock = self.context.clock
        while until_us is not None and (now_us := clock.now_us()) < until_us:
            report(await self.read_back())
            await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))
            await self.sample()
        report(self.limit_reached())

    async def read_back(self) -> Witness:
        ok = await self.is_set()
        what = f"the limit of node {self.victim}, read back from the engine, is the requested one"
        return Witness(what, asked=1, observed=float(ok), unit="reads", n=1, ok=ok)

    async def is_set(self) -> bool:
        return bool(getattr(await self.context.world.limits(self.victim), self.name) == self.value)

    async def confirm_healed(self) -> None:
        await wait_until_in_service(self.victim, self.context)


class LimitFault(NodeFault):
    """Base of faults that lower the CPU or memory limit of one node."""

    drops_traffic = False
    limit_injection: ClassVar[type[LimitInjection]]

    limit_name: ClassVar[str]

    @property
    @abstractmethod
    def lowered(self) -> float:
        """Return the node's limit during the fault."""

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        victim = await resolve(self.broker, context.world, draws, "broker")
        led = await led_partitions(victim, context.world)
        before = getattr(await context.world.limits(victim), self.limit_name)
        duties = await node_duties(victim, led, context.world)
        roles = {"asked": self.broker, **duties, self.limit_name: self.lowered}
        # a node that ran out of memory was killed, so the undo also starts the node
        restore = Undo("restore_limits", {"broker": victim, self.limit_name: before})
        undo = all_of([restore, Undo("start", {"broker": victim})])
        targets = Targets(brokers=(victim,), roles=roles)
        return self.limit_injection(context, targets, victim, self.limit_name, self.lowered, undo=undo)


class CpuQuotaInjection(LimitInjection):
    """CPU quota of a node; ``throttled`` has the kernel's first and last count of throttled CPU periods of the node."""

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
    remedy = "The earlier CPU quota is restored, and the node is in the ISR of all its partitions."
    allowance_ms = 4_000
    limit_injection = CpuQuotaInjection
    limit_name = "cpus"
    exclusive_resources = (ExclusiveResource("cpu", "brokers"),)

    drawn = ("{broker: BROKER, cpus: [0.05, 0.2]}",)
    kind: Literal["cpu_quota"] = "cpu_quota"
    cpus: Annotated[
        float,
        Field(ge=0.01, le=64, description="number of processors that the node may use; 0.2 is a fifth of a processor"),
    ]

    @property
    def lowered(self) -> float:
        return self.cpus


USED_UP = 0.95  # share of the limit that counts as reached


class MemoryLimitInjection(LimitInjection):
    """Memory limit of a node; ``bytes_max`` is its largest memory use; ``killed`` is True if the kernel killed it."""

    bytes_max = 0
    killed = False

    async def sample(self) -> None:
        world = self.context.world
        if await self.is_set():
            self.killed = self.killed or await world.state(self.victim) == "exited"
            self.bytes_max = max(self.bytes_max, await world.memory_used(self.victim))

    def limit_reached(self) -> Witness:
        """Return a witness that the node used nearly all memory that the limit allows, or was killed by the kernel."""
        if self.killed:
            return Witness(f"node {self.victim} was killed under its memory limit", 1, 1, "kills", n=1, ok=True)
        what = f"largest memory use of node {self.victim} under its limit"
        return Witness(what, self.value, self.bytes_max, "bytes", n=1, ok=self.bytes_max >= USED_UP * self.value)


class MemoryLimit(LimitFault):
    """Limit the memory of a node."""

    band = Band("#7f7f7f", "memory limit")
    proof = (
        "The node uses nearly all of its memory limit, or is killed. The engine reports the limit (read each second)."
    )
    remedy = "The earlier memory limit is restored. A killed node is started, and is in the ISR of all its partitions."
    allowance_ms = 8_000  # a killed node is back 3-7 s after its start
    limit_injection = MemoryLimitInjection
    limit_name = "memory_bytes"
    exclusive_resources = (ExclusiveResource("memory", "brokers"),)

    drawn = ("{broker: BROKER, memory: 190MiB}",)
    kind: Literal["memory_limit"] = "memory_limit"
    memory: Annotated[Size, Field(ge=16 * 1_048_576)]

    @property
    def lowered(self) -> int:
        return self.memory

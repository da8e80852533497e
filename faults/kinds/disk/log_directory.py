"""``disk_full`` and ``log_dir_offline``: a broker loses a log directory, to a full disk or to missing write permission.

Rules (Kafka's ``LogDirFailureHandler``): a broker marks a log directory offline at the first write that fails. A broker
writes a checkpoint into each log directory every five seconds at the latest
(``replica.high.watermark.checkpoint.interval.ms``). A broker that has a second log directory continues without the
replicas of the offline directory; otherwise the broker halts. A log directory stays offline until the broker restarts,
so the heal makes the directory usable and restarts the broker.

``disk_full`` fills one bounded log directory to the last byte, until the heal removes the file that fills it. The
filled directory must have its own size limit (``cluster: {disks: {size: 64MB}}``), because the engine's disk is shared.

``log_dir_offline`` makes one log directory unwritable for the broker's user. Every file in the unwritable directory
gets another owner and loses its write bits. Brokers run without the capability to write everywhere
(``CAP_DAC_OVERRIDE``), so that a broker that runs as root is affected too. The broker can still write to files that it
has open, but fails to create its next file, at the latest a checkpoint.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictInt

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    ExclusiveResource,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
)
from aftershock.faults.kinds.process.base import NodeFault, led_partitions, node_duties, wait_until_in_service
from aftershock.faults.plan.document import Problem
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.targets.roles import brokers_of, resolve
from aftershock.faults.targets.values import BrokerId, LogDir


@dataclass(eq=False)
class LogDirInjection(Injection):
    victim: BrokerId
    path: str

    @abstractmethod
    def state_witness(self, log_dir: LogDir) -> Witness:
        """Return a witness of the log directory's state in the file system."""

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report the log directory's state each second, and at the end whether its broker set it offline or halted."""
        clock = self.context.clock
        while until_us is not None and (now_us := clock.now_us()) < until_us:
            report(await self.read_back())
            await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))
        if await self.context.world.state(self.victim) == "exited":
            report(Witness(f"node {self.victim} halted, with no log directory left", 1, 1, "halts", n=1, ok=True))
            return
        offline = self.path in await self.context.world.offline_log_dirs(self.victim)
        what = f"the log directory {self.path} of node {self.victim} is offline, according to the broker"
        report(Witness(what, 1, float(offline), "log directories", n=1, ok=offline))

    async def read_back(self) -> Witness:
        dirs = {log_dir.path: log_dir for log_dir in await self.context.world.log_dirs(self.victim)}
        return self.state_witness(dirs[self.path])

    async def confirm_healed(self) -> None:
        await wait_until_in_service(self.victim, self.context)


class LogDirFault(NodeFault):
    """Base of faults on one log directory, by its number in ``log.dirs``, counted from 1."""

    family = "disk"
    exclusive_resources = (ExclusiveResource("disk", "brokers"), ExclusiveResource("process", "brokers"))
    drops_traffic = False
    for_rule = "needed"
    allowance_ms = 12_000  # a stop of 1-3 s, and 3-7 s until it is in service
    dir_injection: ClassVar[type[LogDirInjection]]

    disk: Annotated[
        StrictInt,
        Field(ge=1, le=4, description="number of the log directory in the broker's `log.dirs`, counted from 1"),
    ] = 1

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        count = plan.cluster.disks.count if plan.cluster and plan.cluster.disks else 1
        if plan.cluster and self.disk > count:
            yield Problem(
                ("disk",), f"a broker has {count} log directories: set `disk` to at most {count}, or add disks"
            )

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        victim = await resolve(self.broker, context.world, draws, "broker")
        if victim not in brokers_of(context.world):
            raise FaultError(f"node {victim} is a controller and holds no topics; name a broker")
        led = await led_partitions(victim, context.world)
        dirs = await context.world.log_dirs(victim)
        if self.disk > len(dirs):
            raise FaultError(
                f"node {victim} has no log directory {self.disk}; its log directories are 1 to {len(dirs)}"
            )
        log_dir = dirs[self.disk - 1]
        if log_dir.path in await context.world.offline_log_dirs(victim):
            raise FaultError(
                f"the log directory {log_dir.path} of node {victim} is offline already; let the other fault heal first"
            )
        self.require_usable(log_dir)
        roles = {"asked": self.broker, **await node_duties(victim, led, context.world)}
        roles |= {"log_dirs": len(dirs), "log_dir": log_dir.path}
        undo = Undo("reopen_log_dir", {"broker": victim, "log_dir": log_dir.path})
        return self.dir_injection(context, Targets(brokers=(victim,), roles=roles), victim, log_dir.path, undo=undo)

    def require_usable(self, log_dir: LogDir) -> None:
        """Raise FaultError if this fault kind can't be used on this log directory; the base class accepts all."""


FULL_BYTES = 65_536  # free bytes that still count as full: the broker may have deleted a small file


class DiskFullInjection(LogDirInjection):
    async def inject(self) -> None:
        await run_to_completion(self.context.world.fill(self.victim, self.path))

    def state_witness(self, log_dir: LogDir) -> Witness:
        what = f"free bytes in {self.path} of node {self.victim}, as its file system reports"
        return Witness(what, 0, log_dir.free_bytes, "bytes", n=1, ok=log_dir.free_bytes <= FULL_BYTES)


class DiskFull(LogDirFault):
    """Fill a log directory of limited size."""

    band = Band("#a55194", "disk full")
    proof = "The file system reports no free byte (read each second). The broker marks the directory offline, or halts."
    remedy = "The filler is removed and the broker restarted. The broker is in the ISR of all its partitions."
    dir_injection = DiskFullInjection

    kind: Literal["disk_full"] = "disk_full"

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().problems(plan)
        if plan.cluster and plan.cluster.disks is None:
            sentence = "the brokers keep their logs on the engine's own disk, which must not be filled: add "
            yield Problem((), sentence + "`disks: {size: 64MB}` to the cluster")

    def require_usable(self, log_dir: LogDir) -> None:
        if not log_dir.bounded:
            raise FaultError(
                f"the log directory {log_dir.path} has no size limit: launch the cluster with `disks: {{size: 64MB}}`"
            )


class LogDirOfflineInjection(LogDirInjection):
    async def inject(self) -> None:
        await run_to_completion(self.context.world.seal(self.victim, self.path))

    def state_witness(self, log_dir: LogDir) -> Witness:
        what = f"the broker's user can't write to the log directory {self.path} of node {self.victim}"
        return Witness(what, 1, float(not log_dir.writable), "reads", n=1, ok=not log_dir.writable)


class LogDirOffline(LogDirFault):
    """Make a log directory unwritable for the broker."""

    band = Band("#6b6ecf", "log dir offline")
    proof = (
        "The broker's user can't write to the directory (read each second). The broker marks the directory offline, "
        "or halts."
    )
    remedy = "The permissions are restored and the broker restarted. The broker is in the ISR of all its partitions."
    dir_injection = LogDirOfflineInjection

    kind: Literal["log_dir_offline"] = "log_dir_offline"

"""Faults ``disk_full`` and ``log_dir_offline``, by which a broker can't write to one of its log directories.

A broker marks a log directory offline at the first write that fails (Kafka's ``LogDirFailureHandler``), which is at the
latest the next checkpoint, after five seconds (``replica.high.watermark.checkpoint.interval.ms``). A broker that has a
second log directory continues without the replicas of the offline directory; otherwise the broker halts. A log
directory stays offline until the broker restarts, so the heal makes the directory usable and restarts the broker.

``disk_full`` needs a log directory with its own size limit (key ``cluster.disks`` of the plan), because all containers
share the Docker engine's disk.

``log_dir_offline`` gives every file in a log directory another owner and no write bits. Brokers run without the
capability to write everywhere (``CAP_DAC_OVERRIDE``), so that a broker that runs as root is affected too. The broker
can still write to files that it has open, but can't create its next file.
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
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.sections.document import Problem
from aftershock.faults.targets.roles import brokers_of, resolve
from aftershock.faults.targets.values import BrokerId, LogDir


@dataclass(eq=False)
class LogDirInjection(Injection):
    victim: BrokerId
    path: str

    @abstractmethod
    def state_witness(self, log_dir: LogDir) -> Witness:
        """Return a witness that the file system shows the log directory as full or unwritable."""

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report the state of the log directory each second, and at the end whether the broker marked it offline."""
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
    """Base of faults on one log directory of a broker."""

    family = "disk"
    unavailable = "nodes"
    exclusive_resources = (ExclusiveResource("disk", "brokers"), ExclusiveResource("process", "brokers"))
    drops_traffic = False
    closes_connections = True  # the broker answers with an error, or halts
    allowance_ms = 12_000  # a stop of 1-3 s, and 3-7 s until it is in service
    dir_injection: ClassVar[type[LogDirInjection]]

    disk: Annotated[StrictInt, Field(ge=1, le=4, description="position of the log directory in `log.dirs`, from 1")] = 1

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        count = plan.cluster.disks.count if plan.cluster and plan.cluster.disks else 1
        if plan.cluster and self.disk > count:
            yield Problem(("disk",), f"a broker has {count} log directories: lower `disk`, or raise `count` of `disks`")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        victim = await resolve(self.broker, context.world, draws, "broker")
        if victim not in brokers_of(context.world):
            raise FaultError(f"node {victim} is an isolated controller without log directories of topics; use a broker")
        led = await led_partitions(victim, context.world)
        dirs = await context.world.log_dirs(victim)
        if self.disk > len(dirs):
            raise FaultError(f"broker {victim} has {len(dirs)} log directories; lower `disk: {self.disk}`")
        log_dir = dirs[self.disk - 1]
        if log_dir.path in await context.world.offline_log_dirs(victim):
            raise FaultError(f"{log_dir.path} of broker {victim} is offline already; start this fault after its heal")
        self.require_usable(log_dir)
        roles = {"asked": self.broker, **await node_duties(victim, led, context.world)}
        roles |= {"log_dirs": len(dirs), "log_dir": log_dir.path}
        undo = Undo("reopen_log_dir", {"broker": victim, "log_dir": log_dir.path})
        return self.dir_injection(context, Targets(brokers=(victim,), roles=roles), victim, log_dir.path, undo=undo)

    def require_usable(self, log_dir: LogDir) -> None:
        """Raise FaultError if the fault can't be injected into this log directory; by default, accept all."""


FULL_BYTES = 65_536  # free bytes that still count as full: the broker may have deleted a small file


class DiskFullInjection(LogDirInjection):
    async def inject(self) -> None:
        await run_to_completion(self.context.world.fill(self.victim, self.path))

    def state_witness(self, log_dir: LogDir) -> Witness:
        what = f"free bytes in {self.path} of node {self.victim}, as its file system reports"
        return Witness(what, 0, log_dir.free_bytes, "bytes", n=1, ok=log_dir.free_bytes <= FULL_BYTES)


class DiskFull(LogDirFault):
    """Fill a broker's log directory, which must have a size limit, to the last byte."""

    band = Band("#a55194", "disk full")
    proof = "The file system reports no free byte (read each second). The broker marks the directory offline, or halts."
    remedy = "The disk space is freed and the broker restarted. The broker is in the ISR of all its partitions."
    dir_injection = DiskFullInjection

    drawn = ("{broker: BROKER, disk: [1, 2], for: 8s}",)
    kind: Literal["disk_full"] = "disk_full"

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().problems(plan)
        if plan.cluster and plan.cluster.disks is None:
            message = "the brokers' logs are on the engine's own disk, which must not be filled"
            yield Problem((), f"{message}: set `cluster: {{disks: {{size: 64MB}}}}`")

    def require_usable(self, log_dir: LogDir) -> None:
        if not log_dir.bounded:
            raise FaultError(f"{log_dir.path} has no size limit: launch the cluster with `disks: {{size: 64MB}}`")


class LogDirOfflineInjection(LogDirInjection):
    async def inject(self) -> None:
        await run_to_completion(self.context.world.seal(self.victim, self.path))

    def state_witness(self, log_dir: LogDir) -> Witness:
        what = f"the broker's user can't write to the log directory {self.path} of node {self.victim}"
        return Witness(what, 1, float(not log_dir.writable), "reads", n=1, ok=not log_dir.writable)


class LogDirOffline(LogDirFault):
    """Make a broker's log directory unwritable for the broker's user."""

    band = Band("#6b6ecf", "log dir offline")
    proof = "The broker's user can't write to the directory (read each second). The broker marks it offline, or halts."
    remedy = "The permissions are restored and the broker restarted. The broker is in the ISR of all its partitions."
    dir_injection = LogDirOfflineInjection

    drawn = ("{broker: BROKER, disk: [1, 2], for: 8s}",)
    kind: Literal["log_dir_offline"] = "log_dir_offline"

"""A log directory that its broker loses: what a full disk and a disk that can't be written have in common.

Rules (Kafka's ``LogDirFailureHandler``). A broker gives a directory up at the first write that fails; it writes a
checkpoint into each every five seconds at the latest (``replica.high.watermark.checkpoint.interval.ms``). With another
one left it goes on without the replicas that were there; with none, it halts. A directory given up stays so until the
broker is started again, so the heal makes it usable and restarts the broker.

``disk_full``: one bounded log directory has no byte left, until the heal removes what filled it.

Only where the directory's size is its own (``cluster: {disks: {size: 64MB}}``): the engine's disk is everybody's.

``log_dir_offline``: one log directory can't be written any more, by whoever the broker runs as.

Everything in it is given to nobody and loses its write bits. Brokers are launched without the right to write
everywhere (``CAP_DAC_OVERRIDE``), so that this holds for root as well. Files that the broker has open it can go on
writing; the next one that it creates, a checkpoint at the latest, fails.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictInt

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    ExclusiveResource,
    Family,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
)
from aftershock.faults.kinds.process.base import NodeFault, node_duties, out_of_service_reason, require_running
from aftershock.faults.plan.document import Problem
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion, wait_until
from aftershock.faults.targets.roles import brokers_of, resolve
from aftershock.faults.targets.values import BrokerId, LogDir

BACK_DEADLINE_MS = 60_000


class LogDirInjection(Injection):
    """One log directory of one broker."""

    def __init__(self, context: InjectionContext, victim: BrokerId, log_dir: LogDir, roles: dict[str, Any]) -> None:
        self.context = context
        self.victim = victim
        self.path = log_dir.path
        self.targets = Targets(brokers=(victim,), roles={**roles, "log_dir": log_dir.path})
        self.undo = Undo("reopen_log_dir", {"broker": victim, "log_dir": log_dir.path})

    @abstractmethod
    def harmed(self, log_dir: LogDir) -> Witness:
        """Whether the file system has it as asked."""

    async def hold(self, until_us: int | None, report: Report) -> None:
        """The directory must stay as asked, and before the end its broker must have given it up."""
        clock = self.context.clock
        while until_us is not None and (now_us := clock.now_us()) < until_us:
            report(await self.read_back())
            await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))
        report(await self._given_up())

    async def read_back(self) -> Witness:
        """The directory as the file system has it now."""
        dirs = {each.path: each for each in await self.context.world.log_dirs(self.victim)}
        return self.harmed(dirs[self.path])

    async def _given_up(self) -> Witness:
        """The broker's own word, or its death: with no directory left it halts."""
        if await self.context.world.state(self.victim) == "exited":
            return Witness(f"node {self.victim} has halted, with no log directory left", 1, 1, "halts", n=1, ok=True)
        offline = self.path in await self.context.world.offline_log_dirs(self.victim)
        what = f"log directories that node {self.victim} says are offline, {self.path} among them"
        return Witness(what, 1, float(offline), "log directories", n=1, ok=offline)

    async def confirm_healed(self) -> None:
        """The broker is back in service, and with the directory."""
        await wait_until(self._missing, self.context.clock, BACK_DEADLINE_MS)

    async def _missing(self) -> str | None:
        if missing := await out_of_service_reason(self.victim, self.context):
            return missing
        offline = self.path in await self.context.world.offline_log_dirs(self.victim)
        return f"{self.path} is still offline" if offline else None


class LogDirFault(NodeFault):
    """A fault on one log directory, by its number in ``log.dirs``, counted from 1."""

    family: ClassVar[Family] = "disk"
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (
        ExclusiveResource("disk", "brokers"),
        ExclusiveResource("process", "brokers"),
    )
    drops_traffic: ClassVar[bool] = False
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 12_000  # a stop of 1-3 s, and 3-7 s until it is in service
    dir_injection: ClassVar[type[LogDirInjection]]

    disk: Annotated[StrictInt, Field(ge=1, le=4, description="which of the broker's log directories")] = 1

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """A directory that the cluster's brokers don't have."""
        count = plan.cluster.disks.count if plan.cluster and plan.cluster.disks else 1
        if plan.cluster and self.disk > count:
            yield Problem(("disk",), f"the brokers have {count} log directories: say {count} at most, or add `disks`")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if the node doesn't run, has no such directory, or has given it up already."""
        victim = await resolve(self.broker, context.world, draws, "broker")
        if victim not in brokers_of(context.world):
            raise FaultError(f"node {victim} is a controller and keeps no topics; name a broker")
        await require_running(victim, context.world)
        dirs = await context.world.log_dirs(victim)
        if self.disk > len(dirs):
            raise FaultError(f"node {victim} has no log directory {self.disk}; it has {len(dirs)}")
        log_dir = dirs[self.disk - 1]
        if log_dir.path in await context.world.offline_log_dirs(victim):
            raise FaultError(f"{log_dir.path} of node {victim} is offline already; let its other fault heal first")
        self.refuse(log_dir)
        led = [state for state in await context.world.partitions() if state.leader == victim]
        roles = {"asked": self.broker, **await node_duties(victim, led, context.world), "log_dirs": len(dirs)}
        return self.dir_injection(context, victim, log_dir, roles)

    def refuse(self, log_dir: LogDir) -> None:
        """FaultError if this directory can't be hit this way."""


FULL_BYTES = 65_536  # what may be free again by what the broker has deleted since


class DiskFullInjection(LogDirInjection):
    """One log directory, filled."""

    async def inject(self) -> None:
        """Fill it to the last byte."""
        await run_to_completion(self.context.world.fill(self.victim, self.path))

    def harmed(self, log_dir: LogDir) -> Witness:
        """What the file system says is free."""
        what = f"bytes free in {self.path} of node {self.victim}, by its file system"
        return Witness(what, 0, log_dir.free_bytes, "bytes", n=1, ok=log_dir.free_bytes <= FULL_BYTES)


class DiskFull(LogDirFault):
    """Fill a bounded log directory of a broker."""

    band: ClassVar[Band] = Band("#a55194", "disk full")
    proof: ClassVar[str] = "no byte free, read back each second; the broker gave the directory up, or halted"
    remedy: ClassVar[str] = "the filler is removed and the broker restarted; it is in the ISR of all it holds"
    dir_injection: ClassVar[type[LogDirInjection]] = DiskFullInjection

    kind: Literal["disk_full"] = "disk_full"

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """Only directories of a bounded size may be filled."""
        yield from super().problems(plan)
        if plan.cluster and plan.cluster.disks is None:
            sentence = "the brokers keep their logs on the engine's own disk, which is not to be filled: add "
            yield Problem((), sentence + "`disks: {size: 64MB}` to the cluster")

    def refuse(self, log_dir: LogDir) -> None:
        """FaultError if others would run out of space as well."""
        if not log_dir.bounded:
            raise FaultError(f"{log_dir.path} has no size of its own: launch the cluster with `disks: {{size: 64MB}}`")


class LogDirOfflineInjection(LogDirInjection):
    """One log directory, sealed."""

    async def inject(self) -> None:
        """Take the right to write away."""
        await run_to_completion(self.context.world.seal(self.victim, self.path))

    def harmed(self, log_dir: LogDir) -> Witness:
        """Whether the broker's own user may write there."""
        what = f"{self.path} of node {self.victim} can't be written by the broker's user"
        return Witness(what, 1, float(not log_dir.writable), "reads", n=1, ok=not log_dir.writable)


class LogDirOffline(LogDirFault):
    """Make a log directory of a broker unwritable."""

    band: ClassVar[Band] = Band("#6b6ecf", "log dir offline")
    proof: ClassVar[str] = "its user may not write, read back each second; the broker gave the directory up, or halted"
    remedy: ClassVar[str] = "the rights are given back and the broker restarted; it is in the ISR of all it holds"
    dir_injection: ClassVar[type[LogDirInjection]] = LogDirOfflineInjection

    kind: Literal["log_dir_offline"] = "log_dir_offline"

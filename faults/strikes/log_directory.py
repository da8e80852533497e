"""A log directory that its broker loses: what a full disk and a disk that can't be written have in common.

Rules (Kafka's ``LogDirFailureHandler``). A broker gives a directory up at the first write that fails; it writes a
checkpoint into each every five seconds at the latest (``replica.high.watermark.checkpoint.interval.ms``). With another
one left it goes on without the replicas that were there; with none, it halts. A directory given up stays so until the
broker is started again, so the heal makes it usable and restarts the broker.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictInt

from aftershock.errors import FaultError
from aftershock.faults.fault import READ_BACK_US, Draws, Family, Report, Rest, Scene, Stake, Strike
from aftershock.faults.problem import Problem
from aftershock.faults.record import Targets, Undo, Witness
from aftershock.faults.roles import brokers_of, resolve
from aftershock.faults.strikes.victim import NodeFault, duties, in_service, require_running
from aftershock.faults.values import BrokerId, LogDir
from aftershock.faults.waiting import until

BACK_DEADLINE_MS = 60_000


class LogDirStrike(Strike):
    """One log directory of one broker."""

    def __init__(self, scene: Scene, victim: BrokerId, log_dir: LogDir, roles: dict[str, Any]) -> None:
        self.scene = scene
        self.victim = victim
        self.path = log_dir.path
        self.targets = Targets(brokers=(victim,), roles={**roles, "log_dir": log_dir.path})
        self.undo = Undo("reopen_log_dir", {"broker": victim, "log_dir": log_dir.path})

    @abstractmethod
    def harmed(self, log_dir: LogDir) -> Witness:
        """Whether the file system has it as asked."""

    async def hold(self, until_us: int | None, report: Report) -> None:
        """The directory must stay as asked, and before the end its broker must have given it up."""
        clock = self.scene.clock
        while until_us is not None and (now_us := clock.now_us()) < until_us:
            report(await self.read_back())
            await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))
        report(await self._given_up())

    async def read_back(self) -> Witness:
        """The directory as the file system has it now."""
        dirs = {each.path: each for each in await self.scene.world.log_dirs(self.victim)}
        return self.harmed(dirs[self.path])

    async def _given_up(self) -> Witness:
        """The broker's own word, or its death: with no directory left it halts."""
        if await self.scene.world.state(self.victim) == "exited":
            return Witness(f"node {self.victim} has halted, with no log directory left", 1, 1, "halts", n=1, ok=True)
        offline = self.path in await self.scene.world.given_up(self.victim)
        what = f"log directories that node {self.victim} says are offline, {self.path} among them"
        return Witness(what, 1, float(offline), "log directories", n=1, ok=offline)

    async def confirm_healed(self) -> None:
        """The broker is back in service, and with the directory."""
        await until(self._missing, self.scene.clock, BACK_DEADLINE_MS)

    async def _missing(self) -> str | None:
        if missing := await in_service(self.victim, self.scene):
            return missing
        offline = self.path in await self.scene.world.given_up(self.victim)
        return f"{self.path} is still offline" if offline else None


class LogDirFault(NodeFault):
    """A fault on one log directory, by its number in ``log.dirs``, counted from 1."""

    family: ClassVar[Family] = "disk"
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("disk", "brokers"), Stake("process", "brokers"))
    severs: ClassVar[bool] = False
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 12_000  # a stop of 1-3 s, and 3-7 s until it is in service
    dir_strike: ClassVar[type[LogDirStrike]]

    disk: Annotated[StrictInt, Field(ge=1, le=4, description="which of the broker's log directories")] = 1

    def problems(self, rest: Rest) -> Iterator[Problem]:
        """A directory that the cluster's brokers don't have."""
        count = rest.cluster.disks.count if rest.cluster and rest.cluster.disks else 1
        if rest.cluster and self.disk > count:
            yield Problem(("disk",), f"the brokers have {count} log directories: say {count} at most, or add `disks`")

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if the node doesn't run, has no such directory, or has given it up already."""
        victim = await resolve(self.broker, scene.world, draws, "broker")
        if victim not in brokers_of(scene.world):
            raise FaultError(f"node {victim} is a controller and keeps no topics; name a broker")
        await require_running(victim, scene.world)
        dirs = await scene.world.log_dirs(victim)
        if self.disk > len(dirs):
            raise FaultError(f"node {victim} has no log directory {self.disk}; it has {len(dirs)}")
        log_dir = dirs[self.disk - 1]
        if log_dir.path in await scene.world.given_up(victim):
            raise FaultError(f"{log_dir.path} of node {victim} is offline already; let its other fault heal first")
        self.refuse(log_dir)
        led = [state for state in await scene.world.partitions() if state.leader == victim]
        roles = {"asked": self.broker, **await duties(victim, led, scene.world), "log_dirs": len(dirs)}
        return self.dir_strike(scene, victim, log_dir, roles)

    def refuse(self, log_dir: LogDir) -> None:
        """FaultError if this directory can't be hit this way."""

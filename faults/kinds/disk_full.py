"""``disk_full``: one bounded log directory has no byte left, until the heal removes what filled it.

Only where the directory's size is its own (``cluster: {disks: {size: 64MB}}``): the engine's disk is everybody's.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from aftershock.errors import FaultError
from aftershock.faults.fault import Band, Rest
from aftershock.faults.problem import Problem
from aftershock.faults.record import Witness
from aftershock.faults.strikes.log_directory import LogDirFault, LogDirStrike
from aftershock.faults.values import LogDir
from aftershock.faults.waiting import to_the_end

FULL_BYTES = 65_536  # what may be free again by what the broker has deleted since


class DiskFullStrike(LogDirStrike):
    """One log directory, filled."""

    async def inject(self) -> None:
        """Fill it to the last byte."""
        await to_the_end(self.scene.world.fill(self.victim, self.path))

    def harmed(self, log_dir: LogDir) -> Witness:
        """What the file system says is free."""
        what = f"bytes free in {self.path} of node {self.victim}, by its file system"
        return Witness(what, 0, log_dir.free_bytes, "bytes", n=1, ok=log_dir.free_bytes <= FULL_BYTES)


class DiskFull(LogDirFault):
    """Fill a bounded log directory of a broker."""

    band: ClassVar[Band] = Band("#a55194", "disk full")
    proof: ClassVar[str] = "no byte free, read back each second; the broker gave the directory up, or halted"
    remedy: ClassVar[str] = "the filler is removed and the broker restarted; it is in the ISR of all it holds"
    dir_strike: ClassVar[type[LogDirStrike]] = DiskFullStrike

    kind: Literal["disk_full"] = "disk_full"

    def problems(self, rest: Rest) -> Iterator[Problem]:
        """Only directories of a bounded size may be filled."""
        yield from super().problems(rest)
        if rest.cluster and rest.cluster.disks is None:
            sentence = "the brokers keep their logs on the engine's own disk, which is not to be filled: add "
            yield Problem((), sentence + "`disks: {size: 64MB}` to the cluster")

    def refuse(self, log_dir: LogDir) -> None:
        """FaultError if others would run out of space as well."""
        if not log_dir.bounded:
            raise FaultError(f"{log_dir.path} has no size of its own: launch the cluster with `disks: {{size: 64MB}}`")

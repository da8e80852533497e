"""``log_dir_offline``: one log directory can't be written any more, by whoever the broker runs as.

Everything in it is given to nobody and loses its write bits. Brokers are launched without the right to write
everywhere (``CAP_DAC_OVERRIDE``), so that this holds for root as well. Files that the broker has open it can go on
writing; the next one that it creates, a checkpoint at the latest, fails.
"""

from typing import ClassVar, Literal

from aftershock.faults.fault import Band
from aftershock.faults.record import Witness
from aftershock.faults.strikes.log_directory import LogDirFault, LogDirStrike
from aftershock.faults.values import LogDir
from aftershock.faults.waiting import to_the_end


class LogDirOfflineStrike(LogDirStrike):
    """One log directory, sealed."""

    async def inject(self) -> None:
        """Take the right to write away."""
        await to_the_end(self.scene.world.seal(self.victim, self.path))

    def harmed(self, log_dir: LogDir) -> Witness:
        """Whether the broker's own user may write there."""
        what = f"{self.path} of node {self.victim} can't be written by the broker's user"
        return Witness(what, 1, float(not log_dir.writable), "reads", n=1, ok=not log_dir.writable)


class LogDirOffline(LogDirFault):
    """Make a log directory of a broker unwritable."""

    band: ClassVar[Band] = Band("#6b6ecf", "log dir offline")
    proof: ClassVar[str] = "its user may not write, read back each second; the broker gave the directory up, or halted"
    remedy: ClassVar[str] = "the rights are given back and the broker restarted; it is in the ISR of all it holds"
    dir_strike: ClassVar[type[LogDirStrike]] = LogDirOfflineStrike

    kind: Literal["log_dir_offline"] = "log_dir_offline"

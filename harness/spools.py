"""Where the clients of a run leave their rows until they are evidence: memory, which outlives a runner that is killed.

A spool's name says whose it is (``aftershock-<run>.<owner>``), so that a dead run's can be told; its link ``home``
leads to the run directory, so that what it holds can still become evidence.
"""

import os
import shutil
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aftershock.harness import processes
from aftershock.harness.labels import lives, owner
from aftershock.workloads.outcomes import convert
from aftershock.workloads.spool import TMPFS, spool_home

_HOME = "home"
_WORKER = b"aftershock.workloads.worker"


@dataclass(frozen=True)
class Spool:
    """The spools of one run's clients. ``home``: its run directory, where that is still known and there."""

    run_id: str
    owner: str
    path: Path

    @property
    def home(self) -> Path | None:
        """The run directory."""
        home = self.path / _HOME
        return home.resolve() if home.is_dir() else None

    def salvage(self) -> None:
        """Turn what the clients wrote into evidence, and let go of the memory."""
        if self.home:
            convert(self.path, self.home / "outcomes")
        self.discard()

    def discard(self) -> None:
        """Let go of the memory; the run directory is left alone."""
        with suppress(OSError):
            (self.path / _HOME).unlink()
        shutil.rmtree(self.path, ignore_errors=True)


def spool_for(run_id: str, run_dir: Path) -> Spool:
    """A new spool of this process's run."""
    mine = owner()
    path = spool_home(f"{run_id}.{mine}", run_dir)
    path.mkdir(mode=0o700)
    (path / _HOME).symlink_to(run_dir.resolve(), target_is_directory=True)
    return Spool(run_id, mine, path)


def orphaned() -> list[Spool]:
    """The spools of runners that are dead, and are ours to remove."""
    found = [_spool(path) for path in sorted(TMPFS.glob("aftershock-*")) if path.stat().st_uid == os.getuid()]
    return [spool for spool in found if spool and not lives(spool.owner)]


def end_workers(run_id: str) -> None:
    """Kill the client processes of a run whose runner is dead, and what they started.

    By itself each ends in half a second, unless it is frozen.
    """
    for whole in workers(run_id).values():
        for process in whole:
            processes.send(process, signal.SIGKILL)


def workers(run_id: str) -> dict[str, list[processes.Process]]:
    """The client processes of that run that are there, by name, each with all that it started (its session)."""
    found = {}
    for leader, whole in processes.sessions().items():
        words = processes.command_line(leader)
        if words[-3:-1] == [_WORKER, run_id.encode()]:
            found[words[-1].decode()] = whole
    return found


def spool_of(run_id: str) -> Path | None:
    """Where the clients of a run that is under way leave their rows; None where there is no such run."""
    found = (_spool(path) for path in TMPFS.glob(f"aftershock-{run_id}.*"))
    return next((spool.path for spool in found if spool and spool.run_id == run_id and lives(spool.owner)), None)


def _spool(path: Path) -> Spool | None:
    run_id, dot, owned_by = path.name.removeprefix("aftershock-").rpartition(".")
    return Spool(run_id, owned_by, path) if dot and ":" in owned_by else None

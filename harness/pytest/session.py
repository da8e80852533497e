"""A test suite's session: its folder, and the ledger of which test drove which run.

::

    <out>/session-20261121-132000-5f3a/   runs.jsonl  session.json  index.html  spark.log  pool/
    <out>/<run id>/                       each run's evidence, where `aftershock run` would have put it

Rules: the folder comes into being with the first run, so a suite without chaos tests leaves no trace; the ledger is
written when a run *begins*, by whichever process drives it, so that the runs of a crashed worker are known. Light: this
is imported by every pytest that has us installed.

One run on a warm cluster: what a chaos test drives, where `aftershock run` launches a cluster of its own.

::

    host's lease ─▶ cluster's lease ─▶ run directory ─▶ load and faults ─▶ host let go ─▶ broker logs ─▶ cluster let go

Rules: the host's lease comes first, since a launch would disturb the measurements of a neighbour, and whoever held a
cluster while waiting for the host could wait for ever. It is let go of when the load is over; healing and clearing the
cluster needs no quiet.
"""

import json
import os
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import collect_logs
from aftershock.harness.cluster.ownership import owner
from aftershock.harness.cluster.pool import Pool
from aftershock.harness.run.progress import Progress
from aftershock.harness.run.run import Job, accounted_for, live
from aftershock.harness.run.rundir import RunDir
from aftershock.harness.safety.heal import sweep
from aftershock.harness.safety.lease import Kind, host_lease

PROPERTY = "aftershock.run"
"""Of a test in JUnit's file: the id of a run that it drove."""


@dataclass(frozen=True)
class Entry:
    """A line of the ledger: the run's id, and the node id of the test that asked for it."""

    run_id: str
    test: str


@dataclass(frozen=True)
class Suite:
    """What the controller tells its workers: the session's folder, and the process that its clusters belong to."""

    folder: Path
    owner_pid: int
    keep_failed: bool

    @classmethod
    def new(cls, out: Path, *, keep_failed: bool) -> "Suite":
        """A session of this process, its runs under ``out``; nothing is written yet."""
        name = f"session-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
        return cls(out / name, os.getpid(), keep_failed)

    @property
    def out(self) -> Path:
        """The folder that holds the runs."""
        return self.folder.parent

    def to_json(self) -> str:
        """This as text, for xdist to carry to a worker."""
        return json.dumps({"folder": str(self.folder), "owner_pid": self.owner_pid, "keep_failed": self.keep_failed})

    @classmethod
    def from_json(cls, text: str) -> "Suite":
        """What ``to_json`` wrote."""
        told = json.loads(text)
        return cls(Path(told["folder"]), told["owner_pid"], told["keep_failed"])

    def enter(self, entry: Entry) -> None:
        """Add a run that begins to the ledger; any process may, at any time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"run": entry.run_id, "test": entry.test}) + "\n"
        with (self.folder / "runs.jsonl").open("ab", buffering=0) as ledger:
            ledger.write(line.encode())  # one write in append mode: lines of several processes do not mix

    def entries(self) -> list[Entry]:
        """The ledger, in the order in which the runs began; empty before the first."""
        try:
            lines = (self.folder / "runs.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [Entry(told["run"], told["test"]) for told in map(json.loads, lines)]


@dataclass(frozen=True)
class Errand:
    """A job to be driven for a test: ``begin`` makes its run directory once all that it needs is there.

    ``console``: where the progress goes, in lines.
    """

    job: Job
    kind: Kind
    suite: Suite
    test: str
    begin: Callable[[], RunDir]
    console: Console


def pool_of(suite: Suite) -> Pool:
    """The session's clusters; all of its processes share them, and they belong to the controller."""
    return Pool(_pool(suite), owner(suite.owner_pid), keep_dirty=suite.keep_failed)


def drive(errand: Errand, pool: Pool | None = None) -> RunDir:
    """Drive a job on a cluster of the session's pool, or of another; the evidence is complete when it returns.

    Raises:
        EngineError: there is no engine, or no image.
        ClusterError: a cluster did not come up.
        FaultError: a fault could not be healed.
        WorkloadError: a client process died.
        LeaseError: a lease can't be had.
    """
    progress = Progress(errand.console)
    if not _pool(errand.suite).exists():
        sweep(engine.connect(), progress.say)
    with ExitStack() as alone:
        alone.enter_context(host_lease(errand.kind, errand.test, progress.say))
        with (pool or pool_of(errand.suite)).lease(errand.job.spec, errand.test, progress.say) as leased:
            home = errand.begin()
            with accounted_for(home, progress):
                progress.say(f"run: {home.path}")
                leased.run(home.path)
                try:
                    live(errand.job, leased.cluster, home, leased.images, progress)
                finally:
                    alone.close()
                    collect_logs(engine.connect(), leased.cluster.run_id, home.path / "logs", leased.since)
    return home


def _pool(suite: Suite) -> Path:
    return suite.folder / "pool"

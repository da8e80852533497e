"""A test suite's session: its folder, and the ledger of which test drove which run.

::

    <out>/session-20261121-132000-5f3a/   runs.jsonl  session.json  index.html  spark.log  pool/
    <out>/<run id>/                       each run's evidence, where `aftershock run` would have put it

Rules: the folder comes into being with the first run, so a suite without chaos tests leaves no trace; the ledger is
written when a run *begins*, by whichever process drives it, so that the runs of a crashed worker are known. Light: this
is imported by every pytest that has us installed.
"""

import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

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

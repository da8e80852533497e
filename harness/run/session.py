"""Pytest session, with its folder ``session-<time>-<id>``, and the list of the session's runs in ``runs.jsonl``.

The folder of a session is below ``--aftershock-out``, beside the run directories, and also holds ``session.json``,
``index.html``, ``spark.log`` and ``pool/``. A run is listed in ``runs.jsonl`` when the run *begins*, so that the list
includes the runs of a crashed worker.
"""

# only the standard library, because every pytest run imports this module
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

PROPERTY = "aftershock.run"
"""Name of the JUnit property that holds the id of a run of the test."""


@dataclass(frozen=True)
class Entry:
    """Line of ``runs.jsonl``, with the run id, and the node id of the test that started the run."""

    run_id: str
    test: str


@dataclass(frozen=True)
class Suite:
    """Session data that the controller of pytest-xdist shares with its workers.

    The process ``owner_pid`` owns the session's clusters. With ``keep_failed``, the clusters of failed tests run on
    after the session.
    """

    folder: Path
    owner_pid: int
    keep_failed: bool

    @classmethod
    def new(cls, out: Path, kind: str = "session", *, keep_failed: bool) -> "Suite":
        """Return a new session of this process; its folder ``<kind>-…`` below ``out`` is created by the first run."""
        name = f"{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
        return cls(out / name, os.getpid(), keep_failed)

    @property
    def out(self) -> Path:
        return self.folder.parent

    def to_json(self) -> str:
        return json.dumps({"folder": str(self.folder), "owner_pid": self.owner_pid, "keep_failed": self.keep_failed})

    @classmethod
    def from_json(cls, text: str) -> "Suite":
        document = json.loads(text)
        return cls(Path(document["folder"]), document["owner_pid"], document["keep_failed"])

    def enter(self, entry: Entry) -> None:
        """Append a run to ``runs.jsonl``; several processes may append at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"run": entry.run_id, "test": entry.test}) + "\n"
        with (self.folder / "runs.jsonl").open("ab", buffering=0) as ledger:
            ledger.write(line.encode())  # a single write in append mode keeps the line whole

    def entries(self) -> list[Entry]:
        """Return the runs of the session, in the order in which the runs began."""
        try:
            lines = (self.folder / "runs.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [Entry(document["run"], document["test"]) for document in map(json.loads, lines)]

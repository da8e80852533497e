"""Journal of faults, a write-ahead log: each step, such as inject or heal, is written to disk before it is performed.

Each line of the journal has the undo of a fault as plain data and the process that injected the fault, so that any
process can heal the faults of a dead process. Several processes may append lines to one journal.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.faults.runtime.record import Entry
from aftershock.harness.cluster.ownership import owner
from aftershock.harness.run.rundir import RunClock
from aftershock.results.evidence.files import read_lines

Line = Mapping[str, Any]


class Journal:
    """Journal of a run's faults (``journal.jsonl``); ``lines`` holds the lines that this process has written."""

    def __init__(self, path: Path, clock: RunClock) -> None:
        self._clock = clock
        self._owner = owner()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.lines: list[dict[str, Any]] = []

    def record(self, entry: Entry) -> None:
        self.append(entry.as_json())

    def append(self, line: Line) -> None:
        """Append a line to the journal, with the time and the owner label of this process; return after the fsync."""
        line = {"t_us": self._clock.now_us(), **line, "owner": self._owner}
        self.lines.append(line)
        data = (json.dumps(line) + "\n").encode()
        if os.write(self._file, data) < len(data):
            raise OSError(f"no disk space for a line of the fault journal ({len(data)} bytes)")
        os.fsync(self._file)

    def open_faults(self) -> list[str]:
        """Return the ids of faults that this process injected and has not healed, in the order of injection."""
        return [line["fault"] for line in open_faults(self.lines)]

    def close(self) -> None:
        os.close(self._file)


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a journal, except an incomplete last line; raise EvidenceError for an invalid line."""
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if not {"fault", "state", "targets", "undo"} <= line.keys():
            raise EvidenceError(f"{path}:{number}: not a line of a fault journal; restore the file from a copy")
    return lines


def open_faults(lines: Iterable[Line]) -> list[Line]:
    """Return the last journal line of each fault that is not healed, in the order of injection."""
    last: dict[str, Line] = {}
    for line in lines:
        if line["state"] == "intended":
            last.pop(line["fault"], None)
        if line["state"] == "intended" or line["fault"] in last:
            last[line["fault"]] = line
    return [line for line in last.values() if line["state"] != "healed"]

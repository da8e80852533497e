"""The write-ahead log of faults: every line is on disk before what it announces is done.

A line carries the undo in plain data, and who owes it, so that any process can heal what a dead one broke. Several
processes may write one journal: a line is appended whole, or not at all.
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
    """``journal.jsonl`` of one run, with the fields of `design.md` 5.2; ``lines`` is what this process wrote."""

    def __init__(self, path: Path, clock: RunClock) -> None:
        self._clock = clock
        self._owner = owner()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.lines: list[dict[str, Any]] = []

    def record(self, entry: Entry) -> None:
        """Append one line and wait until it is on disk."""
        self.append(entry.as_json())

    def append(self, line: Line) -> None:
        """Append one line that is complete but for when it was written and by whom."""
        line = {"t_us": self._clock.now_us(), **line, "owner": self._owner}
        self.lines.append(line)
        data = (json.dumps(line) + "\n").encode()
        if os.write(self._file, data) < len(data):
            raise OSError(f"no room for a line of the journal ({len(data)} bytes)")
        os.fsync(self._file)

    def open_faults(self) -> list[str]:
        """The faults of this process that are in force now, in the order they began."""
        return [line["fault"] for line in open_faults(self.lines)]

    def close(self) -> None:
        """Close the file; what was recorded stays in ``lines``."""
        os.close(self._file)


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal; a torn last one was never acted on and is left out. EvidenceError if it is broken."""
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if not {"fault", "state", "targets", "undo"} <= line.keys():
            raise EvidenceError(f"{path}:{number}: not a line of a journal; restore the file")
    return lines


def open_faults(lines: Iterable[Line]) -> list[Line]:
    """The last line of each fault that is in force, in the order they began: intended, and not yet healed."""
    last: dict[str, Line] = {}
    for line in lines:
        if line["state"] == "intended":
            last.pop(line["fault"], None)
        if line["state"] == "intended" or line["fault"] in last:
            last[line["fault"]] = line
    return [line for line in last.values() if line["state"] != "healed"]

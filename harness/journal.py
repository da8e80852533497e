"""The write-ahead log of faults: every line is on disk before what it announces is done.

A line carries the undo in plain data, so that any process can heal what this one broke.
"""

import json
import os
from pathlib import Path
from typing import Any

from aftershock.faults.record import State, Targets, Undo, Witness
from aftershock.harness.clock import RunClock


class Journal:
    """``journal.jsonl`` of one run, with the fields of `design.md` 5.2; ``lines`` is what it holds."""

    def __init__(self, path: Path, clock: RunClock) -> None:
        self._clock = clock
        self._file = path.open("a", encoding="utf-8")
        self.lines: list[dict[str, Any]] = []

    def record(
        self,
        fault: str,
        kind: str,
        state: State,
        targets: Targets,
        undo: Undo,
        witness: Witness | None = None,
        why: str | None = None,
    ) -> None:
        """Append one line and wait until it is on disk."""
        line: dict[str, Any] = {
            "t_us": self._clock.now_us(),
            "fault": fault,
            "kind": kind,
            "state": state,
            "targets": targets.as_json(),
            "undo": undo.as_json(),
        }
        line |= {"witness": witness.as_json()} if witness else {}
        line |= {"why": why} if why else {}
        self.lines.append(line)
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def open_faults(self) -> list[str]:
        """The faults that are in force now, in the order they began: intended, and not yet healed."""
        begun = dict.fromkeys(line["fault"] for line in self.lines if line["state"] == "intended")
        healed = {line["fault"] for line in self.lines if line["state"] == "healed"}
        return [fault for fault in begun if fault not in healed]

    def close(self) -> None:
        """Close the file; what was recorded stays in ``lines``."""
        self._file.close()

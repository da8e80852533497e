"""Journal of faults, a write-ahead log; each step, such as a heal, is written to disk before it is performed.

Each line of the journal has the undo of a fault as plain data and the process that injected the fault, so that any
process can heal the faults of a dead process. Several processes may append lines to one journal.

::

    {"t_us": 5, "fault": "kill-1", …, "owner": "12:345:…", "crc": "89abcdef"}

A line is a JSON object that ends with the CRC-32 of the bytes before ``, "crc"`` and a newline. A file that ends within
a line was torn by a crash or a full disk. No step follows a line that is not wholly on disk, so the torn line is
ignored, and the next writer removes it. Any other difference is damage, and an error. Lines of version 0.1.0 have no
CRC, and precede all lines with one.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from aftershock.errors import EvidenceError
from aftershock.faults.runtime.record import Entry, State
from aftershock.harness.safety.ownership import owner
from aftershock.harness.safety.rundir import RunClock
from aftershock.redaction import redact_data
from aftershock.results.evidence import checksums

Line = Mapping[str, Any]

FILE = "journal.jsonl"
_TYPES = {"fault": str, "state": str, "targets": dict, "undo": dict}
_BEGINNING = b'{"t_us": '  # of every line, which is printable ASCII
_LOCK_ATTEMPTS = 100  # in one second; another writer holds the lock for one write and fsync


class Journal:
    """Journal of a run's faults (``journal.jsonl``); ``injected`` has the ids of the faults injected through it.

    Lines are not kept in memory, which a long run would fill. Each line that is on the disk is also passed to
    ``keep``, before the step that it announces.
    """

    def __init__(self, path: Path, clock: RunClock, keep: Callable[[Line], None] | None = None) -> None:
        self._path = path
        self._clock = clock
        self._keep = keep
        self._owner = owner()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._open: dict[str, None] = {}
        self.injected: set[str] = set()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return the lines that this process has written, from the file. Raises EvidenceError as `read_journal`."""
        return [line for line in read_journal(self._path) if line["owner"] == self._owner]

    def record(self, entry: Entry) -> None:
        self.append(entry.as_json())

    def append(self, line: Line) -> None:
        """Append a line to the journal, with the time and the owner label of this process; return after the fsync.

        Raises OSError if the line can't be written; the journal is then as before.
        """
        # an undo and its targets stay as they are, because healing reads them back
        texts = {name: redact_data(value) for name, value in line.items() if name not in ("undo", "targets")}
        line = {"t_us": self._clock.now_us(), **line, **texts, "owner": self._owner}
        with self._locked() as alone:
            size = os.fstat(self._file).st_size
            data = framed(line)
            if alone and size and os.pread(self._file, 1, size - 1) != b"\n":
                size, data = self._mend(size, data)
            try:
                while data:
                    data = data[os.write(self._file, data) :]
                os.fsync(self._file)
            except OSError:
                if alone:
                    os.ftruncate(self._file, size)
                raise
        if self._keep is not None:
            self._keep(line)
        if line["state"] == "injected":
            self.injected.add(line["fault"])
        if line["state"] == "intended":
            self._open[line["fault"]] = None
        elif line["state"] == "healed":
            self._open.pop(line["fault"], None)

    def open_faults(self) -> list[str]:
        """Return the ids of faults that this process injected and has not healed, in the order of injection."""
        return [*self._open]

    def close(self) -> None:
        os.close(self._file)

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Lock the journal against other writers; False if another process, perhaps a frozen one, keeps the lock."""
        alone = False
        for _ in range(_LOCK_ATTEMPTS):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.01)
            else:
                alone = True
                break
        try:
            yield alone
        finally:
            if alone:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _mend(self, size: int, data: bytes) -> tuple[int, bytes]:
        """Remove a torn last line, or end a line that lacks its newline; return the size and the data to write."""
        content = os.pread(self._file, size, 0)
        start = content.rfind(b"\n") + 1
        if _is_torn(content[start:]):
            os.ftruncate(self._file, start)
            return start, data
        return size, b"\n" + data  # a damaged line stays, for the reader to report


def framed(line: Line) -> bytes:
    """Return a journal line as bytes, with its checksum."""
    return checksums.framed(json.dumps(line).encode()[:-1]) + b"\n"


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a journal, except a torn last line.

    Raises EvidenceError if the journal is missing, can't be read or is damaged.
    """
    try:
        *texts, last = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise EvidenceError(f"{path}: the fault journal is missing; restore the file from a copy") from None
    except OSError as error:
        raise EvidenceError(
            f"{path}: the fault journal can't be read ({error.strerror}); restore access to the file, then type: "
            f"aftershock heal --run {path.parent.name}"
        ) from error
    if last and not _is_torn(last):
        texts.append(last)
    lines, with_crc = [], False
    for number, text in enumerate(texts, 1):
        line = _parse(text)
        if line is None or (with_crc and "crc" not in line):
            raise EvidenceError(
                f"{path}:{number}: damaged line of the fault journal; restore the file from a copy, or heal the fault "
                f"of this line by hand and remove the line: sed -i {number}d {path}; then type: aftershock heal --run "
                f"{path.parent.name}"
            )
        with_crc |= line.pop("crc", None) is not None
        lines.append(line)
    return lines


def _parse(text: bytes) -> dict[str, Any] | None:
    """Return a journal line, with its key ``crc`` unless version 0.1.0 wrote it; None for a damaged line."""
    try:
        line = json.loads(text.decode())
    except ValueError:
        return None
    if not isinstance(line, dict) or not all(isinstance(line.get(key), kind) for key, kind in _TYPES.items()):
        return None
    if line["state"] not in get_args(State) or not {"verb", "args"} <= line["undo"].keys():
        return None
    if "crc" in line:
        body = checksums.body_of(text)
        if body is None or text != checksums.framed(body):
            return None
    return line


def _is_torn(tail: bytes) -> bool:
    """True if a journal's bytes after the last newline begin a line; False for a whole line or for damage."""
    if not (tail.startswith(_BEGINNING) or _BEGINNING.startswith(tail)) or not re.fullmatch(rb"[ -~]*", tail):
        return False
    try:
        json.JSONDecoder().raw_decode(tail.decode())
    except ValueError:
        return checksums.PATTERN.search(tail) is None
    return False


def open_faults(lines: Iterable[Line]) -> list[Line]:
    """Return the last journal line of each fault that is not healed, in the order of injection."""
    last: dict[str, Line] = {}
    for line in lines:
        if line["state"] == "intended":
            last.pop(line["fault"], None)
        if line["state"] == "intended" or line["fault"] in last:
            last[line["fault"]] = line
    return [line for line in last.values() if line["state"] != "healed"]

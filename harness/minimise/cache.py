"""What became of each candidate, line by line on disk, so that a search that was killed goes on where it was.

Rules. A line is written when the run is judged, in one write. A line that can't be read is told and skipped: its
candidate is run again. Each asking takes the next outcome there is of a candidate, so repetitions are cached as well. A
run that broke says nothing of its candidate: it is logged, and tried anew by the next search.
"""

import json
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from aftershock.harness.minimise.alike import Word

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """One run of a candidate. ``digest``: of all that decides about it; ``run``: its folder under ``runs``."""

    digest: str
    said: str
    word: Word
    why: str
    run: str
    took_s: float


class Cache:
    """The outcomes in a file, which comes into being with the first."""

    def __init__(self, path: Path, say: Say) -> None:
        self._path = path
        self._left: defaultdict[str, deque[Outcome]] = defaultdict(deque)
        for number, line in enumerate(_lines(path), 1):
            if (read := _outcome(line)) is None:
                say(f"{path}:{number}: this line can't be read, and is skipped: its candidate is run again")
            elif read.word != "broke":
                self._left[read.digest].append(read)

    def take(self, digest: str) -> Outcome | None:
        """The next outcome of this candidate, if there is one left."""
        return self._left[digest].popleft() if self._left[digest] else None

    def add(self, outcome: Outcome) -> None:
        """Write one down; a line that was torn before it stays a line of its own."""
        torn = bool(text := _text(self._path)) and not text.endswith(b"\n")
        with self._path.open("ab", buffering=0) as file:
            file.write(b"\n" * torn + json.dumps(asdict(outcome)).encode() + b"\n")


def _text(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _lines(path: Path) -> list[bytes]:
    return _text(path).splitlines()


def _outcome(line: bytes) -> Outcome | None:
    try:
        read = json.loads(line)
        told = Outcome(**{field.name: read[field.name] for field in fields(Outcome)})
        return (
            told
            if isinstance(told.took_s, float | int) and told.word in ("fails", "passes", "undecided", "broke")
            else None
        )
    except (ValueError, KeyError, TypeError):
        return None

"""The corpus: plans that failed once, each a file that ``aftershock run`` takes as it is; they run first, every night.

::

    # corpus: {"schema_version": 1, "seed": 7, "night": "2026-11-22", "failed": ["integrity/lost"], "evidence": "…"}
    name: explore-7-3
    …

Rules: the first line, a comment to YAML, says where the plan is from; the rest is the plan. A file that can't be read,
is of another schema or holds no valid plan is named with the reason and left out; the others count.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError, PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.results.evidence.files import write_whole

SCHEMA_VERSION = 1
NAME = "corpus"
_MARK = "# corpus: "


@dataclass(frozen=True)
class Found:
    """Where a plan is from: the seed it was compiled with, what failed, and the run that shows it."""

    seed: int
    night: str
    failed: tuple[str, ...]
    evidence: str


@dataclass(frozen=True)
class Entry:
    """One plan of the corpus."""

    path: Path
    text: str
    found: Found


@dataclass(frozen=True)
class Corpus:
    """What could be read, newest first, and a sentence for each file that could not."""

    entries: tuple[Entry, ...] = ()
    skipped: tuple[str, ...] = ()


def keep(folder: Path, text: str, found: Found) -> Path:
    """Add a plan, in the place of itself if it is there already. EvidenceError where it can't be written."""
    path = folder / f"{found.night}-{_digest(text)}.yaml"
    same = [other for other in folder.glob(f"*-{_digest(text)}.yaml") if other != path]
    head = json.dumps({"schema_version": SCHEMA_VERSION, **asdict(found)})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{_MARK}{head}\n{text}")
        for other in same:
            other.unlink()
    except OSError as refused:
        raise EvidenceError(f"{path}: can't be written ({refused.strerror}); name another --out") from refused
    return path


def read(folder: Path) -> Corpus:
    """All that is there; a folder that isn't there has none."""
    entries, skipped = [], []
    for path in sorted(folder.glob("*.yaml"), reverse=True):
        try:
            entries.append(_entry(path))
        except (PlanError, ValueError, KeyError, TypeError, OSError) as wrong:
            skipped.append(f"{path}: skipped: {_reason(wrong)}")
    return Corpus(tuple(entries), tuple(skipped))


def _digest(text: str) -> str:
    """Of the plan alone: what it is called is no part of what it does."""
    return sha256("\n".join(_told(text)).encode()).hexdigest()[:10]


def _told(text: str) -> Iterator[str]:
    yield from (line for line in text.splitlines() if not line.startswith(("name:", "why:")))


def _entry(path: Path) -> Entry:
    head, _, text = path.read_text(encoding="utf-8").partition("\n")
    if not head.startswith(_MARK):
        raise ValueError(f"its first line is no `{_MARK.strip()} {{…}}`; add the plan again, or take it out")
    said = json.loads(head.removeprefix(_MARK))
    if said["schema_version"] != SCHEMA_VERSION:
        raise ValueError(_of_another(said["schema_version"]))
    load_plan(text)
    known = {field.name: said[field.name] for field in fields(Found)}
    return Entry(path, text, Found(**known | {"failed": _texts(said["failed"]), "seed": int(said["seed"])}))


def _of_another(version: Any) -> str:
    is_newer = isinstance(version, int) and version > SCHEMA_VERSION
    what = "upgrade Aftershock" if is_newer else "run it once more with `aftershock run`, and add it again if it fails"
    return f"it is of schema {version}, and this Aftershock reads {SCHEMA_VERSION}: {what}"


def _texts(said: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(str, said))


def _reason(wrong: Exception) -> str:
    if isinstance(wrong, PlanError):
        return f"no plan that can be run any more: {wrong.problems[0]}"
    return f"{wrong} is missing" if isinstance(wrong, KeyError) else str(wrong)

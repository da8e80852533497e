"""Corpus of failing plans: each is a file that ``aftershock run`` accepts.

Every night, all of them run before any other plan.

::

    # corpus: {"schema_version": 1, "seed": 7, "night": "2026-11-22", "failed": ["integrity/lost"], "evidence": "…"}
    name: explore-7-3
    …

The first line, a comment to YAML, has the plan's origin; the rest is the plan. A file that can't be read, has another
schema version or holds no valid plan is reported with the reason and skipped; the others still run.
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
class Origin:
    """Origin of a plan: its seed, the failed checks, and the run with the evidence."""

    seed: int
    night: str
    failed: tuple[str, ...]
    evidence: str


@dataclass(frozen=True)
class Entry:
    """One plan of the corpus."""

    path: Path
    text: str
    found: Origin


@dataclass(frozen=True)
class Corpus:
    """Readable plans, newest first, and a sentence for each unreadable file."""

    entries: tuple[Entry, ...] = ()
    skipped: tuple[str, ...] = ()


def keep(folder: Path, text: str, found: Origin) -> Path:
    """Add a plan, or replace an earlier copy of it. Raises EvidenceError if it can't be written."""
    path = folder / f"{found.night}-{_digest(text)}.yaml"
    duplicates = [other for other in folder.glob(f"*-{_digest(text)}.yaml") if other != path]
    head = json.dumps({"schema_version": SCHEMA_VERSION, **asdict(found)})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{_MARK}{head}\n{text}")
        for other in duplicates:
            other.unlink()
    except OSError as error:
        raise EvidenceError(f"{path}: can't be written ({error.strerror}); choose another --out") from error
    return path


def read(folder: Path) -> Corpus:
    """Read all plans; a missing folder has none."""
    entries, skipped = [], []
    for path in sorted(folder.glob("*.yaml"), reverse=True):
        try:
            entries.append(_entry(path))
        except (PlanError, ValueError, KeyError, TypeError, OSError) as error:
            skipped.append(f"{path}: skipped: {_reason(error)}")
    return Corpus(tuple(entries), tuple(skipped))


def _digest(text: str) -> str:
    """Hash the plan without its name and description."""
    return sha256("\n".join(_plan_lines(text)).encode()).hexdigest()[:10]


def _plan_lines(text: str) -> Iterator[str]:
    yield from (line for line in text.splitlines() if not line.startswith(("name:", "why:")))


def _entry(path: Path) -> Entry:
    head, _, text = path.read_text(encoding="utf-8").partition("\n")
    if not head.startswith(_MARK):
        raise ValueError(f"its first line must be `{_MARK.strip()} {{…}}`; add the plan again, or remove the file")
    header = json.loads(head.removeprefix(_MARK))
    if header["schema_version"] != SCHEMA_VERSION:
        raise ValueError(_schema_problem(header["schema_version"]))
    load_plan(text)
    origin_fields = {field.name: header[field.name] for field in fields(Origin)}
    return Entry(
        path, text, Origin(**origin_fields | {"failed": _texts(header["failed"]), "seed": int(header["seed"])})
    )


def _schema_problem(version: Any) -> str:
    is_newer = isinstance(version, int) and version > SCHEMA_VERSION
    advice = "upgrade Aftershock" if is_newer else "run it again with `aftershock run`, and add it again if it fails"
    return f"it has schema version {version}, but this Aftershock reads {SCHEMA_VERSION}: {advice}"


def _texts(header: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(str, header))


def _reason(error: Exception) -> str:
    if isinstance(error, PlanError):
        return f"the plan is no longer valid: {error.problems[0]}"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)

"""Corpus of failing plans, each a file that ``aftershock run`` accepts; ``aftershock explore`` runs these plans first.

The first line of a plan in the corpus is a YAML comment with the plan's origin as JSON, which has the keys
``schema_version``, ``seed``, ``night``, ``failed`` (such as ``["integrity/lost"]``) and ``evidence``.
"""

import json
from dataclasses import asdict, dataclass
from datetime import date
from hashlib import sha256
from pathlib import Path

from aftershock.errors import EvidenceError, PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.results.evidence.files import write_whole

SCHEMA_VERSION = 1
NAME = "corpus"
_MARK = "# corpus: "


@dataclass(frozen=True)
class Origin:
    """Origin of a plan in the corpus, with seed, date, ids of the failed checks, and the run directory as evidence."""

    seed: int
    night: str
    failed: tuple[str, ...]
    evidence: str


@dataclass(frozen=True)
class Entry:
    path: Path
    text: str
    origin: Origin


@dataclass(frozen=True)
class Corpus:
    """Valid plans of the corpus, newest first; ``skipped`` has a message for each file that is not a valid plan."""

    entries: tuple[Entry, ...] = ()
    skipped: tuple[str, ...] = ()


def keep(folder: Path, text: str, origin: Origin) -> Path:
    """Add a failing plan to the corpus in place of earlier copies; raise EvidenceError if writing fails."""
    path = folder / f"{origin.night}-{_digest(text)}.yaml"
    duplicates = [copy for copy in folder.glob(f"*-{_digest(text)}.yaml") if copy != path]
    head = json.dumps({"schema_version": SCHEMA_VERSION, **asdict(origin)})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{_MARK}{head}\n{text}")
        for duplicate in duplicates:
            duplicate.unlink()
    except OSError as error:
        raise EvidenceError(f"{path}: can't be written ({error.strerror}); choose another --out") from error
    return path


def read(folder: Path) -> Corpus:
    entries, skipped = [], []
    for path in sorted(folder.glob("*.yaml"), reverse=True):
        try:
            entries.append(_read_entry(path))
        except PlanError as error:
            skipped.append(f"{path}: skipped: the plan is no longer valid: {error.problems[0]}")
        except KeyError as error:
            skipped.append(f"{path}: skipped: {error} is missing")
        except (ValueError, TypeError, OSError) as error:
            skipped.append(f"{path}: skipped: {error}")
    return Corpus(tuple(entries), tuple(skipped))


def _digest(text: str) -> str:
    """Return a hash of a plan's text without the keys ``name`` and ``why``."""
    lines = [line for line in text.splitlines() if not line.startswith(("name:", "why:"))]
    return sha256("\n".join(lines).encode()).hexdigest()[:10]


def _read_entry(path: Path) -> Entry:
    head, _, text = path.read_text(encoding="utf-8").partition("\n")
    if not head.startswith(_MARK):
        raise ValueError(f"the first line must be `{_MARK.strip()} {{…}}`; add the plan again, or remove the file")
    header = json.loads(head.removeprefix(_MARK))
    if (schema_version := header["schema_version"]) != SCHEMA_VERSION:
        is_newer = isinstance(schema_version, int) and schema_version > SCHEMA_VERSION
        repeat = "run the plan with `aftershock run`, and if the run fails, add the plan to the corpus again"
        raise ValueError(
            f"the file has schema version {schema_version}, but this Aftershock reads {SCHEMA_VERSION}: "
            f"{'upgrade Aftershock' if is_newer else repeat}"
        )
    load_plan(text)
    seed, night = int(header["seed"]), date.fromisoformat(header["night"]).isoformat()
    failed = tuple(map(str, header["failed"]))
    return Entry(path, text, Origin(seed, night, failed, str(header["evidence"])))

"""Manifest of a run: the names, sizes and SHA-256 digests of the evidence files, written when the run ends.

``manifest.json`` has ``files``, the names of the evidence files, and ``digests``, which maps each name to ``bytes`` and
``sha256``. Results of judging (``verdict.json``, ``report.html``, ``silver/``, …) and logs are not evidence. Runs of
Aftershock 0.1.0 have no ``digests``: in their evidence only missing files are noticed. The manifest detects accidents
and careless edits; it is not signed, so whoever changes a file can also rewrite the manifest.

The names in the manifest of a foreign run are not trusted: a name that leads out of the run directory is refused, and
so is a symlink in the run directory that leads out of it.
"""

import hashlib
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.results.evidence.files import MISSING

SCHEMA_VERSION = 1
NAME = "manifest.json"
DOCUMENTS = ("plan.yaml", "timeline.json", "run.json", "journal.jsonl", "events.jsonl", "phases.json")
LEADERS = "leaders.jsonl"
OPTIONAL_DOCUMENTS = ("expectations.jsonl", LEADERS)
TABLES = ("outcomes", "log", "replicas", "offsets", "metrics", "transactions", "batches")
_LISTED_MAX = 5


@dataclass(frozen=True)
class Digest:
    """Size and SHA-256 of a file; ``sha256`` is None if only the size was read."""

    bytes: int
    sha256: str | None

    def __str__(self) -> str:
        return f"sha256 {self.sha256}, {self.bytes} bytes"

    def agrees(self, other: "Digest") -> bool:
        return self.bytes == other.bytes and (None in (self.sha256, other.sha256) or self.sha256 == other.sha256)


def digest_of(path: Path) -> Digest | None:
    """Return the digest of a file, read as a stream; None if the file does not exist.

    Raises EvidenceError for anything but a regular file: reading a named pipe would never end.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise EvidenceError(f"{path}: not a regular file; restore the file or run the plan again")
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return Digest(file.tell(), sha256)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EvidenceError(f"{path}: not readable ({error}); restore the file or run the plan again") from error


def manifest_of(home: Path) -> dict[str, Any]:
    """Return the manifest of the evidence files that lie in the run directory ``home``."""
    tables = [f"{table}/{part.name}" for table in TABLES for part in sorted((home / table).glob("[!._]*.parquet"))]
    names = [*DOCUMENTS, *(name for name in OPTIONAL_DOCUMENTS if (home / name).exists()), *tables]
    digests = {name: asdict(digest) for name in names if (digest := digest_of(home / name))}
    return {"schema_version": SCHEMA_VERSION, "files": names, "digests": digests}


def names_in(where: str, manifest: Mapping[str, Any]) -> list[str]:
    """Return the file names in a manifest. Raises EvidenceError for a name that may lead out of the run directory."""
    files, digests = manifest.get("files", []), manifest.get("digests", {})
    if not isinstance(files, list) or not isinstance(digests, dict):
        raise EvidenceError(f"{where}: 'files' must be a list and 'digests' an object; restore the file")
    names = [*files, *digests]
    for name in names:
        path = PurePosixPath(name) if isinstance(name, str) else None
        if path is None or path.is_absolute() or ".." in path.parts or str(path) != name or "\0" in name:
            raise EvidenceError(
                f"{where}: {name!r} is not a path inside the run directory; restore the file or run the plan again"
            )
    return list(dict.fromkeys(names))


def expected_digests(manifest: Mapping[str, Any]) -> dict[str, Digest] | None:
    """Return the digests in a manifest; None if the run was recorded by a version that wrote none."""
    if "digests" not in manifest:
        return None
    rows = {name: row if isinstance(row, dict) else {} for name, row in manifest["digests"].items()}
    return {name: Digest(row.get("bytes", -1), str(row.get("sha256"))) for name, row in rows.items()}


def differences(expected: Mapping[str, Digest], names: Collection[str], found: Mapping[str, Digest]) -> tuple[str, ...]:
    """Describe each changed, missing and additional evidence file with its expected and actual digest.

    ``names`` are the files in the manifest; ``found`` has the digests of all evidence files that exist.
    """
    altered = []
    for name in sorted({*names, *found}):
        want, have = expected.get(name), found.get(name)
        if have is None:
            altered.append(f"{name}: {MISSING} (expected {want or 'without digest'})")
        elif name not in names:
            altered.append(f"{name}: not in the manifest (found {have})")
        elif want is None:
            altered.append(f"{name}: without digest in the manifest (found {have})")
        elif not want.agrees(have):
            altered.append(f"{name}: changed after the run (expected {want}; found {have})")
    return tuple(altered)


def altered_evidence(home: str, altered: Sequence[str]) -> EvidenceError:
    """Return the error about evidence that differs from the manifest."""
    listed = [*altered[:_LISTED_MAX]]
    if len(altered) > _LISTED_MAX:
        listed.append(f"and {len(altered) - _LISTED_MAX} more files")
    return EvidenceError(
        f"{home}: the evidence differs from its manifest: {'; '.join(listed)}; restore the files, or judge the "
        "evidence as it is with `aftershock verdict --trust`, which marks the verdict"
    )


def refuse_links(home: Path) -> None:
    """Raise EvidenceError for a symlink in the run directory that leads out of it.

    Judging reads and writes files in the run directory; the link of a foreign run could name any file of this host.
    """
    root = home.resolve()
    for folder, folders, files in os.walk(home):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise EvidenceError(
                    f"{path}: a symlink to {str(path.readlink())!r} leads out of the run directory; remove the link"
                )

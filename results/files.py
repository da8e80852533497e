"""Reads and writes the files of a run directory, and refuses the broken ones with a sentence.

Rules: a JSON file is whole or an EvidenceError; a JSONL file may lack its last line's end (its writer was killed), no
other line, unless its reader can spare none; a Parquet file is looked at by its footer, before Spark sees it; what is
written is there whole or not at all.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.errors import EvidenceError

# What may stand in the file for each declared type; the narrower integer is widened by Spark.
_ARROW = {
    "string": (pa.string(), pa.large_string()),
    "int": (pa.int32(),),
    "bigint": (pa.int64(), pa.int32()),
    "double": (pa.float64(),),
}


def read_json(path: Path) -> Any:
    """The document in ``path``. Raises EvidenceError where it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EvidenceError(
            f"{path}: missing; this is not a finished run directory, or not one of Aftershock's"
        ) from None
    except (ValueError, OSError) as broken:
        raise EvidenceError(
            f"{path}: not readable as JSON ({broken}); restore the file or run the plan again"
        ) from broken


def read_object(path: Path) -> dict[str, Any]:
    """As ``read_json``, of a document that must be an object."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise EvidenceError(f"{path}: not a JSON object; restore the file or run the plan again")
    return document


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The documents of a JSONL file, in order; none where there is no file. A torn last line is left out."""
    if not path.exists():
        return []
    *whole, last = path.read_bytes().split(b"\n")
    lines = [line for _, line in _numbered(path, whole)]
    return lines if not last.strip() else lines + _torn(last)


def read_whole_lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """As ``read_lines``, each with its number, for a file of which no line may be lost: a torn one is an error too."""
    return _numbered(path, path.read_bytes().split(b"\n")) if path.exists() else []


def _numbered(path: Path, lines: Sequence[bytes]) -> list[tuple[int, dict[str, Any]]]:
    return [(number, _line(path, number, text)) for number, text in enumerate(lines, 1) if text.strip()]


def _line(path: Path, number: int, text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as broken:
        raise EvidenceError(f"{path}:{number}: not JSON ({broken}); restore the file or run the plan again") from broken
    if not isinstance(document, dict):
        raise EvidenceError(f"{path}:{number}: not a JSON object; restore the file or run the plan again")
    return document


def _torn(text: bytes) -> list[dict[str, Any]]:
    try:
        document = json.loads(text)
    except ValueError:
        return []
    return [document] if isinstance(document, dict) else []


def check_parquet(path: Path, columns: Mapping[str, str]) -> None:
    """Raises EvidenceError where ``path`` is truncated, or lacks or mistypes one of ``columns`` (name → Spark type)."""
    try:
        schema = pq.read_schema(path)
    except FileNotFoundError:
        raise EvidenceError(f"{path}: named in the manifest, but missing; restore it or run the plan again") from None
    except (pa.ArrowInvalid, OSError) as broken:
        raise EvidenceError(
            f"{path}: truncated or not Parquet ({broken}); restore it or run the plan again"
        ) from broken
    for name, declared in columns.items():
        _check_column(path, schema, name, declared)


def _check_column(path: Path, schema: pa.Schema, name: str, declared: str) -> None:
    found = schema.get_all_field_indices(name)
    if len(found) != 1:
        what = "is missing" if not found else "is there more than once"
        raise EvidenceError(f"{path}: column {name!r} {what}; the file was written by something else, or damaged")
    kind = schema.field(found[0]).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if kind not in _ARROW[declared]:
        raise EvidenceError(f"{path}: column {name!r} is {kind}, not {declared}; rewrite it or run the plan again")


def write_whole(path: Path, content: str | bytes) -> Path:
    """Writes ``path``, in UTF-8, whole or not at all, and returns it."""
    draft = path.with_name(f".{path.name}.inprogress")
    try:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        return draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)

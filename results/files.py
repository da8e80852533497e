"""Reads the files of a run directory, and refuses the broken ones with a sentence.

Rules: a JSON file is whole or an EvidenceError; a JSONL file may lack its last line's end (its writer was killed), no
other line; a Parquet file is looked at by its footer, before Spark sees it.
"""

import json
from collections.abc import Mapping
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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The documents of a JSONL file, in order; none where there is no file. A torn last line is left out."""
    if not path.exists():
        return []
    *whole, last = path.read_bytes().split(b"\n")
    lines = [_line(path, number, text) for number, text in enumerate(whole, 1) if text.strip()]
    return lines if not last.strip() else lines + _torn(last)


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

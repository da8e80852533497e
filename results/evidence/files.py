"""Reads and writes the files of a run directory, and refuses the broken ones with a sentence.

Rules: a JSON file is whole or an EvidenceError; a JSONL file may lack its last line's end (its writer was killed), no
other line, unless its reader can spare none; a Parquet file is looked at by its footer, before Spark sees it; what is
written is there whole or not at all. The same words for the same fault, wherever the bytes came from.

Files of JSON lines that only grow: a ledger in git, say, where merges join lines.

Rules: what is added is added in one write, after a torn last line on a line of its own. A line that can't be read is
named and left out; the others count.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.errors import EvidenceError

# Spark's name of a Parquet column's type, as pyarrow has it
_SPARK = {
    pa.string(): "string",
    pa.large_string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
}
_WIDENED = {"bigint": ("int",)}  # Spark reads the narrower integer as the wider one


def read_json(path: Path) -> Any:
    """The document in ``path``. Raises EvidenceError where it is missing or not JSON."""
    try:
        return document(str(path), path.read_bytes())
    except FileNotFoundError:
        raise missing(str(path)) from None
    except OSError as broken:
        raise EvidenceError(f"{path}: not readable ({broken}); restore the file or run the plan again") from broken


def read_object(path: Path) -> dict[str, Any]:
    """As ``read_json``, of a document that must be an object."""
    return as_object(str(path), read_json(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The documents of a JSONL file, in order; none where there is no file. A torn last line is left out."""
    return lines(str(path), path.read_bytes()) if path.exists() else []


def missing(where: str) -> EvidenceError:
    """The error of a document that every run has."""
    return EvidenceError(f"{where}: missing; this is not a finished run directory, or not one of Aftershock's")


def document(where: str, content: bytes) -> Any:
    """The JSON document ``content``; ``where`` is what errors call it."""
    try:
        return json.loads(content)
    except ValueError as broken:
        raise EvidenceError(
            f"{where}: not readable as JSON ({broken}); restore the file or run the plan again"
        ) from broken


def as_object(where: str, told: Any) -> dict[str, Any]:
    """``told``, which must be an object."""
    if not isinstance(told, dict):
        raise EvidenceError(f"{where}: not a JSON object; restore the file or run the plan again")
    return told


def lines(where: str, content: bytes) -> list[dict[str, Any]]:
    """The documents of a JSONL file; a torn last line is left out."""
    *whole, last = content.split(b"\n")
    told = [line for _, line in _numbered(where, whole)]
    return told if not last.strip() else told + _torn(last)


def whole_lines(where: str, content: bytes) -> list[tuple[int, dict[str, Any]]]:
    """The documents of a JSONL file with their numbers; a torn line is an error."""
    return _numbered(where, content.split(b"\n"))


def _numbered(where: str, texts: Sequence[bytes]) -> list[tuple[int, dict[str, Any]]]:
    return [(number, _line(f"{where}:{number}", text)) for number, text in enumerate(texts, 1) if text.strip()]


def _line(where: str, text: bytes) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError as broken:
        raise EvidenceError(f"{where}: not JSON ({broken}); restore the file or run the plan again") from broken
    return as_object(where, told)


def _torn(text: bytes) -> list[dict[str, Any]]:
    try:
        told = json.loads(text)
    except ValueError:
        return []
    return [told] if isinstance(told, dict) else []


def check_parquet(path: Path, columns: Mapping[str, str], required: Collection[str]) -> None:
    """Raises EvidenceError where ``path`` is missing, truncated, or of another shape (``check_columns``)."""
    try:
        schema = pq.read_schema(path)
    except FileNotFoundError:
        raise gone(str(path)) from None
    except (pa.ArrowInvalid, OSError) as broken:
        raise truncated(str(path), str(broken)) from broken
    check_columns(str(path), [(field.name, _kind(field.type)) for field in schema], columns, required)


def gone(where: str) -> EvidenceError:
    """The error of a file that the manifest names and nobody finds."""
    return EvidenceError(f"{where}: named in the manifest, but missing; restore it or run the plan again")


def truncated(where: str, why: str) -> EvidenceError:
    """The error of a file whose footer can't be read."""
    return EvidenceError(f"{where}: truncated or not Parquet ({why}); restore it or run the plan again")


def check_columns(
    where: str, found: Sequence[tuple[str, str]], columns: Mapping[str, str], required: Collection[str]
) -> None:
    """Raises EvidenceError where a Parquet file's columns are not as declared; types are named as Spark's.

    Of ``columns`` (name → type) those ``required`` must be there, each once; one that came later may be missing, and is
    then null. What else is in the file is nobody's business.
    """
    for name, declared in columns.items():
        kinds = [kind for column, kind in found if column == name]
        if len(kinds) > 1 or (not kinds and name in required):
            what = "is there more than once" if kinds else "is missing"
            raise EvidenceError(f"{where}: column {name!r} {what}; the file was written by something else, or damaged")
        if kinds and kinds[0] not in (declared, *_WIDENED.get(declared, ())):
            why = f"column {name!r} is {kinds[0]}, not {declared}; rewrite it or run the plan again"
            raise EvidenceError(f"{where}: {why}")


def _kind(kind: pa.DataType) -> str:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return _SPARK.get(kind, str(kind))


def write_whole(path: Path, content: str | bytes) -> Path:
    """Writes ``path``, in UTF-8, whole or not at all, and returns it."""
    draft = path.with_name(f".{path.name}.inprogress")
    try:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        return draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


T = TypeVar("T")


def read(
    path: Path, parsed: Callable[[dict[str, Any]], T], version: int, what: str, option: str
) -> tuple[list[T], list[str]]:
    """What could be read, and a sentence for each line that could not; nothing where there is no file yet.

    ``parsed`` raises ValueError, KeyError or TypeError for a line that is none of ``what``, ``version`` is the schema's
    that it knows; ``option`` names the file on the command line. Raises EvidenceError where the file can't be read.
    """
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as refused:
        raise EvidenceError(f"{path}: can't be read ({refused.strerror}); name another {option}") from refused
    lines, broken = [], []
    for number, text in enumerate(content.split(b"\n"), 1):
        try:
            lines += [parsed(_object(text, version))] if text.strip() else []
        except (ValueError, KeyError, TypeError) as wrong:
            why = f"{wrong} is missing" if isinstance(wrong, KeyError) else str(wrong)
            broken.append(f"{path}:{number}: not a line of {what} ({why}); mend it or take it out")
    return lines, broken


def append(path: Path, lines: Iterable[str], option: str) -> None:
    """Add lines, made of JSON without newlines. Raises EvidenceError where that can't be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write("\n" * torn + "".join(f"{line}\n" for line in lines))
    except OSError as refused:
        raise EvidenceError(f"{path}: can't be written ({refused.strerror}); name another {option}") from refused


def _object(text: bytes, version: int) -> dict[str, Any]:
    said = json.loads(text)
    if not isinstance(said, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 -- a line that can't be read, like any other
    if said["schema_version"] != version:
        raise ValueError(f"schema version {said['schema_version']} is unknown here; upgrade Aftershock")
    return said

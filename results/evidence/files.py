"""Reading and writing of files (JSON documents, JSONL, Parquet footers, and ledgers of JSON lines).

An incomplete JSON file raises EvidenceError when it is read. A JSONL file may lack the end of its last line, because
its writer was killed; any other damaged line is an error, and so is an incomplete last line if the reader needs every
line (``whole_lines``). Local and remote files have the same error messages, in which ``where`` is the name of the file.

A ledger (``read_ledger_lines``, ``append_ledger_lines``) is a JSONL file that only grows, for example in git, where
merges join lines. If a line of a ledger can't be read, a warning names the line, and the other lines are used.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from aftershock.errors import EvidenceError
from aftershock.redaction import redact_known
from aftershock.results.evidence.checksums import body_of, framed
from aftershock.results.model.check import SCHEMA_VERSION as VERDICT_VERSION

T = TypeVar("T")

DOCUMENT_BYTES_MAX, LINE_BYTES_MAX = 256 << 20, 4 << 20
"""Limits of JSON documents and JSON lines: an assignment of ten thousand partitions has less than 3 MB."""

NEWEST_VERSIONS = {
    "run.json": 1,
    "timeline.json": 1,
    "verdict.json": VERDICT_VERSION,
    "analysis.json": 2,
    "campaign.json": 4,
}
"""Newest schema version of a document that can be read."""

_RESTORE = "restore the file or run the plan again"
_SPARK_TYPES = {
    "string": "string",
    "large_string": "string",
    "int32": "int",
    "int64": "bigint",
    "double": "double",
    "bool": "boolean",
}
_WIDENED = {"bigint": ("int",)}  # Spark reads the narrower integer as the wider one


def read_json(path: Path) -> Any:
    """Parse the JSON document in ``path``. Raises EvidenceError if the document is missing or not JSON."""
    try:
        return document(str(path), path.read_bytes())
    except FileNotFoundError:
        raise missing(str(path)) from None
    except OSError as error:
        raise EvidenceError(f"{path}: not readable ({error}); {_RESTORE}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Parse the JSON object in ``path``. Raises EvidenceError if the document is missing or not a JSON object."""
    return as_object(str(path), read_json(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Parse a JSONL file, empty if the file does not exist. An incomplete last line of the file is left out."""
    return lines(str(path), path.read_bytes()) if path.exists() else []


def missing(where: str) -> EvidenceError:
    """Return the error for a run directory without a document that every run has."""
    why = "missing; the folder is not a finished run directory of Aftershock"
    return EvidenceError(f"{where}: {why}; name another folder or run the plan again")


def document(where: str, content: bytes) -> Any:
    if len(content) > DOCUMENT_BYTES_MAX:
        raise EvidenceError(
            f"{where}: {len(content)} bytes are more than the {DOCUMENT_BYTES_MAX} that a document may have; {_RESTORE}"
        )
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{where}: not readable as JSON ({error}); {_RESTORE}") from error
    if isinstance(value, dict) and (newest := NEWEST_VERSIONS.get(where.rpartition("/")[2])):
        require_schema_version(where, value, newest)
    if why := _misfit(where, value):
        home, _, name = where.rpartition("/")
        judged = name in ("verdict.json", "analysis.json")
        raise EvidenceError(
            f"{where}: {why}; {f'judge the run again: aftershock verdict {home}' if judged else _RESTORE}"
        )
    return value


def _misfit(where: str, value: Any) -> str | None:
    from aftershock.results.evidence.shapes import misfit  # noqa: PLC0415 - most commands read no document

    return misfit(where, value)


def require_fields(where: str, document: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise EvidenceError if a document lacks a field that some commands can do without."""
    if absent := sorted({*names} - document.keys()):
        raise EvidenceError(f"{where}: field {absent[0]!r} is missing; {_RESTORE}")


def as_object(where: str, value: Any) -> dict[str, Any]:
    """Return ``value`` if it is a JSON object, else raise EvidenceError."""
    if not isinstance(value, dict):
        raise EvidenceError(f"{where}: not a JSON object; {_RESTORE}")
    return value


def require_schema_version(where: str, document: Mapping[str, Any], newest: int) -> None:
    """Raise EvidenceError for a newer schema version; a document without ``schema_version`` is accepted."""
    version = document.get("schema_version", newest)
    if type(version) is not int or not 0 < version <= newest:
        raise EvidenceError(
            f"{where}: schema version {version!r} is unknown, this Aftershock reads up to {newest}; upgrade Aftershock"
        )


def lines(where: str, content: bytes) -> list[dict[str, Any]]:
    """Parse the content of a JSONL file, without a last line that is incomplete."""
    *whole, last = content.split(b"\n")
    rows = [row for _, row in _numbered(where, whole)]
    try:
        value = json.loads(last) if last.strip() and len(last) <= LINE_BYTES_MAX else None
    except (ValueError, RecursionError):
        value = None
    return [*rows, _fitting(where, len(whole) + 1, value)] if isinstance(value, dict) else rows


def whole_lines(where: str, content: bytes) -> list[tuple[int, dict[str, Any]]]:
    """Parse the content of a JSONL file into line numbers and objects; an incomplete line is an error."""
    return _numbered(where, content.split(b"\n"))


def _numbered(where: str, texts: Sequence[bytes]) -> list[tuple[int, dict[str, Any]]]:
    rows = []
    for number, text in enumerate(texts, 1):
        if text.strip():
            if len(text) > LINE_BYTES_MAX:
                why = f"the line has {len(text)} bytes, more than the {LINE_BYTES_MAX} that a line may have"
                raise EvidenceError(f"{where}:{number}: {why}; {_RESTORE}")
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise EvidenceError(f"{where}:{number}: not JSON ({error}); {_RESTORE}") from error
            rows.append((number, _fitting(where, number, value)))
    return rows


def _fitting(where: str, number: int, value: Any) -> dict[str, Any]:
    """Return a line of JSON; raise EvidenceError if it is no object, or a field of it has a wrong type."""
    line = as_object(f"{where}:{number}", value)
    if why := _misfit(where, line):
        raise EvidenceError(f"{where}:{number}: {why}; {_RESTORE}")
    return line


def verify_checksums(where: str, content: bytes) -> None:
    """Raise EvidenceError for the first line of a journal that differs from its checksum."""
    for number, text in enumerate(content.split(b"\n"), 1):
        body = body_of(text)
        if body is not None and text != framed(body):
            raise EvidenceError(f"{where}:{number}: the line differs from its checksum; {_RESTORE}")


def with_checksums(content: bytes) -> bytes:
    """Return a journal whose lines with a checksum have the checksum of their present content."""
    bodies = ((text, body_of(text)) for text in content.split(b"\n"))
    return b"\n".join(text if body is None else framed(body) for text, body in bodies)


_PART = re.compile(r"outcomes/part-([^~/]+)(?:~(\d+)(?:-(\d+))?)?\.parquet")


def current_parts(names: Iterable[str]) -> list[str]:
    """Return the names of the Parquet files that count in a run that was killed while its clients' rows were moved.

    ``workloads.load.outcomes`` has the rules: a closed file (``part-W~00008-00011.parquet``) counts unless a longer one
    begins with the same segment, and an open file (``part-W~00012.parquet``) if it follows the last closed file.
    """
    parts = {name: match.groups() for name in names if (match := _PART.fullmatch(name))}
    longest: dict[tuple[str, int], int] = {}  # last segment of the longest closed file, by worker and first segment
    ends: dict[str, int] = {}  # first segment after the closed files, by worker
    for worker, first, last in parts.values():
        if last:
            longest[worker, int(first)] = max(int(last), longest.get((worker, int(first)), 0))
            ends[worker] = max(int(last) + 1, ends.get(worker, 0))

    def counts(name: str) -> bool:
        worker, first, last = parts[name]
        return int(last) == longest[worker, int(first)] if last else int(first or 0) == ends.get(worker, 0)

    return [name for name in names if name not in parts or counts(name)]


def check_parquet(path: Path, columns: Mapping[str, str], required: Collection[str]) -> None:
    """Raise EvidenceError if a Parquet file is missing, truncated or has other columns (``check_columns``)."""
    import pyarrow as pa  # noqa: PLC0415 -- also loaded by `plan check`, which reads no Parquet
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        footer = pq.read_metadata(path)
        schema = footer.schema.to_arrow_schema()
    except FileNotFoundError:
        raise missing_from_manifest(str(path)) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise truncated(str(path), str(error)) from error
    present = []
    for field in schema:
        kind = str(field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
        present.append((field.name, _SPARK_TYPES.get(kind, kind)))
    check_columns(str(path), present, columns, required)
    times = {name for name, kind in columns.items() if kind == "bigint" and name.endswith("_us")}
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            known = column.statistics if column.path_in_schema in times else None
            if known is not None and known.has_min_max and max(-known.min, known.max) > TIME_US_MAX:
                why = f"column {column.path_in_schema!r} has a time beyond 2^51 us"
                raise EvidenceError(f"{path}: {why}; another program wrote the file, or it is damaged")


TIME_US_MAX = 1 << 51
"""No run is that long (71 years). Sail ignores overflows; sums of times of a block of records stay below."""
MISSING = "named in the manifest, but missing"


def missing_from_manifest(where: str) -> EvidenceError:
    return EvidenceError(f"{where}: {MISSING}; restore the file or run the plan again")


def truncated(where: str, why: str) -> EvidenceError:
    return EvidenceError(f"{where}: truncated or not Parquet ({why}); restore the file or run the plan again")


def check_columns(
    where: str, present: Sequence[tuple[str, str]], columns: Mapping[str, str], required: Collection[str]
) -> None:
    """Raise EvidenceError if the columns of a Parquet file differ from the table's declaration.

    ``present`` and ``columns`` map column names to Spark types, in the file and as declared. Each of the ``required``
    columns must occur once in the file. A declared column that is not required was added to the format later; the
    column may be missing, and is then null. Columns of the file that the table does not declare are ignored.
    """
    for name, declared in columns.items():
        types = [kind for column, kind in present if column == name]
        if len(types) > 1 or (not types and name in required):
            what = "occurs more than once" if types else "is missing"
            raise EvidenceError(
                f"{where}: column {name!r} {what}; another program wrote the file, or the file is damaged"
            )
        if types and types[0] not in (declared, *_WIDENED.get(declared, ())):
            why = f"column {name!r} is {types[0]}, not {declared}; rewrite the column or run the plan again"
            raise EvidenceError(f"{where}: {why}")


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file (text in UTF-8, without known secrets) completely or not at all, and return its path."""
    draft = path.with_name(f".{path.name}.inprogress")
    try:
        draft.write_bytes(redact_known(content).encode() if isinstance(content, str) else content)
        return draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read_ledger_lines(
    path: Path, parse: Callable[[dict[str, Any]], T], version: int, what: str, option: str
) -> tuple[list[T], list[str]]:
    """Return the parsed lines of a JSONL file, and a sentence per unreadable line; both empty if there is no file.

    ``parse`` raises ValueError, KeyError or TypeError for an invalid line. ``version`` is the supported schema version,
    ``what`` the name of the file in messages, ``option`` the command-line option that sets the file. Raises
    EvidenceError if the file can't be read.
    """
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise EvidenceError(f"{path}: can't be read ({error.strerror}); name another {option}") from error
    parsed, broken = [], []
    for number, text in enumerate(content.split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
            if not isinstance(row, dict):
                raise ValueError("not a JSON object")  # noqa: TRY004, TRY301 - reported like any other invalid line
            if row["schema_version"] != version:
                raise ValueError(  # noqa: TRY301
                    f"this Aftershock doesn't know schema version {row['schema_version']}; upgrade Aftershock"
                )
            parsed.append(parse(row))
        except (ValueError, KeyError, TypeError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            broken.append(f"{path}:{number}: not a line of {what} ({why}); correct the line or remove it")
    return parsed, broken


def append_ledger_lines(path: Path, texts: Iterable[str], option: str) -> None:
    """Append JSON texts as lines of a JSONL file. Raises EvidenceError if the file can't be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write("\n" * torn + "".join(f"{text}\n" for text in texts))
    except OSError as error:
        raise EvidenceError(f"{path}: can't be written ({error.strerror}); name another {option}") from error

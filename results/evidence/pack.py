"""Packs: a run in one file that can be published, read on any machine, and judged there again.

A pack is a ZIP file with the evidence that the manifest of the run names, the stored verdict and measurements, and
``pack.json``, which maps each file to its size and SHA-256. Logs stay behind. Secrets, host names and paths of the
machine are removed from all documents and from the texts in Parquet files, so the manifest is written again, with the
digests of the run's own files under ``packed_from``. The same run gives the same bytes.

``unpack`` makes a run directory of a pack, which all commands read like any other run. A pack may come from a stranger:
only regular files with the names that evidence has are unpacked, and sizes, number and compression are limited and
examined before anything is read (the directory of the ZIP file by its last 22 bytes, APPNOTE.TXT 4.3.16). The verdict
in a pack is that of its author until the run is judged here.
"""

import io
import json
import re
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aftershock.errors import EvidenceError
from aftershock.redaction import anonymise
from aftershock.results.evidence import manifest
from aftershock.results.evidence.evidence import verify
from aftershock.results.evidence.files import (
    DOCUMENT_BYTES_MAX,
    as_object,
    document,
    read_object,
    require_schema_version,
    with_checksums,
)
from aftershock.results.evidence.stored import AUTHORS_VERDICT, trusted_in

SUFFIX = ".pack.zip"
SCHEMA_VERSION = 1
_INDEX = "pack.json"
_JUDGED = ("verdict.json", "analysis.json")
_OF_THE_MACHINE = ("owner", "command", "plan_file", "toxiproxy")
"""Fields of ``run.json`` that describe the machine only."""
_OF_ANY_HOST = ("cores", "memory_bytes")
_JSON_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_OWNER = re.compile(r', "owner": "[^"]*"')  # of a line of the journal: process, user, machine and boot
_NAMES = {*manifest.DOCUMENTS, *manifest.OPTIONAL_DOCUMENTS, manifest.NAME, *_JUDGED}
_TABLE_PART = re.compile(rf"(?:{'|'.join(manifest.TABLES)})/[A-Za-z0-9-][\w.~-]{{0,199}}\.parquet")
_FILES_MAX, _TABLE_BYTES_MAX, _BYTES_MAX = 20_000, 1 << 30, 8 << 30
_RATIO_MAX, _SMALL_BYTES = 200, 1 << 20
"""A file over ``_SMALL_BYTES`` that is larger than so many times its compressed size is a bomb: JSON lines of equal
events shrink 50 times, and Deflate can't shrink anything 1,100 times.
"""
_END, _ZIP64 = struct.Struct("<4s6xHL6x"), b"PK\6\7"
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # of a ZIP file; a real time would change the bytes
_ANONYMOUS = re.compile(r"127\.0\.0\.1|localhost|::1|host-\d+")
_RUN_ID = re.compile(r"[\w-][\w.-]{0,199}")


def pack(home: Path, target: Path) -> int:
    """Write the pack of the run in ``home`` to ``target``; return its size in bytes.

    Raises EvidenceError if the run did not finish, if its evidence was changed, or if ``target`` can't be written.
    """
    if not (home / manifest.NAME).exists():
        raise EvidenceError(f"{home}: the run has no {manifest.NAME}, because it did not finish; pack a finished run")
    verify(home, trusted_in(home))
    run = read_object(home / "run.json")
    hosts = _hosts(run)
    own = read_object(home / manifest.NAME)
    names = [name for name in manifest.names_in(str(home / manifest.NAME), own) if (home / name).exists()]
    files = {name: _anonymous_file(home / name, hosts) for name in names}
    digests = _digests(files)
    again: dict[str, Any] = {"schema_version": manifest.SCHEMA_VERSION, "files": names}
    if "digests" in own:
        again |= {"digests": digests, "packed_from": own["digests"]}
    added = {manifest.NAME: _json(again)}
    added |= {name: _anonymous_file(home / name, hosts) for name in _JUDGED if (home / name).exists()}
    index = {"schema_version": SCHEMA_VERSION, "run_id": run["run_id"], "files": digests | _digests(added)}
    files = {_INDEX: _json(index), **files, **added}
    draft = target.with_name(f".{target.name}.inprogress")
    try:
        with zipfile.ZipFile(draft, "w") as archive:
            for name, content in files.items():
                archive.writestr(zipfile.ZipInfo(name, _EARLIEST), content, zipfile.ZIP_DEFLATED, 9)
        draft.replace(target)
    except OSError as error:
        raise EvidenceError(f"can't write {target}: {error.strerror}; name another file") from error
    finally:
        draft.unlink(missing_ok=True)
    return target.stat().st_size


def unpack(path: Path, out: Path) -> Path:
    """Unpack the pack at ``path`` into a folder below ``out``, unless it was unpacked there before; return the folder.

    Raises EvidenceError if the file is not a pack, was changed after packing, or exceeds a limit; nothing is left then.
    """
    try:
        _refuse_large_directory(path)
        with zipfile.ZipFile(path) as archive:
            members = _members(path, archive)
            index = as_object(f"{path}: {_INDEX}", document(f"{path}: {_INDEX}", archive.read(members.pop(_INDEX))))
            require_schema_version(f"{path}: {_INDEX}", index, SCHEMA_VERSION)
            run_id, expected = index.get("run_id"), as_object(f"{path}: {_INDEX}", index.get("files"))
            if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
                raise EvidenceError(f"{path}: the run id {run_id!r} can't name a run; get the pack again")
            manifest.names_in(f"{path}: {_INDEX}", {"digests": expected})
            _refuse_changes(path, expected, members)
            home = out / f"{run_id}.pack"
            if home.exists():
                if (home / _INDEX).is_file() and read_object(home / _INDEX) == index:
                    return home
                raise EvidenceError(f"{home}: holds another run than {path}; remove the folder, or give another --out")
            out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=out) as folder:
                draft = Path(folder) / "run"
                for name, member in members.items():
                    (draft / name).parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(member) as source, (draft / name).open("wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)
                    digest = manifest.digest_of(draft / name)
                    if digest is None or digest.sha256 != expected[name]["sha256"]:
                        raise _changed(path, name)
                (draft / _INDEX).write_bytes(_json(index))
                if "verdict.json" in members:
                    (draft / AUTHORS_VERDICT).touch()
                draft.rename(home)
            return home
    except OSError as error:
        raise EvidenceError(f"{path}: can't be unpacked into {out}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError, EOFError, ValueError) as error:
        raise EvidenceError(f"{path}: not a pack of Aftershock, or damaged ({error}); get the pack again") from error


def _refuse_large_directory(path: Path) -> None:
    """Raise EvidenceError unless the ZIP file's directory is small enough to be read into memory."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise EvidenceError(f"{path}: not a regular file; name a pack")
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _END.size - 20, 0))
        end = file.read()
    if len(end) < _END.size or not end[-_END.size :].startswith(b"PK\5\6") or not end.endswith(b"\0\0"):
        raise EvidenceError(f"{path}: not a pack of Aftershock, or damaged (no end of a ZIP file); get the pack again")
    _, files, directory_bytes = _END.unpack(end[-_END.size :])
    if end.startswith(_ZIP64) or files > _FILES_MAX or directory_bytes > DOCUMENT_BYTES_MAX:
        raise EvidenceError(f"{path}: it has more files than the {_FILES_MAX} of a pack; get the pack again")


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the files of a ZIP file by name. Raises EvidenceError for a file that no pack has."""
    members: dict[str, zipfile.ZipInfo] = {}
    whole_bytes = path.stat().st_size
    for member in archive.infolist():
        name, size = member.filename, member.file_size
        is_table = _TABLE_PART.fullmatch(name) is not None
        size_max = _TABLE_BYTES_MAX if is_table else DOCUMENT_BYTES_MAX
        if not (is_table or name in _NAMES or name == _INDEX) or stat.S_ISLNK(member.external_attr >> 16):
            why = "is no file of a pack"
        elif name in members:
            why = "is there twice"
        elif member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            why = "is encrypted, or compressed by another method than Deflate"
        elif member.compress_size > whole_bytes:
            why = "has more compressed bytes than the whole file"
        elif size > size_max:
            why = f"has {size:,} bytes, more than the {size_max:,} that it may have"
        elif size > max(_SMALL_BYTES, _RATIO_MAX * member.compress_size):
            why = f"is {size / max(member.compress_size, 1):,.0f} times as large as its compressed content"
        else:
            members[name] = member
            continue
        raise EvidenceError(f"{path}: {name!r} {why}; get the pack again")
    if sum(member.file_size for member in members.values()) > _BYTES_MAX:
        raise EvidenceError(f"{path}: its files have more than the {_BYTES_MAX:,} bytes that a pack may have")
    return members


def _refuse_changes(path: Path, expected: Mapping[str, Any], members: Mapping[str, zipfile.ZipInfo]) -> None:
    for name in sorted({*expected, *members}):
        row = expected.get(name)
        size = row.get("bytes") if isinstance(row, dict) and isinstance(row.get("sha256"), str) else None
        if name not in members or members[name].file_size != size:
            raise _changed(path, name)


def _changed(path: Path, name: str) -> EvidenceError:
    return EvidenceError(f"{path}: {name} was changed after packing (its digest differs); get the pack again")


def _digests(files: Mapping[str, bytes]) -> dict[str, Any]:
    return {name: {"bytes": len(content), "sha256": sha256(content).hexdigest()} for name, content in files.items()}


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _hosts(run: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the host names and addresses in ``run.json`` except loopback addresses and those of an unpacked run."""
    host = (run.get("host") or {}).get("hostname")
    addresses = ",".join(str(value) for value in (run.get("bootstrap") or {}).values()).split(",")
    found = [host, *(address.rpartition(":")[0].strip("[]") for address in addresses)]
    return tuple(sorted({name for name in found if name and not _ANONYMOUS.fullmatch(name)}))


def _anonymous_file(path: Path, hosts: Sequence[str]) -> bytes:
    """Return the content of an evidence file without secrets, host names and paths of the machine."""
    content = path.read_bytes()
    if path.suffix == ".parquet":
        return _anonymous_table(content, hosts)
    if path.name == "run.json":
        run = json.loads(content)
        run = {key: value for key, value in run.items() if key not in _OF_THE_MACHINE}
        run["host"] = {key: value for key, value in (run.get("host") or {}).items() if key in _OF_ANY_HOST}
        content = (json.dumps(run, indent=1) + "\n").encode()
    text = content.decode()
    if path.suffix not in (".json", ".jsonl"):
        return anonymise(text, hosts).encode()
    anonymous = _JSON_TEXT.sub(lambda match: _anonymous_text(match[0], hosts), text)
    if path.name == "journal.jsonl":
        return with_checksums(_OWNER.sub("", anonymous).encode())
    return anonymous.encode()


@lru_cache(10_000)
def _anonymous_text(quoted: str, hosts: Sequence[str]) -> str:
    text = json.loads(quoted)
    anonymous = anonymise(text, hosts)
    return quoted if anonymous == text else json.dumps(anonymous)


def _anonymous_table(content: bytes, hosts: Sequence[str]) -> bytes:
    """Return a Parquet file with anonymous texts; the same bytes if no text changes."""
    table = pq.read_table(io.BytesIO(content))
    changed = False
    for number, field in enumerate(table.schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if not pa.types.is_string(kind):
            continue
        column = table.column(number).cast(kind)
        texts = [text for text in pc.unique(column).to_pylist() if text is not None]
        new = {text: anonymous for text in texts if (anonymous := anonymise(text, hosts)) != text}
        if new:
            changed = True
            values = pa.chunked_array([[new.get(text, text) for text in column.to_pylist()]], kind)
            table = table.set_column(number, field, values.cast(field.type))
    if not changed:
        return content
    output = io.BytesIO()
    pq.write_table(table, output, compression="zstd")
    return output.getvalue()

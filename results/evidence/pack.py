"""Packs: a run in one file that can be published, read on any machine, and judged there again.

A pack is a ZIP file with the evidence that the manifest of the run names, the stored verdict and measurements, and
``pack.json``, which maps each file to its size and SHA-256. Logs stay behind. Secrets, host names and paths of the
machine are removed from all documents and from the texts in Parquet files, so the manifest is written again, with the
digests of the run's own files under ``packed_from``. The same run gives the same bytes.

``unpack`` makes a run directory of a pack, which all commands read like any other run.
"""

import io
import json
import re
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
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
    as_object,
    document,
    read_object,
    require_schema_version,
    with_checksums,
)
from aftershock.results.evidence.stored import trusted_in

SUFFIX = ".pack.zip"
SCHEMA_VERSION = 1
_INDEX = "pack.json"
_JUDGED = ("verdict.json", "analysis.json")
_OF_THE_MACHINE = ("owner", "command", "plan_file", "toxiproxy")
"""Fields of ``run.json`` that describe the machine only."""
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

    Raises EvidenceError if the file is not a pack, or was changed after packing.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            index = as_object(f"{path}: {_INDEX}", document(f"{path}: {_INDEX}", archive.read(_INDEX)))
            require_schema_version(f"{path}: {_INDEX}", index, SCHEMA_VERSION)
            run_id, expected = index.get("run_id"), as_object(f"{path}: {_INDEX}", index.get("files"))
            if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
                raise EvidenceError(f"{path}: the run id {run_id!r} can't name a run; get the pack again")
            manifest.names_in(f"{path}: {_INDEX}", {"digests": expected})
            members = {member.filename: member for member in archive.infolist() if member.filename != _INDEX}
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
                    content = archive.read(member)
                    if sha256(content).hexdigest() != expected[name]["sha256"]:
                        raise _changed(path, name)
                    (draft / name).parent.mkdir(parents=True, exist_ok=True)
                    (draft / name).write_bytes(content)
                (draft / _INDEX).write_bytes(_json(index))
                draft.rename(home)
            return home
    except (zipfile.BadZipFile, KeyError, NotImplementedError, EOFError) as error:
        raise EvidenceError(f"{path}: not a pack of Aftershock, or damaged ({error}); get the pack again") from error
    except OSError as error:
        raise EvidenceError(f"{path}: can't be unpacked into {out}: {error.strerror or error}") from error


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


def _hosts(run: Mapping[str, Any]) -> list[str]:
    """Return the host names and addresses in ``run.json`` except loopback addresses and those of an unpacked run."""
    host = (run.get("host") or {}).get("hostname")
    addresses = ",".join(str(value) for value in (run.get("bootstrap") or {}).values()).split(",")
    found = [host, *(address.rpartition(":")[0].strip("[]") for address in addresses)]
    return sorted({name for name in found if name and not _ANONYMOUS.fullmatch(name)})


def _anonymous_file(path: Path, hosts: Sequence[str]) -> bytes:
    """Return the content of an evidence file without secrets, host names and paths of the machine."""
    content = path.read_bytes()
    if path.suffix == ".parquet":
        return _anonymous_table(content, hosts)
    if path.name == "run.json":
        run = json.loads(content)
        run = {key: value for key, value in run.items() if key not in _OF_THE_MACHINE}
        run["host"] = {key: value for key, value in (run.get("host") or {}).items() if key != "hostname"}
        content = (json.dumps(run, indent=1) + "\n").encode()
    anonymous = anonymise(content.decode(), hosts).encode()
    return with_checksums(anonymous) if path.name == "journal.jsonl" else anonymous


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

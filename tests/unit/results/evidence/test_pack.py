"""Packs of runs: complete, anonymous, reproducible, and refused once they were changed."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from aftershock.errors import EvidenceError
from aftershock.harness.run.runs import find_run
from aftershock.results.evidence.evidence import read, verify
from aftershock.results.evidence.manifest import manifest_of
from aftershock.results.evidence.pack import pack, unpack
from aftershock.results.evidence.stored import verdict_of
from aftershock.results.model.text import sentence
from aftershock.results.report.several import markdown
from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.evidence_factory import Made

EVIDENCE = Path(__file__).parents[3] / "data" / "evidence"
RUN_ID = "20261121-101500-demo-7"
SECRETS = ("build-7.corp", "6.1-corp", "b1.corp.internal", "/home/alice", "hunter2", "10.20.30.40", "kafka1:9092")


@pytest.fixture
def home(made: Made, tmp_path: Path) -> Path:
    """A run with secrets, host names and paths in its documents and in the errors of its records."""
    spoiled = made.copy()
    spoiled.run |= {
        "host": {"cores": 2, "hostname": "build-7.corp", "kernel": "Linux 6.1-corp"},
        "owner": "123:456",
        "command": "aftershock run /home/alice/secret-project/plan.yaml",
        "plan_file": "/home/alice/secret-project/plan.yaml",
        "bootstrap": {"admin": "b1.corp.internal:9092,10.20.30.40:9092", "a": "kafka1:9092"},
    }
    spoiled.produce[7]["error"] = "b1.corp.internal:9092/1: connect to 10.20.30.40 failed"
    spoiled.events.append(
        {"t_us": 1, "event": "note", "text": "password=hunter2 of kafka1:9092, /home/alice/x/run.log"}
    )
    run = spoiled.write(tmp_path / "run")
    (run / "plan.yaml").write_text("name: demo\n")
    (run / "logs").mkdir()
    (run / "logs" / "spark.log").write_text("a log of /home/alice")
    (run / "manifest.json").write_text(json.dumps(manifest_of(run)))
    return run


@pytest.fixture
def packed(home: Path, tmp_path: Path) -> Path:
    pack(home, tmp_path / "a.pack.zip")
    return tmp_path / "a.pack.zip"


def test_a_pack_has_the_evidence_without_the_machine(home: Path, packed: Path, tmp_path: Path) -> None:
    """All rows and figures are the same; secrets, host names and paths are gone, and so are logs."""
    run = unpack(packed, tmp_path / "out")
    verify(run, ())
    before, after = read(home, columns()), read(run, columns())
    assert (before.steps, before.phases, before.clients) == (after.steps, after.phases, after.clients)
    for table, parts in before.parquet.items():
        for mine, theirs in zip(parts, after.parquet[table], strict=True):
            old, new = pq.read_table(mine), pq.read_table(theirs)
            assert old.schema == new.schema
            assert [name for name in old.column_names if old[name] != new[name]] in ([], ["error"])
    errors = pq.read_table(run / "outcomes" / "produce-0.parquet")["error"].to_pylist()
    assert "host-2:9092/1: connect to host-1 failed" in errors
    content = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file()).decode("utf-8", "replace")
    assert [] == [secret for secret in SECRETS if secret in content]
    assert "password=*** of host-4:9092, run.log" in content
    assert not (run / "logs").exists()


def test_an_anonymous_journal_agrees_with_its_checksums(home: Path, tmp_path: Path) -> None:
    """A line in which a host name is replaced gets the checksum of its new content."""
    body = b'{"t_us": 5, "fault": "kill-1", "state": "injected", "targets": {"address": "kafka1:9092"}'
    body += b', "owner": "1:2:0:machine:boot"'
    with (home / "journal.jsonl").open("ab") as journal:
        journal.write(body + b', "crc": "%08x"}\n' % zlib.crc32(body))
    (home / "manifest.json").write_text(json.dumps(manifest_of(home)))
    pack(home, tmp_path / "journal.pack.zip")
    run = unpack(tmp_path / "journal.pack.zip", tmp_path / "out")
    line = read(run, columns()).journal[-1]
    assert line["targets"] == {"address": "host-4:9092"}
    assert "owner" not in line


def test_the_same_run_gives_the_same_bytes(home: Path, packed: Path, tmp_path: Path) -> None:
    """A pack of an unpacked run is the same as well, but for the digests that it was packed from."""
    assert pack(home, tmp_path / "b.pack.zip") == packed.stat().st_size
    assert packed.read_bytes() == (tmp_path / "b.pack.zip").read_bytes()
    pack(unpack(packed, tmp_path / "out"), tmp_path / "c.pack.zip")
    first, again = (zipfile.ZipFile(path) for path in (packed, tmp_path / "c.pack.zip"))
    names = [name for name in first.namelist() if name not in ("pack.json", "manifest.json")]
    assert [first.read(name) for name in names] == [again.read(name) for name in names]


def test_a_pack_is_unpacked_once(packed: Path, tmp_path: Path) -> None:
    """Commands find the run of a pack; what they write beside the evidence stays."""
    run = find_run(str(packed), tmp_path / "out")
    assert run == tmp_path / "out" / f"{RUN_ID}.pack"
    (run / "verdict.json").write_text("{}")
    assert run == find_run(str(packed), tmp_path / "out")
    assert (run / "verdict.json").exists()
    (run / "pack.json").write_text("{}")
    with pytest.raises(EvidenceError, match=r"holds another run than .*a\.pack\.zip; remove the folder"):
        find_run(str(packed), tmp_path / "out")


def change(name: str, edit: Callable[[bytes], bytes]) -> Callable[[dict[str, bytes]], None]:
    def apply(members: dict[str, bytes]) -> None:
        members[name] = edit(members[name])

    return apply


CHANGES: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "edited": (change("phases.json", lambda text: text.replace(b"steady", b"stEady")), "phases.json was changed"),
    "longer": (change("events.jsonl", lambda text: text + b"{}\n"), "events.jsonl was changed"),
    "removed": (lambda members: members.pop("outcomes/produce-0.parquet") and None, "produce-0.parquet was changed"),
    "added": (lambda members: members.update({"expectations.jsonl": b"{}"}), "expectations.jsonl was changed"),
    "no index": (lambda members: members.pop("pack.json") and None, "not a pack of Aftershock"),
    "run id": (change("pack.json", lambda text: text.replace(RUN_ID.encode(), b"../../x")), "can't name a run"),
    "outside": (change("pack.json", lambda text: text.replace(b'"run.json"', b'"../run.json"')), "not a path inside"),
    "newer": (change("pack.json", lambda text: text.replace(b'version": 1', b'version": 9')), "schema version 9"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_pack_is_refused(packed: Path, tmp_path: Path, case: str) -> None:
    """Nothing is left behind."""
    edit, message = CHANGES[case]
    with zipfile.ZipFile(packed) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    edit(members)
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(EvidenceError, match=message):
        unpack(tmp_path / "bad.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


def added(
    name: str, content: bytes, method: int = zipfile.ZIP_DEFLATED, mode: int = 0o100644
) -> Callable[[Path, Path], None]:
    """Return a forger: it copies a pack with one more file, whose digest the index has."""

    def forge(packed: Path, target: Path) -> None:
        with zipfile.ZipFile(packed) as old, zipfile.ZipFile(target, "w") as new:
            index = json.loads(old.read("pack.json"))
            index["files"][name] = {"bytes": len(content), "sha256": sha256(content).hexdigest()}
            for member in old.infolist():
                is_index = member.filename == "pack.json"
                new.writestr(member, json.dumps(index).encode() if is_index else old.read(member))
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            new.writestr(member, content, method)

    return forge


def patched(old: bytes, new: bytes, count: int = -1) -> Callable[[Path, Path], None]:
    """Return a forger that replaces bytes of the file."""
    return lambda packed, target: target.write_bytes(packed.read_bytes().replace(old, new, count)) and None


def end(packed: Path, target: Path, at: int, content: bytes) -> None:
    """Change bytes of the last 22 bytes of the file, which tell number of files, and size of the directory."""
    whole = bytearray(packed.read_bytes())
    whole[len(whole) - 22 + at : len(whole) - 22 + at + len(content)] = content
    target.write_bytes(whole)


def swollen(packed: Path, target: Path) -> None:
    """Say in the directory that the first file has 4 GiB of compressed bytes (APPNOTE.TXT 4.3.12)."""
    whole = bytearray(packed.read_bytes())
    at = whole.index(b"PK\1\2") + 20
    whole[at : at + 4] = b"\xfe\xff\xff\xff"
    target.write_bytes(whole)


def piped(_: Path, target: Path) -> None:
    os.mkfifo(target)


MEBIBYTE = 1 << 20
FORGED: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "code": (added("conftest.py", b"print('hello')"), "'conftest.py' is no file of a pack"),
    "code in a table": (added("log/conftest.py", b""), "'log/conftest.py' is no file of a pack"),
    "a folder": (added("log/", b""), "'log/' is no file of a pack"),
    "hidden": (added("log/.x.parquet", b""), "is no file of a pack"),
    "logs": (added("logs/spark.log", b""), "is no file of a pack"),
    "twice": (patched(b"timeline.json", b"manifest.json"), "'manifest.json' is there twice"),
    "a link": (added("expectations.jsonl", b"", mode=0o120777), "'expectations.jsonl' is no file of a pack"),
    "a bomb": (added("expectations.jsonl", bytes(300 * MEBIBYTE)), "has 314,572,800 bytes, more than"),
    "a small bomb": (added("log/x.parquet", bytes(2 * MEBIBYTE)), "times as large as its compressed content"),
    "lzma": (added("expectations.jsonl", b"x" * 99, zipfile.ZIP_LZMA), "another method than Deflate"),
    "encrypted": (patched(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1"), "is encrypted, or"),
    "a comment": (
        lambda packed, target: target.write_bytes(packed.read_bytes()[:-2] + b"\3\0abc") and None,
        "no end of",
    ),
    "many files": (lambda packed, target: end(packed, target, 10, b"\xff\xff"), "more files than the 20000"),
    "a large directory": (lambda packed, target: end(packed, target, 12, b"\0\0\0\x20"), "more files than"),
    "a swollen file": (swollen, "has more compressed bytes than the whole file"),
    "a pipe": (piped, "not a regular file"),
}


@pytest.mark.parametrize("case", FORGED)
def test_what_no_pack_has_is_refused(packed: Path, tmp_path: Path, case: str) -> None:
    """Digests that agree with the index do not help, and nothing is written."""
    forge, message = FORGED[case]
    forge(packed, tmp_path / "bad.pack.zip")
    with pytest.raises(EvidenceError, match=message):
        unpack(tmp_path / "bad.pack.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


def test_the_verdict_in_a_pack_is_that_of_its_author(home: Path, tmp_path: Path) -> None:
    """Each text says so until the run is judged here."""
    shutil.copy(EVIDENCE / "demo" / "expected" / "verdict.json", home / "verdict.json")
    pack(home, tmp_path / "a.pack.zip")
    run = unpack(tmp_path / "a.pack.zip", tmp_path / "out")
    assert "as stored by the author of the pack" in sentence(verdict_of(run))
    assert "as stored by the author" not in sentence(verdict_of(home))
    assert "as stored by the author" in markdown(run)


def test_a_damaged_file_is_refused(packed: Path, tmp_path: Path) -> None:
    """A file that is cut off, has flipped bits, or is no ZIP file."""
    whole = packed.read_bytes()
    middle = len(whole) // 2
    for content in (whole[:middle], whole[:middle] + b"\0" * 64 + whole[middle + 64 :], b"hello"):
        packed.write_bytes(content)
        with pytest.raises(EvidenceError, match=r"a\.pack\.zip"):
            unpack(packed, tmp_path / "out")


def test_runs_that_cannot_be_packed(home: Path, tmp_path: Path) -> None:
    """A run whose evidence was changed, and a run that did not finish."""
    (home / "phases.json").write_text("[]")
    with pytest.raises(EvidenceError, match=r"phases\.json: changed after the run"):
        pack(home, tmp_path / "a.pack.zip")
    (home / "manifest.json").unlink()
    with pytest.raises(EvidenceError, match="did not finish"):
        pack(home, tmp_path / "a.pack.zip")
    assert not (tmp_path / "a.pack.zip").exists()


@pytest.mark.spark
@pytest.mark.nightly
def test_a_pack_at_a_uri_is_judged_with_the_same_bytes(tmp_path: Path) -> None:
    """The verdict of a pack, read by Spark from a URI, equals that of the run."""
    home = tmp_path / "runs" / "demo"
    shutil.copytree(EVIDENCE / "demo", home, ignore=shutil.ignore_patterns("expected"))
    command = [sys.executable, "-m", "aftershock.harness.cli", "verdict", "--out", str(tmp_path / "out")]
    judged = [subprocess.run([*command, str(home)], capture_output=True, text=True, check=False, timeout=300)]
    pack(home, tmp_path / "demo.pack.zip")
    uri = f"file:{tmp_path}/demo.pack.zip".replace("file:/", "file:///")
    judged.append(subprocess.run([*command, uri], capture_output=True, text=True, check=False, timeout=300))
    assert [run.returncode for run in judged] == [0, 0], judged
    (unpacked,) = (tmp_path / "out").glob("*.pack")
    assert (home / "verdict.json").read_bytes() == (unpacked / "verdict.json").read_bytes()

"""Hypothesis: a stranger's pack is unpacked as it was packed, or refused by name; nothing else is written or executed.

Method: a seed rebuilds a stored pack with one damage: torn and flipped bytes, names that lead out of the folder or that
Python would run, links, members that are there twice, encrypted or compressed by other methods, bombs, thousands of
members, sizes that differ from the headers, and documents with right digests that are nested, long or of another type.
It is unpacked in a process with 1 GiB of address space, and the documents of the run are read. All that is on the disk
afterwards must be regular files with the names of evidence, below the folder of the run.
"""

import json
import random
import shutil
import stat
import struct
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

from aftershock.errors import AftershockError
from aftershock.results.evidence.pack import unpack
from aftershock.results.evidence.stored import read_judged_run
from aftershock.tests.mutated_plans import damage
from aftershock.tests.torture.runner import ROOT, Experiment, Outcome

PACKS = ("leader-lost", "acks-lost", "power-loss")
HOSTILE_NAMES = (
    *("../run.json", "/etc/cron.d/aftershock", "outcomes/../../x.parquet", "..\\run.json", "outcomes/..", "C:\\x"),
    *("conftest.py", "aftershock/__init__.py", "sitecustomize.py", "pytest.ini", "plan.yaml/x", "outcomes/"),
    *("run.json\n", "ru\x00n.json", "outcomes/" + "a" * 4_000 + ".parquet", "outcomes/.hidden.parquet", "logs/x.log"),
    *("RUN.JSON", "run.json ", "outcomes/\u202eteuqrap.parquet", "pack.json/", "metrics/part-0.parquet.py", ""),
)
ALLOWED = ("outcomes", "metrics", "log", "offsets", "replicas", "transactions", "batches")
BOMB_BYTES = 1 << 28
Files = dict[str, bytes]


@cache
def files_of(name: str) -> Mapping[str, bytes]:
    with zipfile.ZipFile(ROOT / "docs" / "evidence" / "packs" / f"{name}.pack.zip") as archive:
        return {member: archive.read(member) for member in archive.namelist()}


def with_index(files: Files) -> Files:
    """Write the sizes and digests of all files into ``pack.json``, as an author who forges them does."""
    index = json.loads(files["pack.json"])
    index["files"] = {
        name: {"bytes": len(content), "sha256": sha256(content).hexdigest()}
        for name, content in files.items()
        if name != "pack.json"
    }
    return {**files, "pack.json": json.dumps(index).encode()}


def write(path: Path, files: Mapping[str, bytes], more: Callable[[zipfile.ZipFile], None] | None = None) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        if more:
            more(archive)


def flipped(path: Path, files: Files, source: random.Random) -> None:
    write(path, files)
    content = bytearray(path.read_bytes())
    for _ in range(source.choice((1, 8, 200))):
        # headers and the directory at the end are hit as often as the content
        place = source.choice((source.randrange(len(content)), -1 - source.randrange(min(3_000, len(content)))))
        content[place] ^= 1 << source.randrange(8)
    path.write_bytes(content)


def torn(path: Path, files: Files, source: random.Random) -> None:
    write(path, files)
    content = path.read_bytes()
    end = source.randrange(len(content))
    path.write_bytes(source.choice((content[:end], content[end:], content + content[:end], b"", b"PK" * end)))


def renamed(path: Path, files: Files, source: random.Random) -> None:
    name, new = source.choice([*files]), source.choice(HOSTILE_NAMES)
    content = files.pop(name) if source.random() < 0.5 else files[name]
    files[new] = content
    write(path, with_index(files) if "pack.json" in files and source.random() < 0.7 else files)


def link(path: Path, files: Files, source: random.Random) -> None:
    def add(archive: zipfile.ZipFile) -> None:
        member = zipfile.ZipInfo(source.choice(("journal.jsonl", "outcomes/part-9.parquet", "link")))
        kind = source.choice((stat.S_IFLNK, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFDIR))
        member.external_attr = (kind | 0o777) << 16
        archive.writestr(member, source.choice(("/etc/passwd", "../..", "run.json")))

    for name in ("journal.jsonl",):
        files.pop(name, None)
    write(path, with_index(files), add)


def twice(path: Path, files: Files, source: random.Random) -> None:
    name = source.choice([*files])
    write(path, files, lambda archive: archive.writestr(name, source.choice((b"", files[name], b"{}"))))


def otherwise_compressed(path: Path, files: Files, source: random.Random) -> None:
    method = source.choice((zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_STORED))
    name = source.choice([*files])
    content = files.pop(name)
    write(path, files, lambda archive: archive.writestr(zipfile.ZipInfo(name), content, method))
    if source.random() < 0.5:  # encrypted, as the flags say
        damaged = bytearray(path.read_bytes())
        directory = damaged.index(b"PK\x01\x02")
        damaged[directory + 8] |= 1
        path.write_bytes(damaged)


def bomb(path: Path, files: Files, source: random.Random) -> None:
    name = source.choice(("events.jsonl", "run.json", "outcomes/part-0.parquet", "verdict.json", "pack.json"))
    unit = source.choice((b"\0", b"[", b'{"a":', b'{"t_us": 1, "event": "x"}\n'))
    size = source.choice((BOMB_BYTES, BOMB_BYTES >> 4, 3 << 20))
    files[name] = unit * (size // len(unit))
    write(path, with_index(files) if name != "pack.json" else files)


def many(path: Path, files: Files, source: random.Random) -> None:
    count = source.choice((1_000, 20_001, 66_000))
    files |= {f"outcomes/part-{number}.parquet": b"" for number in range(count)}
    write(path, with_index(files) if source.random() < 0.5 else files)


def lying(path: Path, files: Files, source: random.Random) -> None:
    """Give a member another size, or another place, in the directory than in its header."""
    write(path, files)
    content = bytearray(path.read_bytes())
    places, at = [], content.find(b"PK\x01\x02")
    while at >= 0:
        places.append(at)
        at = content.find(b"PK\x01\x02", at + 4)
    place = source.choice(places)
    offset = source.choice((16, 20, 24, 42))  # CRC, compressed and whole size, offset of the header
    struct.pack_into("<L", content, place + offset, source.choice((0, 1, 1 << 20, (1 << 32) - 1)))
    path.write_bytes(content)


def forged(path: Path, files: Files, source: random.Random) -> None:
    """Damage a document, and write right digests into manifest and index."""
    name = source.choice([name for name in files if name.endswith(".json")])
    document = json.loads(files[name])
    for _ in range(source.choice((1, 3))):
        damage(document, source)
    text = json.dumps(document)
    if source.random() < 0.2:
        text = source.choice(
            ("[" * 100_000, text.replace('"', "'"), '{"run_id": 1e999}', text[:-2], f"[{text}]", "NaN")
        )
    files[name] = text.encode()
    write(path, with_index(files) if name != "pack.json" else files)


def lacking(path: Path, files: Files, source: random.Random) -> None:
    for _ in range(source.choice((1, 1, 4))):
        if files:
            del files[source.choice([*files])]
    write(path, with_index(files) if "pack.json" in files and source.random() < 0.7 else files)


KINDS = (flipped, torn, renamed, link, twice, otherwise_compressed, bomb, many, lying, forged, lacking)


def misplaced(scratch: Path, home: Path | None) -> list[str]:
    """Return what lies where a pack must write nothing."""
    found = []
    for path in scratch.rglob("*"):
        if path.name in ("pack.zip", "trial.log") and path.parent == scratch:
            continue
        inside = home is not None and path.is_relative_to(home)
        parts = path.relative_to(home).parts if home is not None and inside else ()
        known = len(parts) < 2 or (len(parts) == 2 and parts[0] in ALLOWED and path.suffix == ".parquet")
        code = path.suffix in (".py", ".pth", ".ini", ".cfg", ".toml", ".so")
        regular = path.is_dir() or stat.S_ISREG(path.lstat().st_mode)
        if path != scratch / "out" and (not inside or not known or code or not regular):
            found.append(f"{path.relative_to(scratch)} was written")
    return found


def trial(seed: int, scratch: Path) -> Outcome:
    source = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    path, out = scratch / "pack.zip", scratch / "out"
    kind = KINDS[seed % len(KINDS)]
    kind(path, dict(files_of(PACKS[seed // len(KINDS) % len(PACKS)])), source)
    bad, home, outcome = list[str](), None, "refused"
    try:
        home = unpack(path, out)
        outcome = "unpacked"
        read_judged_run(home)
        outcome = "read"
    except AftershockError as error:
        if "\n" in str(error):
            bad.append(f"{kind.__name__}: not one line: {error}"[:300])
    bad += [f"{kind.__name__}: {found}" for found in misplaced(scratch, home)[:5]]
    if not bad:
        shutil.rmtree(out, ignore_errors=True)
    return Outcome(bad, counts={outcome: 1})


EXPERIMENT = Experiment(
    name="e11_mutated_packs",
    title="Mutated packs, unpacked and read under 1 GiB of address space",
    figure="other exceptions than a named error of one line, exhausted memory, and files in a wrong place",
    aim="0",
    trials=5_000,
    trial=trial,
    batch=50,
    wall_s=60.0,
    cpu_s=30.0,
    memory_bytes=1 << 30,
)

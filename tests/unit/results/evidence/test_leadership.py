"""The leaders of partitions as evidence: lines that are read, and damaged lines that are errors."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import EvidenceError
from aftershock.results.evidence import manifest
from aftershock.results.evidence.evidence import Folder, leaders_in, read
from aftershock.results.evidence.leadership import Leadership
from aftershock.results.evidence.pack import pack, unpack
from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.evidence_factory import Made

LINE = {
    "topic": "orders", "topic_id": "t1", "partition": 3, "epoch": 5, "leader": 2, "isr": [2, 3], "unclean": False,
    "start_offset": 812, "after_us": -5, "by_us": 26_000, "sources": ["controller", "leader"], "checkpoints": {"3": 9},
}  # fmt: skip
UNKNOWN = dict.fromkeys(("leader", "isr", "unclean", "start_offset", "after_us", "by_us"))


@pytest.fixture
def home(made: Made, tmp_path: Path) -> Path:
    home = made.write(tmp_path / "run")
    (home / "plan.yaml").write_text("name: demo\n")
    return home


def write(home: Path, *lines: dict[str, Any]) -> None:
    (home / "leaders.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (home / "manifest.json").write_text(json.dumps(manifest.manifest_of(home)))


def test_leaders_are_read(home: Path) -> None:
    """A value that no source had is None; a run of an older version has no leaders at all."""
    assert read(home, columns()).leaders is None
    write(home, LINE, {key: value for key, value in LINE.items() if key != "checkpoints"} | UNKNOWN | {"epoch": 6})
    assert read(home, columns()).leaders == (
        Leadership("orders", "t1", 3, 5, 2, (2, 3), False, 812, -5, 26_000, ("controller", "leader"), {"3": 9}),
        Leadership("orders", "t1", 3, 6, None, None, None, None, None, None, ("controller", "leader"), {}),
    )
    written = [leadership.to_json() for leadership in leaders_in(Folder(home)) or ()]
    assert [LINE] == json.loads(json.dumps(written[:1]))
    assert "checkpoints" not in written[1]
    write(home, LINE, LINE | {"leader": 3})
    with pytest.raises(EvidenceError, match=r"leaders\.jsonl:2: a second line of epoch 5 of orders/3"):
        read(home, columns())
    write(home)
    assert read(home, columns()).leaders == ()


DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "a text": ({"epoch": "5"}, "field 'epoch': input should be a valid integer"),
    "a fraction": ({"start_offset": 5.5}, "field 'start_offset': input should be a valid integer"),
    "a whole fraction": ({"start_offset": 5.0}, "field 'start_offset': input should be a valid integer"),
    "a boolean is no number": ({"leader": True}, "field 'leader': input should be a valid integer"),
    "a number is no boolean": ({"unclean": 0}, "field 'unclean': input should be a valid boolean"),
    "null": ({"topic_id": None}, "field 'topic_id': input should be a valid string"),
    "isr": ({"isr": [1, "2"]}, "field 'isr.1': input should be a valid integer"),
    "an object is no list": ({"isr": {"1": 2}}, "field 'isr': input should be a valid tuple"),
    "sources": ({"sources": [1]}, "field 'sources.0': input should be a valid string"),
    "checkpoints": ({"checkpoints": {"k1": 4}}, "field 'checkpoints.k1.[key]': string should match pattern"),
    "offsets": ({"checkpoints": {"1": None}}, "field 'checkpoints.1': input should be a valid integer"),
    "list": ({"checkpoints": [1]}, "field 'checkpoints': input should be a valid object"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_field_of_the_wrong_type_is_an_error(case: str, home: Path) -> None:
    change, says = DAMAGED[case]
    write(home, LINE, LINE | change)
    with pytest.raises(EvidenceError) as error:
        read(home, columns())
    assert f"{home / 'leaders.jsonl'}:2: {says}" in str(error.value)


@pytest.mark.parametrize("field", [name for name in LINE if name != "checkpoints"])
def test_a_missing_field_is_an_error(field: str, home: Path) -> None:
    write(home, {key: value for key, value in LINE.items() if key != field})
    with pytest.raises(EvidenceError, match=f":1: field '{field}' is missing"):
        read(home, columns())


def test_a_torn_line_is_an_error(home: Path) -> None:
    """The document is written at once, so half a line means damage; a missing epoch would explain nothing."""
    (home / "leaders.jsonl").write_text(json.dumps(LINE)[:-5])
    with pytest.raises(EvidenceError, match=r"leaders\.jsonl:1: not JSON"):
        read(home, columns())


def test_leaders_belong_to_the_manifest_and_to_packs(home: Path, tmp_path: Path) -> None:
    write(home, LINE)
    pack(home, tmp_path / "run.pack.zip")
    unpacked = unpack(tmp_path / "run.pack.zip", tmp_path / "out")
    assert read(unpacked, columns()).leaders == read(home, columns()).leaders
    changed = Path(shutil.copytree(home, tmp_path / "changed"))
    (changed / "leaders.jsonl").write_text(json.dumps(LINE | {"start_offset": 0}) + "\n")
    with pytest.raises(EvidenceError, match=r"leaders\.jsonl: changed after the run"):
        read(changed, columns())
    (changed / "leaders.jsonl").unlink()
    with pytest.raises(EvidenceError, match=r"leaders\.jsonl: named in the manifest, but missing"):
        read(changed, columns())

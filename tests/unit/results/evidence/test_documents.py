"""Documents of strangers: a field of another type is refused with the name of the file and of the field."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import EvidenceError
from aftershock.results.evidence.files import read_json, read_lines
from aftershock.results.evidence.shapes import SHAPES, misfit

ROOT = Path(__file__).parents[4]
STORED = ROOT / "tests" / "data" / "evidence" / "demo"


def stored_documents() -> Iterator[tuple[str, str, bytes]]:
    """Yield each document of the published packs and of the test data, with its place and name."""
    for pack in sorted((ROOT / "docs" / "evidence" / "packs").glob("*.zip")):
        with zipfile.ZipFile(pack) as archive:
            yield from ((pack.name, name, archive.read(name)) for name in archive.namelist() if name in SHAPES)
    for name in SHAPES:
        for path in sorted((ROOT / "tests" / "data").rglob(name)):
            yield str(path), name, path.read_bytes()


def test_all_stored_documents_fit() -> None:
    found = [
        (place, name, why)
        for place, name, content in stored_documents()
        for part in (content.splitlines() if name.endswith(".jsonl") else [content])
        if part.strip() and (why := misfit(name, json.loads(part)))
    ]
    assert [] == found


def _set(document: Any, field: str, value: Any) -> None:
    *parents, last = field.split(".")
    for name in parents:
        document = document[int(name) if isinstance(document, list) else name]
    if value is ...:
        del document[last]
    else:
        document[int(last) if isinstance(document, list) else last] = value


@pytest.mark.parametrize(
    ("name", "field", "value", "says"),
    [
        ("run.json", "run_id", 7, "'run_id': input should be a valid string"),
        ("run.json", "run_id", ..., "'run_id' is missing"),
        ("run.json", "producers.0.producer_id", "0", "'producers.0.producer_id': input should be a valid integer"),
        ("run.json", "marks.load_end_us", 1.5, "'marks.load_end_us': input should be a valid integer"),
        ("run.json", "origin_unix_us", 10**400, "'origin_unix_us': input should be less than or equal to"),
        ("timeline.json", "workloads.0.arms", [], "'workloads.0.arms': input should be a valid object"),
        ("timeline.json", "steps.0.id", None, "'steps.0.id': input should be a valid string"),
        ("timeline.json", "cluster.config", {"offsets.topic.num.partitions": "many"}, "should be a whole number"),
        ("phases.json", "0.start_us", True, "'0.start_us': input should be a valid integer"),
        ("phases.json", "1", [], "'1': input should be a valid object"),
    ],
)
def test_a_field_of_another_type_is_named(tmp_path: Path, name: str, field: str, value: Any, says: str) -> None:
    document = json.loads((STORED / name).read_text())
    _set(document, field, value)
    path = tmp_path / name
    path.write_text(json.dumps(document))
    with pytest.raises(EvidenceError) as refused:
        read_json(path)
    assert str(refused.value).startswith(f"{path}: field ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_fault_during_the_election_of_a_controller() -> None:
    """Nobody knows then whether its node is the active controller, and the journal says so (``node_duties``)."""
    line = json.loads((STORED / "journal.jsonl").read_text().splitlines()[0])
    roles = {"asked": "leader of orders/0", "leads": {"orders": 2}, "controller": None, "rack": "a"}
    assert not misfit("journal.jsonl", line | {"targets": line["targets"] | {"roles": roles}})
    roles["controller"] = "yes"
    assert "controller" in str(misfit("journal.jsonl", line | {"targets": line["targets"] | {"roles": roles}}))


@pytest.mark.parametrize("name", ["journal.jsonl", "events.jsonl"])
def test_a_misfit_in_a_line_is_named_with_the_line(tmp_path: Path, name: str) -> None:
    first, *others = (STORED / name).read_text().splitlines()
    path = tmp_path / name
    path.write_text("\n".join([first, json.dumps(json.loads(first) | {"t_us": "soon"}), *others, ""]))
    with pytest.raises(EvidenceError, match=f"{path}:2: field 't_us': input should be a valid integer"):
        read_lines(path)


def test_numbers_that_are_none_are_refused() -> None:
    assert misfit("events.jsonl", {"t_us": 5, "event": "stalled", "stolen": float("nan")}) is not None
    assert misfit("events.jsonl", {"t_us": 5, "event": "stalled", "stolen": 0}) is None


def test_fields_of_later_versions_are_kept(tmp_path: Path) -> None:
    document = json.loads((STORED / "run.json").read_text()) | {"of_a_later_version": {"x": [1]}}
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert document == read_json(tmp_path / "run.json")

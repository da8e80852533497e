"""The coverage ledger: what is written is read, what can't be read is named, and a seed goes on where it was."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from aftershock.faults.search.coverage import Cell, CoverageLine
from aftershock.harness.labs.explore.search import NAME, append, read

TODAY = date(2026, 11, 22)
KILL = Cell("kill", "leader", "steady", "confluent produce acks=all")
CUT = Cell("cut", "rack", "recovering", "reference commit")
LINE = CoverageLine(TODAY, "r1", 7, 0, KILL, exercised=True, why="", verdict="PASS", recovered_s=3.5)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Also when it is added to later, and by somebody whose last line has no end."""
    path = tmp_path / "deep" / NAME
    other = CoverageLine(TODAY, "r2", 7, None, CUT, exercised=False, why="nobody met it", verdict="ERROR")
    append(path, [LINE])
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    append(path, [other])
    assert ((LINE, other), ()) == (read(path).lines, read(path).broken)
    assert read(tmp_path / "nowhere").lines == ()


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("{half a li", "Expecting property name"),
        ("[1]", "not a JSON object"),
        (json.dumps(json.loads(LINE.to_json()) | {"schema_version": 9}), "schema version 9 is unknown here"),
        (json.dumps(json.loads(LINE.to_json()) | {"phase": "noon"}), "phase can't be 'noon'"),
        (json.dumps(json.loads(LINE.to_json()) | {"exercised": 1}), "exercised can't be 1"),
        (json.dumps({k: v for k, v in json.loads(LINE.to_json()).items() if k != "role"}), "'role' is missing"),
        (json.dumps(json.loads(LINE.to_json()) | {"night": "yesterday"}), "Invalid isoformat string"),
    ],
)
def test_a_broken_line_is_named_and_the_others_count(tmp_path: Path, broken: str, why: str) -> None:
    """Its number, what is wrong and what to do; the ones around it are there."""
    path = tmp_path / NAME
    path.write_text(f"{LINE.to_json()}\n{broken}\n{LINE.to_json()}\n")
    found = read(path)
    (sentence,) = found.broken
    assert (LINE, LINE) == found.lines
    assert sentence.startswith(f"{path}:2: not a line of the coverage ledger (")
    assert why in sentence
    assert sentence.endswith("correct the line or remove it")


def test_a_seed_goes_on_where_it_was(tmp_path: Path) -> None:
    """Runs count once, those of other seeds and those that were not drawn not at all."""
    path = tmp_path / NAME
    append(
        path, [LINE, replace(LINE, cell=CUT), replace(LINE, run_id="r2", number=1), replace(LINE, run_id="r3", seed=8)]
    )
    append(path, [replace(LINE, run_id="r4", number=None)])
    assert [2, 1, 0] == [read(path).drawn(seed) for seed in (7, 8, 9)]

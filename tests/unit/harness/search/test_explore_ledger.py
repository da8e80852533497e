"""The coverage ledger: lines are read back, unreadable lines are named, and a seed continues after its last run."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from aftershock.faults.search.coverage import Cell, CoverageLine
from aftershock.harness.search.explore import NAME, append, read

TODAY = date(2026, 11, 22)
KILL = Cell("kill", "leader", "steady", "confluent produce acks=all")
CUT = Cell("cut", "rack", "recovering", "reference commit")
LINE = CoverageLine(TODAY, "r1", 7, 0, KILL, exercised=True, why="", verdict="PASS", recovered_s=3.5)


def test_written_lines_are_read_back(tmp_path: Path) -> None:
    """Also after a later append, and after a last line without newline."""
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
        (json.dumps(json.loads(LINE.to_json()) | {"schema_version": 9}), "doesn't know schema version 9"),
        (json.dumps(json.loads(LINE.to_json()) | {"phase": "noon"}), "phase can't be 'noon'"),
        (json.dumps(json.loads(LINE.to_json()) | {"exercised": 1}), "exercised can't be 1"),
        (json.dumps({k: v for k, v in json.loads(LINE.to_json()).items() if k != "role"}), "'role' is missing"),
        (json.dumps(json.loads(LINE.to_json()) | {"night": "yesterday"}), "Invalid isoformat string"),
    ],
)
def test_a_broken_line_is_named_and_the_others_count(tmp_path: Path, broken: str, why: str) -> None:
    """The error has line number, problem and remedy; the lines around it are read."""
    path = tmp_path / NAME
    path.write_text(f"{LINE.to_json()}\n{broken}\n{LINE.to_json()}\n")
    found = read(path)
    (sentence,) = found.broken
    assert (LINE, LINE) == found.lines
    assert sentence.startswith(f"{path}:2: not a line of the coverage ledger (")
    assert why in sentence
    assert sentence.endswith("correct the line or remove it")


def test_a_seed_continues_after_its_last_run(tmp_path: Path) -> None:
    """Each run counts once; runs of other seeds and runs that were not drawn don't count."""
    path = tmp_path / NAME
    append(
        path, [LINE, replace(LINE, cell=CUT), replace(LINE, run_id="r2", number=1), replace(LINE, run_id="r3", seed=8)]
    )
    append(path, [replace(LINE, run_id="r4", number=None)])
    assert [2, 1, 0] == [read(path).drawn(seed) for seed in (7, 8, 9)]

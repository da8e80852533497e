"""The entries of tests/tiers.toml name existing tests, and tests with an engine are where `make test` looks."""

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
ENTRIES = [
    pytest.param(entry, id=f"{mark}: {entry['test']}")
    for mark, entries in tomllib.loads((TESTS / "tiers.toml").read_text(encoding="utf-8")).items()
    for entry in entries
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_names_one_test(entry: dict[str, Any]) -> None:
    """An entry for a renamed or moved test would have no effect."""
    file, _, function = entry["test"].partition("::")
    paths = [path for path in TESTS.rglob("*.py") if f"{path}".endswith(f"/{file}")]
    assert 1 == len(paths)
    names = {node.name for node in ast.walk(ast.parse(paths[0].read_text(encoding="utf-8"))) if hasattr(node, "name")}
    assert not function or function in names
    assert entry["reason"]


def test_engine_tests_are_in_two_folders() -> None:
    """`make test` collects only these for its second part."""
    mark = "mark." + "engine"
    found = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("*.py") if mark in path.read_text("utf-8")}
    assert {"chaos", "contract"} == found


def test_every_chaos_test_needs_an_engine() -> None:
    """Without the mark, a selection of tests with an engine leaves it out."""
    files = (TESTS / "chaos").rglob("test_*.py")
    assert [] == [path.name for path in files if "mark." + "engine" not in path.read_text(encoding="utf-8")]

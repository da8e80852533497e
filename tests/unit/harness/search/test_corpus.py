"""The corpus: plans as runnable files; unreadable plans are skipped with a message."""

from pathlib import Path

import pytest

from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find
from aftershock.harness.search.corpus import Origin, keep, read

PLAN = find("demo").read_text()
FOUND = Origin(7, "2026-11-22", ("integrity/lost",), "runs/20261122-020000-demo-0a0a")


def test_a_kept_plan_can_be_read_and_run(tmp_path: Path) -> None:
    """The file is an ordinary plan, and its first line names its origin."""
    path = keep(tmp_path / "corpus", PLAN, FOUND)
    (entry,) = read(tmp_path / "corpus").entries
    assert (path, PLAN, FOUND) == (entry.path, entry.text, entry.origin)
    assert "demo" == load_plan(path).plan.name


def test_the_same_plan_is_kept_once(tmp_path: Path) -> None:
    """Under any name, with its latest evidence; another plan is stored beside it, the newest first."""
    later = Origin(8, "2026-11-23", ("integrity/order",), "elsewhere")
    keep(tmp_path, PLAN, FOUND)
    keep(tmp_path, PLAN.replace("name: demo", "name: other"), later)
    assert [later] == [entry.origin for entry in read(tmp_path).entries]
    keep(tmp_path, PLAN.replace("50/s", "51/s"), FOUND)
    assert [later, FOUND] == [entry.origin for entry in read(tmp_path).entries]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (PLAN, "the first line must be `# corpus: {…}`"),
        (
            '# corpus: {"schema_version": 0}\n' + PLAN,
            "the file has schema version 0, but this Aftershock reads 1: run the plan",
        ),
        (
            '# corpus: {"schema_version": 2}\n' + PLAN,
            "the file has schema version 2, but this Aftershock reads 1: upgrade Aftershock",
        ),
        ('# corpus: {"schema_version": 1}\n' + PLAN, "'seed' is missing"),
        ("# corpus: {half\n" + PLAN, "Expecting property name"),
        ('# corpus: {"schema_version": 1, "seed": 1}\nname: [', "the plan is no longer valid: plan.yaml:1:"),
    ],
)
def test_an_unreadable_plan_is_skipped(tmp_path: Path, text: str, why: str) -> None:
    """The message names the file and the reason; the other plans are read."""
    kept = keep(tmp_path, PLAN, FOUND)
    (tmp_path / "old.yaml").write_text(text)
    found = read(tmp_path)
    (sentence,) = found.skipped
    assert [kept] == [entry.path for entry in found.entries]
    assert sentence.startswith(f"{tmp_path / 'old.yaml'}: skipped: ")
    assert why in sentence


def test_no_folder_is_an_empty_corpus(tmp_path: Path) -> None:
    """Before the first failure there is no folder, and reading creates none."""
    assert ((), ()) == (read(tmp_path / "none").entries, read(tmp_path / "none").skipped)

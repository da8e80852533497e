"""What is left on disk and said: a plan that can be run, the log, and the same for programs."""

import json
from pathlib import Path

from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.model import dump
from aftershock.harness.labs.minimise.execution import text, to_json, write
from aftershock.tests.unit.faults.search.following import ids
from aftershock.tests.unit.harness.labs.minimise.pretend import CHECK, Pretend, culprit, search


def test_a_small_plan_with_its_evidence(tmp_path: Path) -> None:
    """It is valid, says how it is run, what it was made of, how often it failed and where that is seen."""
    found, _, _ = search(tmp_path, Pretend(culprit("f7")))
    write(found, tmp_path)
    checked = load_plan(tmp_path / "plan.yaml")
    assert "# aftershock run plan.yaml --seed 7" == checked.text.splitlines()[0]
    assert ("big-small", ["f7"]) == (checked.plan.name, [*ids(dump(checked.plan))])
    for told in ("from run-0, with 1 of 12 faults", CHECK, "2 of 2", found.last_failing):
        assert told in checked.plan.why
    rows = (tmp_path / "tried.md").read_text().splitlines()
    assert len(found.tried) == len([row for row in rows if row.startswith("|")]) - 2
    told = json.loads((tmp_path / "result.json").read_text())
    assert to_json(found, tmp_path) == told
    assert ("minimal", {"before": 12, "after": 1}, str(tmp_path / "plan.yaml")) == (
        told["ending"],
        told["faults"],
        told["plan"],
    )
    assert "faults: 12 -> 1\n" in text(found, tmp_path)


def test_a_flake_leaves_no_plan(tmp_path: Path) -> None:
    """Only the log, and a sentence with how often it came back."""
    found, _, _ = search(tmp_path, Pretend(lambda _: "passes"))
    write(found, tmp_path)
    assert not (tmp_path / "plan.yaml").exists()
    assert "a flake" in text(found, tmp_path)
    assert "failed again: 0 of 2 (95 % interval 0.00 to 0.66)" in text(found, tmp_path)
    assert to_json(found, tmp_path)["plan"] is None


def test_no_fault_is_to_blame(tmp_path: Path) -> None:
    """What fails with no fault at all says so."""
    found, _, _ = search(tmp_path, Pretend(lambda _: "fails"))
    assert "faults: 12 -> 0; the plan fails without faults, so the faults are not the cause" in text(found, tmp_path)

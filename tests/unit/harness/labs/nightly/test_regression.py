"""The patch that a red night offers: git takes it, and what it adds is a test that collects and compares."""

import subprocess
import sys
from pathlib import Path

from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find
from aftershock.faults.search.swarm import draw_plan, frame_of
from aftershock.harness.labs.corpus import Origin, keep, read
from aftershock.harness.labs.nightly.night import patch

FOUND = Origin(7, "2026-11-22", ("integrity/lost", "obligation/produce"), "runs/x")


def test_nothing_failed_is_no_patch() -> None:
    """An empty text, so nothing is offered."""
    assert "" == patch([])


def test_git_applies_it_and_its_test_runs(tmp_path: Path) -> None:
    """In a repository of its own: the plan as it failed, and a test that holds it to the timeline that it had.

    A plan that strikes somebody else makes that test fail.
    """
    drawn = draw_plan(frame_of(load_plan(find("explore"))), {}, 7, 3)
    keep(tmp_path / "corpus", drawn.text, FOUND)
    (entry,) = read(tmp_path / "corpus").entries
    (tmp_path / "regression.patch").write_text(patch([entry]))
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "regression.patch"], cwd=tmp_path, check=True)
    (home,) = (tmp_path / "tests" / "regressions").iterdir()
    assert drawn.text == (home / "plan.yaml").read_text()
    assert 0 == pytested(home)
    plan = home / "plan.yaml"
    plan.write_text(plan.read_text().replace("at: 0s", "at: 1s") + "- {kind: kill, at: 70s, for: 3s, broker: 1}\n")
    assert 1 == pytested(home)


def pytested(home: Path) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "still_the_one", str(home)]
    return subprocess.run(command, cwd=home, check=False, capture_output=True).returncode

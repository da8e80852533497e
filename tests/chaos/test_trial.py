"""A small trial on a real cluster: run, judged, reported, and not run again."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

DEADLINE_S = 400
UNDECIDED = 2


def kip(out: Path, budget: str) -> dict[str, Any]:
    words = ["kip", "227", "--budget", budget, "--json", "--out", str(out)]
    command = [sys.executable, "-m", "aftershock.harness.cli", *words]
    ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=DEADLINE_S, check=False)
    assert UNDECIDED == ended.returncode
    (told,) = json.loads(ended.stdout)["trials"]
    return dict(told)


def test_a_short_trial(tmp_path: Path) -> None:
    """Four minutes decide the headline with its control and assay, report the other parts as unpaid, and a second
    call judges the same runs again: no part runs twice.
    """
    told = kip(tmp_path, "4m")
    decided = {each["id"]: each["word"] for each in told["statements"] if each["word"] != "undecided"}
    assert {"incremental-slope", "share", "full-slope", "no-gain"} == decided.keys(), told["why"]
    assert {"confirmed"} == set(decided.values())
    assert {"bytes", "control"} == set(told["runs"])
    assert {"budget 4 min"} == set(told["not_run"].values())
    again = kip(tmp_path, "1s")
    assert decided == {each["id"]: each["word"] for each in again["statements"] if each["word"] != "undecided"}
    assert 2 == len([each for each in (tmp_path / "kips" / "227").iterdir() if each.is_dir()])

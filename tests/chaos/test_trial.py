"""A small trial on a real cluster: run, judged, reported, and not run again."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

DEADLINE_S = 400
INCONCLUSIVE = 2


def kip(out: Path) -> dict[str, Any]:
    """Return the output of a two-minute trial, which pays for one part."""
    words = ["kip", "951", "--budget", "2m", "--json", "--out", str(out)]
    command = [sys.executable, "-m", "aftershock.harness.cli", *words]
    ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=DEADLINE_S, check=False)
    assert INCONCLUSIVE == ended.returncode
    (told,) = json.loads(ended.stdout)["trials"]
    return dict(told)


def test_a_short_trial(tmp_path: Path) -> None:
    """It shows the KIP's effect, reports the other parts as unpaid, and continues from its record: no part runs
    twice.
    """
    told = kip(tmp_path)
    delayed = next(each for each in told["statements"] if each["id"] == "delay-300")
    assert 6 <= delayed["ours"]["n"] < 40
    assert delayed["ours"]["high"] < 1, delayed["why"]  # So few leader moves show the effect, but not always its size.
    assert {"delay-300"} == set(told["runs"])
    assert {"budget 2m"} == set(told["not_run"].values())
    assert told == kip(tmp_path)
    assert 1 == len([each for each in (tmp_path / "kips" / "951").iterdir() if each.is_dir()])

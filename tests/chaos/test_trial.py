"""Small trials on a real cluster: run, judged, reported, and not run again; and a launch of KIP-951's benchmark."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aftershock.harness.campaigns.kip_trials import BENCHMARK_SHORT
from aftershock.results.evidence.stored import read_judged_run
from aftershock.results.studies.part import Part
from aftershock.results.studies.trials.kip951_benchmark import doubt_of, latencies_of

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

DEADLINE_S = 400
RECORDS, COUNTED = 300_000, 150_000  # of the short benchmark, in all and after the warm-up
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


def test_kafkas_own_benchmark(tmp_path: Path) -> None:
    """ProducerPerformance drives a launch: its records are in the log once, and its figures are those of the rows."""
    words = ["run", "kips/951-benchmark", "--out", str(tmp_path), *(f"--set={change}" for change in BENCHMARK_SHORT)]
    ended = subprocess.run([sys.executable, "-m", "aftershock.harness.cli", *words], timeout=DEADLINE_S, check=False)
    (home,) = [path.parent for path in tmp_path.glob("*/verdict.json")]
    part = Part(home.name, read_judged_run(home))
    assert (0, None) == (ended.returncode, doubt_of(part))
    found = latencies_of(part)
    assert (COUNTED, 0) == (found.n, found.failed)
    slowest_ms = found.quantile(1)
    assert 300 < slowest_ms < 30_000
    (load,) = [check for check in part.run.verdict.checks if check.id == "harness/load"]
    assert RECORDS == load.n

"""What `plan check` says of a plan in one line, and what it finds missing on this host."""

import json
from pathlib import Path

import pytest

from aftershock.faults.plan.check import load_plan
from aftershock.harness.run import checkup, estimate
from aftershock.harness.run.checkup import machine_warnings, summary
from aftershock.harness.run.estimate import host_identity

PLAN = """\
name: sized
topics: [{name: orders, partitions: 6, replication: 3}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s}
    arms: {one: {}, two: {}}
timing: {warmup: {min: 5s, max: 60s}, steady: 20s, recovery: 20s}
faults:
  - {at: 0s, for: 8s, kind: latency, link: "client(a) <-> broker", delay: 50ms}
  - {at: 20s, for: 10s, kind: kill, broker: 1}
  - {at: 50s, for: 10s, kind: kill, broker: leader of orders/0}
"""


@pytest.fixture(autouse=True)
def no_calibration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the calibration nor the files of the user decide."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_the_line_of_a_plan() -> None:
    """Longest duration, records of all arms, faults with how many nodes at once and how often, and space."""
    line = summary(load_plan(PLAN))
    # 60 s of warm-up, 20 s of steady, 60 s of faults, 8 s for the last heal, 20 s of recovery
    assert line.startswith("2 min 48 s at most, 120 records/s, kills 1 of 3 brokers 2 times, latency on client(a) <-> ")
    assert line.endswith(" MB on the disk")
    assert "kills 2 of 3 brokers, " in summary(load_plan(PLAN.replace("at: 50s", "at: 25s")))
    assert "kills 3 of 9 brokers" in summary(
        load_plan(
            PLAN.replace("kind: kill, broker: 1", "kind: lose_rack, rack: a") + "cluster: {racks: {a: 3, b: 3, c: 3}}"
        )
    )
    assert ", no fault, " in summary(load_plan(PLAN[: PLAN.index("faults:")]))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("[./nope.py]", "the program `./nope.py` of the arm `one` is not there in "),
        ("[no-such-program-51]", "the program `no-such-program-51` of the arm `one` is not there on this machine"),
        ("[./plain.py]", "the program `./plain.py` of the arm `one` is not executable in "),
        ("[python3, gone.py]", "the script `gone.py` of the arm `one` is not there, seen from "),
        ("[./client.py, gone.py]", None),
        ("[python3, plain.py, --fast]", None),
        ("[python3, -c, 'print()']", None),
    ],
)
def test_a_program_that_is_not_here(command: str, words: str | None) -> None:
    """It is looked up as the run does, from the working directory; a script only behind an interpreter."""
    Path("plain.py").touch()
    Path("client.py").touch(0o755)
    checked = load_plan(PLAN.replace("one: {}", f"one: {{client: exec, command: {command}}}"))
    warnings = [warning for warning in machine_warnings(checked) if "the arm `one`" in warning]
    assert ([] if words is None else [True]) == [
        warning.startswith("plan.yaml:6:") and str(words) in warning for warning in warnings
    ]


def test_rates_beyond_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a calibration above 5,000 records/s for each core; with one, above the rate of a client."""
    monkeypatch.setattr(checkup.os, "cpu_count", lambda: 2)
    fast = load_plan(PLAN.replace("60/s", "6000/s"))
    (warning,) = machine_warnings(fast)
    assert warning.startswith("plan.yaml:5:36: 12,000 records/s are more than 5,000 for each of this host's 2 cores")
    assert [] == machine_warnings(load_plan(PLAN.replace("60/s", "4000/s")))
    monkeypatch.setattr(estimate.os, "cpu_count", lambda: 2)
    (tmp_path / "aftershock").mkdir()
    limits = {"host": host_identity(), "records_per_s": {"confluent produce": 5000.0}}
    (tmp_path / "aftershock" / "calibration.json").write_text(json.dumps(limits))
    assert ["orders/one produce: 6,000/s exceeds", "orders/two produce: 6,000/s exceeds"] == [
        warning.partition(": ")[2][:35] for warning in machine_warnings(fast)
    ]


def test_more_than_the_disk_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that writes more than what is free gets a warning."""
    usage = type("Usage", (), {"free": 10**6})
    monkeypatch.setattr(checkup.shutil, "disk_usage", lambda _: usage)
    assert any("and 1.0 MB are free here" in warning for warning in machine_warnings(load_plan(PLAN)))

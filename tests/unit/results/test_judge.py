"""Judging from a run directory to verdict and report, in processes of their own; no engine outlives its judge."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aftershock.tests.unit.results.evidence_factory import Made

pytestmark = pytest.mark.spark

JUDGE = """
import sys
from pathlib import Path
from aftershock.results.judge import judge
from aftershock.results.report.page import write_report
def say(text): print(text, flush=True)
verdict = judge(Path(sys.argv[1]), *sys.argv[2:] or [None], say)
write_report(Path(sys.argv[1]))
sys.exit(verdict.exit_code)
"""
DEADLINE_S = 60
EVIDENCE = Path(__file__).parents[2] / "data" / "evidence"


def engines_of(run: Path) -> list[str]:
    """Return the processes that have the run's Spark log open, whatever their parent process is."""
    log = run / "logs" / "spark.log"
    result = []
    for process in Path("/proc").iterdir():
        try:
            holds = process.name.isdigit() and any(link.resolve() == log for link in (process / "fd").iterdir())
        except OSError:
            continue
        result += [process.name] if holds else []
    return result


def test_a_lost_and_a_repeated_record_fail_the_run(made: Made, tmp_path: Path) -> None:
    """With one consume row deleted and another duplicated, the exit code is 1, both are named, and the report
    is written.
    """
    spoiled = made.copy()
    gone, twice = spoiled.consume[1000], spoiled.consume[2000]
    spoiled.consume.remove(gone)
    spoiled.consume.append(dict(twice))
    home = spoiled.write(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-c", JUDGE, str(home)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    checks = json.loads((home / "verdict.json").read_text())["checks"]
    failed = {check["id"]: check["samples"] for check in checks if check["status"] == "FAIL"}
    assert failed["integrity/lost"] == [[gone["producer_id"], gone["seq"]]]
    assert failed["integrity/duplicate"] == [[twice["producer_id"], twice["seq"]]]
    assert set(failed) == {"integrity/lost", "integrity/duplicate", "slo/lost"}
    assert (home / "report.html").read_text().startswith("<!doctype html>")
    assert 'failures="3" errors="0"' in (home / "junit.xml").read_text()
    assert engines_of(home) == []


@pytest.mark.parametrize("at", ["starting Spark", "measuring"])
@pytest.mark.parametrize("master", ["sail", "local[2]"])
def test_an_interrupted_judgement_leaves_no_engine(made: Made, tmp_path: Path, master: str, at: str) -> None:
    """SIGINT during the start or the work ends the process with KeyboardInterrupt, and ends Sail or the JVM."""
    home = made.write(tmp_path / "run")
    returned, errors = ended_by(signal.SIGINT, home, at, master)
    assert returned == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert not (home / "verdict.json").exists()


def test_sail_ends_with_a_judge_that_is_killed(made: Made, tmp_path: Path) -> None:
    returned, _ = ended_by(signal.SIGKILL, made.write(tmp_path / "run"), "measuring", "sail")
    assert returned == -signal.SIGKILL


def ended_by(number: signal.Signals, home: Path, at: str, master: str) -> tuple[int, str]:
    """Send the judge of a run a signal when it says ``at``; return its exit code and errors once no engine is left."""
    judging = subprocess.Popen(
        [sys.executable, "-c", JUDGE, str(home), master], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert judging.stdout
    for line in judging.stdout:
        if at in line:
            break
    judging.send_signal(number)
    _, errors = judging.communicate(timeout=DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while engines_of(home) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert engines_of(home) == []
    return judging.returncode, errors


MANY = """
import sys
from pathlib import Path
import os, signal
from aftershock.errors import EvidenceError
from aftershock.results.judge import Judge
log, *runs = map(Path, sys.argv[1:])
def say(text):
    print(text)
    if run.name == "killed" and text == "judging: measuring":
        for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
with Judge(log, None, lambda _: None) as unused:
    unused.prepare(runs[0])
with Judge(log, None, say) as judge:
    judge.prepare(runs[0])
    for run in runs:
        try:
            print(run.name, judge(run).status)
        except EvidenceError as broken:
            print(run.name, broken)
        print(run.name, "scratch", len(list(log.parent.glob(".spark-*"))))
"""


def unreadable_by_spark_only(home: Path) -> Path:
    """Spoil a file's pages and keep its footer."""
    part = home / "outcomes" / "consume-0.parquet"
    spoiled = bytearray(part.read_bytes())
    spoiled[4:2000] = bytes(1996)
    part.write_bytes(spoiled)
    return home


@pytest.mark.nightly
def test_a_failed_judgement_does_not_affect_others(made: Made, tmp_path: Path) -> None:
    """One run is unreadable, Sail fails on another, and is killed during a third; the first and last are judged."""
    runs = {name: made.write(tmp_path / name) for name in ("good", "broken", "torn", "killed", "last")}
    (runs["broken"] / "run.json").unlink()
    unreadable_by_spark_only(runs["torn"])
    log = tmp_path / "judging" / "spark.log"
    command = [sys.executable, "-c", MANY, *map(str, (log, *runs.values()))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    output_lines = done.stdout.splitlines()
    assert {"good PASS", "last PASS"} <= set(output_lines)
    assert f"broken {runs['broken'] / 'run.json'}: missing" in done.stdout
    assert f"torn {runs['torn']}: Spark could not read the evidence: " in done.stdout
    assert f"killed {runs['killed']}: Spark could not read the evidence: " in done.stdout
    assert output_lines.count("judging: starting Spark") == 3, (
        "the prepared session, and another after each that Spark failed on"
    )
    assert {"good scratch 1", "broken scratch 1", "torn scratch 0"} <= set(output_lines), (
        "what Spark spills is beside the log"
    )
    assert [log] == list(log.parent.iterdir())
    assert not (runs["torn"] / "verdict.json").exists()


JOBS = """
import sys
from pathlib import Path
from aftershock.results.judge import Judge
run = Path(sys.argv[1])
with Judge(run / "logs" / "spark.log", "local[2]", lambda _: None) as judge:
    judge(run)
    print(1 + max(judge.spark.sparkContext.statusTracker().getJobIdsForGroup()))
"""
JOBS_MAX = 25


def test_the_verdict_on_a_demo_takes_few_spark_jobs(tmp_path: Path) -> None:
    """Spark's work per job is longer than that of the rows of a demo, so small tables must not cost a job each."""
    run = tmp_path / "run"
    shutil.copytree(EVIDENCE / "demo", run)
    child = [sys.executable, "-P", "-c", JOBS, str(run)]
    judged = subprocess.run(child, capture_output=True, text=True, timeout=4 * DEADLINE_S, check=False)
    assert judged.returncode == 0, judged.stderr
    assert int(judged.stdout) <= JOBS_MAX

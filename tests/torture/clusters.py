"""Runs on real clusters for the torture experiments, started by the command line and judged from outside."""

import json
import subprocess
import sys
from pathlib import Path

import docker

from aftershock.harness.cluster import ownership
from aftershock.harness.kafka.admin import still_lacking
from aftershock.tests.chaos.conftest import Command

REMOVED_S = 150.0  # the watchdog waits, undoes the faults, and removes the containers
COMMAND_S = 240.0
STATUSES = {0: "PASS", 1: "FAIL", 2: "INCONCLUSIVE"}


def start(plan: str, scratch: Path, *options: str) -> Command:
    """Start `aftershock run` with a plan; the run directory is the only folder in ``scratch/runs``."""
    path, out = scratch / "plan.yaml", scratch / "runs"
    path.write_text(plan, encoding="utf-8")
    return Command(["run", str(path), "--out", str(out), *options], out)


def ended_within(command: Command, seconds: float) -> bool:
    return still_lacking(lambda: "it runs" if command.process.poll() is None else "", seconds) == ""


def aftershock(*arguments: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "aftershock.harness.cli", *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=COMMAND_S)
    print(arguments, done.returncode, done.stdout, done.stderr)
    return done


def watchdogs(run_id: str) -> list[int]:
    """Return the process ids of the watchdogs of a run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # the process has ended
            continue
        if b"aftershock.harness.safety.watchdog" in words and run_id.encode() in words:
            found.append(int(path.parent.name))
    return found


def journal_states(run_dir: Path) -> dict[str, str]:
    """Return the last state of each fault, read without the product; a torn line is left out."""
    states = {}
    path = run_dir / "journal.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        states[row["fault"]] = row["state"]
    return states


def remove(run_dir: Path) -> None:
    """Remove what is left of a run, whatever the product did."""
    ownership.remove_run(docker.from_env(), run_dir.name)

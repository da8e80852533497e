"""Runs on real clusters for the torture experiments, started by the command line and judged from outside."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import docker

from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety import ownership
from aftershock.tests.chaos.conftest import DEADLINE_S, Command

REMOVED_S = 150.0  # the watchdog waits, undoes the faults, and removes the containers
COMMAND_S = 240.0
STATUSES = {0: "PASS", 1: "FAIL", 2: "INCONCLUSIVE"}


@contextmanager
def running(plan: str, scratch: Path, *options: str) -> Iterator[Command]:
    """Run `aftershock run` with a plan; at the end, kill the runner and remove what is left of the run.

    The run directory is the only folder in ``scratch/runs``.
    """
    path, out = scratch / "plan.yaml", scratch / "runs"
    path.write_text(plan, encoding="utf-8")
    command = Command(["run", str(path), "--out", str(out), *options], out)
    try:
        yield command
    finally:
        with suppress(ProcessLookupError):
            command.process.kill()
        with suppress(OSError, ValueError):  # the run ended before it had a directory
            ownership.remove_run(docker.from_env(), command.run_dir.name)


def finished(command: Command, deadline_s: float = DEADLINE_S) -> tuple[str, list[str], dict[str, Any]]:
    """Wait for the end of a run with `--json`; return its status, what is wrong with its end, and the verdict."""
    code, stdout = command.finish(deadline_s)
    if code not in STATUSES:
        return "ERROR", [f"exit code {code}: {command.stderr[-500:]}"], {"checks": []}
    return STATUSES[code], [], json.loads(stdout)


def blamed(verdict: dict[str, Any]) -> list[str]:
    """Return the failed checks of a verdict, each of which blames Kafka or its clients."""
    return [f"{check['id']} FAIL: {check['why']}" for check in verdict["checks"] if check["status"] == "FAIL"]


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
        if b"aftershock.harness.lifecycle.watchdog" in words and run_id.encode() in words:
            found.append(int(path.parent.name))
    return found


def journal_states(run_dir: Path) -> dict[str, str]:
    """Return the last state of each fault, read without the product; a torn line is left out.

    A fault that failed before it was intended, because it had no target, is left out too.
    """
    states = {}
    path = run_dir / "journal.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row["state"] != "failed" or row["fault"] in states:
            states[row["fault"]] = row["state"]
    return states

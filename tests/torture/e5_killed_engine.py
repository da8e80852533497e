"""Hypothesis: when the Docker engine dies, the run ends as an ERROR that names it, and is cleaned up when it is back.

Method: SIGKILL of dockerd in warm-up, during a fault, during its heal and during the final read. After 10, 60 or 300 s
the engine is started again by `ci/bootstrap`. The run must end with exit code 3 and a message about the engine, and
without a command from the user nothing may remain. The seconds are from the engine's answer to a clean host.

Only the engine that `ci/bootstrap` started is killed, by the id in its pid file, and only if all its containers are
Aftershock's.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import docker

from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety import ownership
from aftershock.tests.torture.clusters import ended_within, journal_states, running
from aftershock.tests.torture.e4b_full_disk import PLAN
from aftershock.tests.torture.runner import ROOT, Experiment, Outcome

PID_FILE = Path("/var/run/aftershock-dockerd.pid")
PHASES = {
    "warm-up": "s  warmup",
    "fault": "dead: in force",
    "heal": "dead: in force",
    "final read": "reading the topics and every replica",
}
AWAY_S = (10, 60, 300)
CLEAN_S = 240.0  # the watchdog's longest pause is 60 s


def engine_process() -> int:
    """Return the process id of the engine. Raises RuntimeError if it is not ours alone to kill."""
    pid = int(PID_FILE.read_text()) if PID_FILE.exists() else 0
    if not pid or Path(f"/proc/{pid}/comm").read_text().strip() != "dockerd":
        raise RuntimeError(f"{PID_FILE} names no dockerd: only an engine that ci/bootstrap started is killed")
    client = docker.from_env()
    foreign = [one.name for one in client.containers.list(all=True) if ownership.RUN not in one.labels]
    if foreign:
        raise RuntimeError(f"the engine also has the containers {', '.join(foreign)}, which are not Aftershock's")
    return pid


def problems(code: int | None, stderr: str, left: str) -> list[str]:
    bad = [] if code == 3 else [f"the run ended with exit code {code}, not 3"]
    bad += [] if "Docker engine" in stderr else [f"the message does not name the engine: {stderr[-300:]}"]
    bad += ["the run ended in a traceback"] if "Traceback" in stderr else []
    return bad + ([f"left: {left}"] if left else [])


def trial(seed: int, scratch: Path) -> Outcome:
    phase, away_s = list(PHASES)[seed % len(PHASES)], AWAY_S[seed // len(PHASES) % len(AWAY_S)]
    pid = engine_process()
    with running(PLAN, scratch, "--seed", str(seed)) as command:
        try:
            command.wait_for(PHASES[phase])
            if phase == "heal":
                still_lacking(
                    lambda: "" if journal_states(command.run_dir).get("dead") == "healing" else "in force", 60.0
                )
            os.kill(pid, signal.SIGKILL)
            dead_s = time.monotonic()
            code = command.process.wait() if ended_within(command, max(180.0, 2 * away_s)) else None
            if code is None:
                command.process.kill()
            still_lacking(lambda: "later", max(0.0, dead_s + away_s - time.monotonic()))
            subprocess.run([str(ROOT / "ci" / "bootstrap")], check=True)
            back_s = time.monotonic()
            left = command.left_behind(CLEAN_S)
            seconds = time.monotonic() - back_s
            bad = problems(code, command.stderr, left)
            return Outcome(bad, 1, () if left else (seconds,), {f"killed in {phase}": 1})
        finally:  # the clean-up of the run needs the engine
            subprocess.run([str(ROOT / "ci" / "bootstrap")], check=False)


EXPERIMENT = Experiment(
    name="e5_killed_engine",
    title="Docker engine killed in warm-up, fault, heal and final read",
    figure="runs that were not cleaned up, or whose error does not name the engine",
    aim="0",
    trials=12,
    trial=trial,
    wall_s=1200.0,
    takes_s=300.0,
)

"""Hypothesis: a disk that fills up at any moment of a run leaves no fault and no container, and loses no evidence.

Method: `--out` is on a tmpfs of 256 MiB, which a file fills to the last byte when the run reaches a phase: the launch,
warm-up, steady, the fault, recovery, the final read or the judging. Every second time the runner is also killed, so
that the watchdog and `aftershock heal` work on the full disk. The run may not end in a traceback, and nothing of it may
remain. When the disk has space again, the evidence of runs that reached `steady` must be readable.
"""

import os
import random
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from aftershock.tests.torture.clusters import REMOVED_S, aftershock, ended_within, running
from aftershock.tests.torture.runner import Experiment, Outcome

PHASES = {
    "launch": "Kafka nodes",
    "warm-up": "s  warmup",
    "steady": "s  steady",
    "fault": "slow: in force",
    "recovery": "s  recovery",
    "final read": "reading the topics and every replica",
    "judging": "judging the evidence",
}
WITH_EVIDENCE = ("fault", "recovery", "final read", "judging")
PLAN = """
name: full
cluster: {racks: {a: 1, b: 1}}
topics: [{name: orders, partitions: 3, replication: 2}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: 200, deadline: 10s}
    consume: {topic: orders, group: readers}
timing: {warmup: {min: 2s, max: 20s}, steady: 4s, fault: 4s, recovery: 4s}
faults:
  - {id: slow, at: 0s, for: 5s, kind: latency, link: "client(a) -> broker", delay: 40ms}
  - {id: dead, at: 1s, for: 3s, kind: kill, broker: any broker except leader of orders/0}
slo: ["lost == 0"]
"""


def problems(stderr: str, left: str, evidence: "subprocess.CompletedProcess[str] | None") -> list[str]:
    """Return what went wrong; ``evidence`` is the result of `aftershock verdict`, if the run has evidence."""
    bad = ["the run ended in a traceback"] if "Traceback" in stderr else []
    bad += [f"left: {left}"] if left else []
    if evidence and (evidence.returncode not in (0, 1, 2) or "Traceback" in evidence.stderr):
        bad.append(f"the evidence is not readable: {evidence.stderr[-500:]}")
    return bad


def trial(seed: int, scratch: Path) -> Outcome:
    source = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    phase, killed = list(PHASES)[seed // 2 % len(PHASES)], seed % 2 == 1
    disk = scratch / "runs"
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m,nr_inodes=100k", "aftershock", str(disk)], check=True)
    try:
        with running(PLAN, scratch, "--seed", str(seed)) as command:
            command.wait_for(PHASES[phase])
            ended_within(command, source.uniform(0.0, 1.5))
            run_dir = command.run_dir
            filler = run_dir / "logs" / ".filler"  # not in the folder of the runs
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(os.urandom(1 << 20))
            with suppress(OSError), filler.open("ab", buffering=0) as file:
                while True:
                    file.write(b"x")
            if shutil.disk_usage(disk).free > 1 << 16:
                raise RuntimeError(f"{disk} could not be filled")
            bad = []
            if killed:
                command.process.kill()
            elif not ended_within(command, 180.0):
                bad.append("the run did not end within 180 s of a full disk")
                command.process.kill()
            command.process.wait()
            if killed and seed // 2 % 2:
                aftershock("heal", "--run", run_dir.name, "--out", str(disk))
            filler.unlink()
            if killed:
                aftershock("heal", "--out", str(disk))
            left = command.left_behind(REMOVED_S)
            evidence = aftershock("verdict", str(run_dir)) if phase in WITH_EVIDENCE else None
            return Outcome(bad + problems(command.stderr, left, evidence), 1, counts={f"full in {phase}": 1})
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


EXPERIMENT = Experiment(
    name="e4b_full_disk",
    title="Disk full in every phase of a run",
    figure="runs with a traceback, with remains, or whose evidence is not readable",
    aim="0",
    trials=14,
    trial=trial,
    wall_s=600.0,
    takes_s=120.0,
)

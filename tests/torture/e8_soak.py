"""Hypothesis: the memory of a run does not grow with its length, and a long run is judged within a minute.

Method: two hours of 200 records/s with a fault every minute (AFTERSHOCK_SOAK_MINUTES sets another length; 1440 once, by
hand). Every ten seconds the resident memory of the runner and of each client process is read. Growth is the median of
the last ten minutes against that of the minutes ten to twenty; a run shorter than half an hour compares thirds.
"""

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

from aftershock.harness.world.client_processes import workers
from aftershock.tests.torture.clusters import ended_within, finished, running
from aftershock.tests.torture.runner import Experiment, Outcome

MINUTES = float(os.environ.get("AFTERSHOCK_SOAK_MINUTES", "120"))
EVERY_S = 10.0
GROWTH_MAX, JUDGED_S_MAX = 0.03, 60.0
MEMORY_MIB_MAX = {"runner": 250.0, "client": 120.0}
FAULTS_MAX = 480  # a plan may have 500
_PLAN = """
name: soak
cluster: {{racks: {{a: 1, b: 1, c: 1}}}}
topics: [{{name: orders, partitions: 6, replication: 3, config: {{min.insync.replicas: 2}}}}]
workloads:
  - name: orders
    produce: {{topic: orders, rate: 200/s, record_size: 200, deadline: 20s}}
    consume: {{topic: orders, group: readers}}
timing: {{warmup: {{min: 5s, max: 30s}}, steady: 10s, fault: 5s, recovery: 10s}}
faults:
  - repeat: {count}
    every: {every_s}s
    fault:
      choose:
        - {{fault: {{for: 5s, kind: latency, link: "client(a) -> broker", delay: 30ms}}}}
        - {{fault: {{for: 5s, kind: kill, broker: leader of orders/1}}}}
        - {{fault: {{for: 3s, kind: pause, broker: leader of orders/0}}}}
slo: ["lost == 0"]
"""


def plan(minutes: float) -> str:
    count = max(1, min(FAULTS_MAX, int(minutes)))
    return _PLAN.format(count=count, every_s=max(30, int(minutes * 60 / count)))


def memory_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def growth(samples_mib: Sequence[float], minutes: float) -> float:
    """Return by which share the memory grew from the settled beginning to the end."""
    count = len(samples_mib)
    ten = int(count * 10 / minutes) if minutes >= 30 else count // 3
    if count < 3 or ten < 1:
        return 0.0
    return median(samples_mib[-ten:]) / median(samples_mib[ten : 2 * ten]) - 1


def problems(memory: Mapping[str, Sequence[float]], minutes: float, judged_s: float) -> list[str]:
    bad = []
    for name, samples in memory.items():
        if (grown := growth(samples, minutes)) > GROWTH_MAX:
            bad.append(f"the memory of {name} grew by {grown:.0%}, more than {GROWTH_MAX:.0%}")
        if (most := max(samples)) > (limit := MEMORY_MIB_MAX["runner" if name == "runner" else "client"]):
            bad.append(f"{name} had {most:.0f} MiB, more than {limit:.0f}")
    return bad + (
        [f"the run was judged in {judged_s:.0f} s, more than {JUDGED_S_MAX:.0f}"] if judged_s > JUDGED_S_MAX else []
    )


def trial(seed: int, scratch: Path) -> Outcome:
    with running(plan(MINUTES), scratch, "--seed", str(seed), "--json") as command:
        command.wait_for("s  steady")
        memory: dict[str, list[float]] = defaultdict(list)
        while "reading the topics" not in command.stderr and not ended_within(command, EVERY_S):
            with suppress(OSError):  # a process may just have ended
                memory["runner"].append(memory_mib(command.process.pid))
                for name, processes in workers(command.run_dir.name).items():
                    memory[name].append(memory_mib(processes[0].pid))
        command.wait_for("judging the evidence")
        begun_s = time.monotonic()
        status, bad, _ = finished(command)
        judged_s = time.monotonic() - begun_s
        bad += problems(memory, MINUTES, judged_s)
        counts = {f"MiB of {name}": round(median(samples)) for name, samples in memory.items()}
        return Outcome(bad, 1, (judged_s,), counts | {"minutes": MINUTES, status: 1})


EXPERIMENT = Experiment(
    name="e8_soak",
    title="Soak with a fault every minute",
    figure="processes whose memory grew by more than 3 % or exceeds its limit, and judgements of more than 60 s",
    aim="0",
    trials=1,
    trial=trial,
    wall_s=MINUTES * 60 + 1800.0,
    takes_s=MINUTES * 60 + 180,
)

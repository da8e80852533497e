"""What a run costs: time to a ready cluster, to the verdict and for Spark; memory of brokers, harness and Spark.

Run by hand, on an otherwise idle host: ``make bench``. Figures wander by a third from run to run. The limits beside
them are for two cores with the images present.
"""

import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import docker
import docker.errors

from aftershock.harness.safety import ownership
from aftershock.workloads.load.process import WORKER

DEMO = [sys.executable, "-m", "aftershock.harness.cli", "run", "demo"]
MIB = 1 << 20


def resident_mib(pid: int) -> float:
    """A process's resident memory; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


def family(pid: int) -> dict[int, str]:
    """The process and its descendants, with what each is."""
    found = {pid: "runner"}
    try:
        children = [int(c) for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()]
    except OSError:
        return found
    for child in children:
        try:
            command = Path(f"/proc/{child}/cmdline").read_text(errors="replace")
        except OSError:
            continue
        kind = "worker" if WORKER[-1] in command else "spark" if "java" in command else "other"
        found[child] = kind
        found |= dict.fromkeys(family(child), kind)
    return found


class Memory(threading.Thread):
    """The most each kind of process held, sampled while the run lasts."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.most: dict[str, float] = {}
        self.done = threading.Event()

    def run(self) -> None:
        client = docker.from_env()
        while not self.done.wait(2):
            for pid, kind in family(self.pid).items():
                self._note(kind, resident_mib(pid))
            for container in client.containers.list(filters={"label": [ownership.RUN, "aftershock.node"]}):
                try:
                    usage = container.stats(stream=False, one_shot=True)["memory_stats"]
                except (ValueError, docker.errors.APIError):  # the container ended meanwhile: the answer is empty
                    continue
                cache = usage.get("stats", {}).get("total_inactive_file", 0)
                self._note("broker", (usage.get("usage", 0) - cache) / MIB)

    def _note(self, kind: str, mib: float) -> None:
        self.most[kind] = max(self.most.get(kind, 0.0), mib)


def main() -> None:
    with tempfile.TemporaryDirectory() as out:
        started_s, marks = time.monotonic(), {}
        process = subprocess.Popen([*DEMO, "--out", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        memory = Memory(process.pid)
        memory.start()
        assert process.stderr and process.stdout  # noqa: PT018 -- they are pipes
        for line in process.stderr:
            for mark in ("starting", "warmup", "ending", "starting Spark", "report:"):
                if mark in line:
                    marks.setdefault(mark, time.monotonic() - started_s)
        verdict = process.stdout.readline().strip()
        process.wait()
        total_s = time.monotonic() - started_s
        memory.done.set()
        memory.join()
    print(verdict)
    rows = [
        ("cluster ready, s", marks["warmup"] - marks["starting"], 12),
        ("demo to the verdict, s", total_s, 110),
        ("of which Spark and report, s", total_s - marks["starting Spark"], 15),
        ("broker, MiB", memory.most.get("broker", 0), 400),
        ("runner with Spark's driver side, MiB", memory.most.get("runner", 0), 300),
        ("client process, MiB", memory.most.get("worker", 0), 300),
        ("Spark's JVM, MiB", memory.most.get("spark", 0), 1024),
    ]
    for name, value, limit in rows:
        figure = f"{value:8.1f}   limit {limit:5}   ratio {value / limit:.2f}" if value else "not measured"
        print(f"{name:40} {figure}")
    if not all(value for _, value, _ in rows):
        sys.exit("a figure was not measured: correct this script")


if __name__ == "__main__":
    main()

"""Cost of a group's members: ``python tests/bench/bench_members.py [SECONDS]``.

In turns, a group of one member and a group of eight read what one producer sends at 150 records/s. Printed are, for
each client, the p99 of consume latency of both (medians over rounds, second half of each round) with their ratio, at
most 1.1, and the memory of a member: the proportional share (PSS) of its worker process, at most 60 MiB. A Java member
has a JVM in a container besides, whose resident memory is printed. Exits with 1 when a target is missed.
"""

import asyncio
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.assignments import java_command
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.lifecycle.launch import images_for, launch
from aftershock.harness.safety import ownership
from aftershock.tests.contract.load import Load, new_topic
from aftershock.workloads.load.fleet import Fleet

SECONDS, ROUNDS, PARTITIONS = 24, 3, 24
SIZES = (1, 8)
CLIENTS = ("reference", "confluent", "java")
PSS_MIB, TIMES = 60, 1.1


def pss_mib(pid: int) -> float:
    """Return the memory of a process, with its share of what it has in common with others (``smaps_rollup``)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def jvms_mib() -> list[float]:
    """Return the resident memory of the JVMs of Java clients, which are the ones with 64 MiB of heap."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if "\0-Xmx64m\0" in (folder / "cmdline").read_text(errors="replace"):
                status = (folder / "status").read_text(errors="replace").splitlines()
                found.append(next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024)
        except OSError:
            continue
    return found


def p99_ms(cluster: Cluster, home: Path, client: str, size: int, seconds: int) -> tuple[float, float, float]:
    """Return p99 of consume latency of a group of ``size`` members, PSS of a member, and the memory of its JVM."""
    load = Load(cluster, home, new_topic(cluster, home.name, PARTITIONS))
    produce = load.produce("sends", "reference", rate_per_s=150, keys=100)
    group: dict[str, Any] = {"group": home.name, "arm": "group", "members": size, "protocol": "consumer"}
    if client == "java":
        docker_client = next(iter(cluster.nodes.values())).container.client
        image = engine.java_client_image(docker_client, cluster.spec.kafka, print).name
        group["command"] = java_command(image, ownership.labels_of(cluster.run_id, home, keep=False))
    names = [f"member-{number}" for number in range(1, size + 1)]
    memory: list[float] = []

    async def watch(fleet: Fleet) -> None:
        await asyncio.sleep(seconds)
        memory.append(max(pss_mib(pid) for worker, pid in fleet.pids().items() if worker != produce.worker))
        memory.append(max(jvms_mib(), default=0.0))

    load.run([produce, *(load.consume(name, client, **group) for name in names)], seconds, during=watch)
    rows = load.of("group")
    late = sorted(rows, key=lambda row: row["intended_us"])[len(rows) // 2 :]
    return float(np.percentile([(row["done_us"] - row["intended_us"]) / 1e3 for row in late], 99)), *memory


def measure(cluster: Cluster, home: Path, client: str, seconds: int) -> bool:
    """Print a client's line of the table; return whether it keeps the limits."""
    rounds = [
        [p99_ms(cluster, home / f"{client}-{number}-{size}", client, size, seconds) for size in SIZES]
        for number in range(ROUNDS)
    ]
    one_ms, eight_ms = (float(np.median([of_round[place][0] for of_round in rounds])) for place in range(len(SIZES)))
    pss, jvm = (max(of_round[1][place] for of_round in rounds) for place in (1, 2))
    ratio = float(np.median([eight[0] / one[0] for one, eight in rounds]))
    beside = f", its JVM {jvm:.0f} MiB" if client == "java" else ""
    print(
        f"{client:10} p99 {one_ms:6.1f} ms with one member, {eight_ms:6.1f} with eight (x {ratio:.2f}, at most "
        f"{TIMES}); a member {pss:.0f} MiB (at most {PSS_MIB}){beside}"
    )
    return ratio <= TIMES and pss <= PSS_MIB


def main(seconds: int) -> int:
    """Launch a cluster and print the table; 1 when a target was missed."""
    client, spec = engine.connect(), ClusterSpec.of(ClusterPlan())
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        run_id = Path(home).name.lower()
        try:
            with closing(launch(spec, run_id, Path(home), images_for(client, spec, print), print)) as cluster:
                kept = [measure(cluster, Path(home), name, seconds) for name in CLIENTS]
                return 0 if all(kept) else 1
        finally:
            ownership.remove_run(client, run_id)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))

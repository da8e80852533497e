"""The reference clients beside confluent-kafka on a real cluster: ``python tests/bench/bench_arms.py [SECONDS]``.

Both producers send 150 records/s at the same time with the same settings, and are read; no fault. Records have keys:
without, KIP-794 fills one partition after the other, and a broker answers a connection's requests one by one, while
librdkafka spreads them over all brokers (measured: p50 6 ms less). Of the second half
the median and the p99 are shown, with their difference and ratio; of each worker its memory when the load had settled
and at the end (give 600 for the ten minutes in which nothing may grow); then how many records a second each client gets
acknowledged, in turns. Exits with 1 when a target of ours is missed.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np

from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.lifecycle.launch import images_for, launch
from aftershock.harness.safety import ownership
from aftershock.tests.contract.load import Load, new_topic
from aftershock.workloads.load.fleet import Fleet

SECONDS = 60
CLIENTS = ("reference", "confluent")
SETTLED_S = 20
GROWTH_MIB = 8.0
ROUNDS = 3
PRODUCER = Path(__file__).with_name("bench_producer.py")


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def side_by_side(load: Load, seconds: int) -> bool:
    """Run the four clients and print what they did; whether the targets are kept."""
    plain = {"rate_per_s": 150, "record_size_min": 1000, "record_size_max": 1000, "keys": 100}
    crew = [load.produce(f"{name}-produces", name, **plain) for name in CLIENTS]
    readers = [load.consume(f"{name}-consumes", name) for name in CLIENTS]
    mib: dict[str, list[float]] = {}

    async def watch(fleet: Fleet) -> None:
        settled_s = min(SETTLED_S, seconds // 2)
        for wait_s in (settled_s, seconds - settled_s):
            await asyncio.sleep(wait_s)
            for worker, pid in fleet.pids().items():
                mib.setdefault(worker, []).append(resident_mib(pid))

    load.run([*crew, *readers], seconds, during=watch)
    for worker, (settled, end) in sorted(mib.items()):
        print(f"{worker:20} {settled:6.1f} MiB settled, {end:6.1f} at the end ({end - settled:+.1f})")
    grown = max(end - settled for worker, (settled, end) in mib.items() if worker.startswith("reference"))
    latencies(load, "consumes")
    return latencies(load, "produces") and grown < GROWTH_MIB


def latencies(load: Load, does: str) -> bool:
    """Print the two clients' quantiles; whether the reference client keeps the limits."""
    ms: dict[str, np.ndarray] = {}
    for name in CLIENTS:
        rows = load.of(f"{name}-{does}")
        late = sorted(rows, key=lambda row: row["intended_us"])[len(rows) // 2 :]
        ms[name] = np.percentile([(row["done_us"] - row["intended_us"]) / 1e3 for row in late], [50, 99])
    (ours50, ours99), (theirs50, theirs99) = ms["reference"], ms["confluent"]
    print(
        f"{does:8} p50 {ours50:6.2f} ms against {theirs50:6.2f} ({ours50 - theirs50:+.2f} ms, at most +1); "
        f"p99 {ours99:6.2f} ms against {theirs99:6.2f} (x {ours99 / theirs99:.2f}, at most 1.2)"
    )
    return bool(ours50 - theirs50 <= 1 and ours99 <= 1.2 * theirs99)


def rates(bootstrap: str) -> bool:
    """Print records a second with acks=all, 16 of 1000 B a batch; whether ours is at least 0.6 of librdkafka's."""
    best: dict[str, float] = dict.fromkeys(CLIENTS, 0.0)
    for _ in range(ROUNDS):
        for name in CLIENTS:
            command = [sys.executable, str(PRODUCER), f"{name}-batched", bootstrap]
            told: Mapping[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            best[name] = max(best[name], told["records_per_s"])
    ratio = best["reference"] / best["confluent"]
    print(f"batched  {best['reference']:,.0f} records/s against {best['confluent']:,.0f} (x {ratio:.2f}, at least 0.6)")
    return ratio >= 0.6


def main(seconds: int) -> int:
    """Launch a cluster and print the table; 1 when a target was missed."""
    client, spec = engine.connect(), ClusterSpec.of(ClusterPlan())
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        run_id = Path(home).name.lower()
        try:
            with closing(launch(spec, run_id, Path(home), images_for(client, spec, print), print)) as cluster:
                new_topic(cluster, "bench", 4)
                load = Load(cluster, Path(home) / "load", new_topic(cluster, "orders", 12))
                return 0 if all([side_by_side(load, seconds), rates(cluster.bootstrap("a"))]) else 1  # both
        finally:
            ownership.remove_run(client, run_id)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))

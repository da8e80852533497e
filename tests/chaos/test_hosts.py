"""A plan whose clients run on further hosts, on a real cluster: the same evidence and verdict as of child processes."""

import json
from collections import Counter
from typing import Any

import pyarrow.parquet as pq
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

RATE, WORKERS = 120, 3
PLAN = f"""
name: several-hosts
topics: [{{name: orders, partitions: 12, replication: 3, config: {{min.insync.replicas: 2}}}}]
workloads:
  - name: orders
    produce: {{topic: orders, rate: {RATE}/s, record_size: 500}}
    consume: {{topic: orders, group: readers, members: {WORKERS}}}
    run_on: {{workers: {WORKERS}}}
    arms: {{librdkafka: {{}}, ours: {{client: reference}}}}
timing: {{warmup: {{min: 4s, max: 30s}}, steady: 8s, recovery: 20s}}
faults: [{{at: 0s, kind: kill, broker: leader of orders/0, for: 6s}}]
slo: ["lost == 0", "duplicate == 0", "co_owned == 0", "consume.latency p50 < 1s in steady", "produce.success >= 99%"]
"""


def test_three_hosts_give_one_verdict(aftershock: Any) -> None:
    """The rates add up to the plan's, each host has clients of each kind, and their clocks are exact."""
    command = aftershock(PLAN, "--json")
    code, stdout = command.finish()
    assert code == 0, stdout
    assert "" == command.left_behind()
    statuses = {check["id"]: check["status"] for check in json.loads(stdout)["checks"]}
    passed = {"harness/clocks", "slo/lost", "slo/duplicate", "slo/co_owned", "slo/consume.latency-p50-steady"}
    assert {"PASS"} == {statuses[check] for check in passed}
    run = json.loads((command.run_dir / "run.json").read_text())
    assert {f"orders-{n}" for n in range(1, WORKERS + 1)} == {host["name"] for host in run["hosts"]}
    rows = pq.read_table(command.run_dir / "outcomes", columns=["worker", "op", "arm", "intended_us"]).to_pylist()
    sent = [row for row in rows if row["op"] == "produce"]
    of_arm = Counter(row["arm"] for row in sent)
    span_s = (max(row["intended_us"] for row in sent) - min(row["intended_us"] for row in sent)) / 1e6
    for arm, count in of_arm.items():
        assert abs(count / span_s / RATE - 1) < 0.01, arm  # the schedule, not the host's speed
    workers = {row["worker"] for row in rows}
    assert all(workers.issuperset(host["clients"]) for host in run["hosts"])

"""Clusters with all layers by which machines can be made sick, without a fault: no check raises an alarm."""

import json
import os
from typing import Any

import pytest

RUNS = int(os.environ.get("AFTERSHOCK_CLEAN_RUNS", "1"))
HEALTHY = """
name: healthy-machines
cluster:
  racks: {a: 1, b: 1, c: 1}
  block_device: {layer: true}
  packets: true
  clocks: true
  hosts: true
  gc_pauses: true
topics: [{name: orders, partitions: 3, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: 500, rack: a, deadline: 20s}
    consume: {topic: orders, rack: b}
    arms: {confluent: {client: confluent}, reference: {client: reference}}
timing: {warmup: {min: 5s, max: 40s}, steady: 8s, recovery: 1s}
slo:
  - "lost == 0"
  - "produce.success >= 100%"
  - "produce.latency p95 < 200ms in steady"
  - "produce.gap < 2s in steady"
"""

pytestmark = [pytest.mark.engine, pytest.mark.nightly]


@pytest.mark.parametrize("seed", range(RUNS))
def test_layers_without_a_fault_raise_no_alarm(aftershock: Any, seed: int) -> None:
    command = aftershock(HEALTHY, "--seed", str(seed), "--json")
    code, stdout = command.finish()
    checks = json.loads(stdout)["checks"]
    assert [] == [(each["id"], each["subject"], each["why"]) for each in checks if each["status"] != "PASS"]
    assert {"integrity", "slo", "harness"} <= {each["kind"] for each in checks}
    assert 0 == code
    assert "" == command.left_behind()

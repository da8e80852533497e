"""A planted failure with twelve steps, minimised on a real cluster within the budget."""

import json
import subprocess
import sys
from typing import Any

import pytest

from aftershock.faults.plan.check import load_plan
from aftershock.tests.left import left_of

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(1500)]

TWELVE = """
name: twelve
topics: [{name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 40/s, record_size: 500, rack: a, deadline: 20s}
    consume: {topic: orders, group: readers, rack: b}
    arms: {only: {settings: {socket.timeout.ms: 6000}}}
timing: {warmup: {min: 3s, max: 30s}, steady: 4s, fault: 2s, recovery: 4s}
faults:
  - {at: 0s, for: 2s, kind: latency, link: "client(a) -> broker", delay: 20ms}
  - {at: 3s, for: 2s, kind: latency, link: "client(b) -> broker", delay: 20ms}
  - {at: 6s, for: 2s, kind: latency, link: "rack(a) <-> rack(b)", delay: 10ms}
  - {at: 9s, kind: reassign, topic: orders, rotate: 1}
  - {at: 16s, for: 2s, kind: latency, link: "replication(a) -> broker", delay: 15ms}
  - {at: 19s, for: 2s, kind: config, topic: orders, set: {max.message.bytes: 900000}}
  - {at: 22s, for: 2s, kind: latency, link: "client(a) <-> broker", delay: 30ms}
  - {id: silence, at: 26s, for: 5s, kind: pause, broker: leader of orders/0}
  - {at: 38s, for: 2s, kind: latency, link: "rack(b) <-> rack(c)", delay: 10ms}
  - {at: 41s, for: 2s, kind: latency, link: "client(a) -> broker", delay: 40ms}
  - {at: 44s, kind: reassign, topic: orders, rotate: 1}
  - {at: 50s, for: 2s, kind: latency, link: "client(b) -> broker", delay: 30ms}
slo: ["lost == 0", "produce.success >= 99%", "produce.gap < 2s"]
"""
BUDGET = "15m"  # The documented duration on two cores.


def test_twelve_steps_become_two_at_most(aftershock: Any) -> None:
    """The pause is isolated among eleven harmless faults, by the SLO that it violates, and nothing remains."""
    command = aftershock(TWELVE, "--seed", "7")
    code, _ = command.finish()
    run = command.run_dir
    assert 1 == code
    words = [
        "minimise",
        run.name,
        "--budget",
        BUDGET,
        "--out",
        str(command.out),
        "--check",
        "slo/produce.gap",
        "--json",
    ]
    made = subprocess.run(
        [sys.executable, "-m", "aftershock.harness.cli", *words], stdout=subprocess.PIPE, text=True, check=False
    )
    told = json.loads(made.stdout)
    assert (0, 12) == (made.returncode, told["faults"]["before"])
    assert told["faults"]["after"] <= 2
    small = load_plan(command.out / "minimise" / run.name / "plan.yaml").plan
    assert "silence" in [each.id for each in small.faults]  # type: ignore[union-attr]
    assert 1 == len(list((command.out / "corpus").glob("*.yaml")))
    runs = (command.out / "minimise" / run.name / "runs").glob("*/run.json")
    clusters = {json.loads(path.read_text())["cluster"] for path in runs}
    assert clusters
    assert [] == [left for cluster in clusters for left in left_of(cluster)]

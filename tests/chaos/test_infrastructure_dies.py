"""Early ends of a run: Toxiproxy dies during a fault, or the plan's stop condition is met."""

import json
from typing import Any

import docker
import pytest

from aftershock.harness.safety.ownership import RUN

pytestmark = pytest.mark.engine

PLAN = """
name: unlucky
cluster: {racks: {a: 1, b: 1}}
topics: [{name: orders, partitions: 3, replication: 2}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: 200, deadline: 5s}
timing: {warmup: {min: 1s, max: 1s}, steady: 2s, fault: 3s, recovery: 1s}
"""
SLOW = """
faults:
  - {id: slow, at: 0s, for: 8s, kind: latency, link: "client(a) -> broker", delay: 40ms}
"""
DEAD = """
abort: "registered_brokers < 2 for 1s"
faults:
  - {id: dead, at: 0s, for: 120s, kind: kill, broker: 2}
slo: ["lost == 0"]
"""


def test_toxiproxy_dies_in_a_fault(aftershock: Any) -> None:
    """The run is an ERROR, the message names the undos that failed with their commands, and nothing remains."""
    command = aftershock(PLAN + SLOW)
    command.wait_for("slow: in force")
    run_id = command.run_dir.name
    client = docker.from_env()
    (toxiproxy,) = [
        container
        for container in client.containers.list(filters={"label": f"{RUN}={run_id}"})
        if container.name.endswith("-toxiproxy")
    ]
    toxiproxy.kill()
    code, _ = command.finish()
    assert code == 3
    assert "slow could not be healed" in command.stderr
    assert "slow, by hand: curl -X DELETE http://127.0.0.1:" in command.stderr
    assert "" == command.left_behind(within_s=20)


def test_a_stop_condition_ends_the_run(aftershock: Any) -> None:
    """Two minutes of a dead broker end after a second, healed; the verdict names the condition and judges the data
    until then.
    """
    command = aftershock(PLAN + DEAD, "--json")
    code, stdout = command.finish()
    verdict = json.loads(stdout)
    checks = {check["id"]: check for check in verdict["checks"]}
    assert code == 2
    assert checks["harness/abort"]["status"] == "INCONCLUSIVE"
    assert "registered_brokers was 1" in checks["harness/abort"]["why"]
    assert checks["slo/lost"]["observed"] == 0
    journal = [json.loads(line) for line in (command.run_dir / "journal.jsonl").read_text().splitlines()]
    assert journal[-1]["state"] == "healed"

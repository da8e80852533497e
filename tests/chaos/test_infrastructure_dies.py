"""What dies outside the plan: Toxiproxy during a fault, a broker by another hand; and the plan's stop condition."""

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
ALONE = """
name: alone
topics: [{name: orders, partitions: 3, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: 200, acks: all, deadline: 20s}
    consume: {topic: orders}
timing: {warmup: {min: 2s, max: 20s}, steady: 3s, fault: 3s, recovery: 15s}
faults:
  - {at: 0s, for: 8s, kind: kill, broker: 2}
  - {id: again, at: 30s, for: 15s, kind: latency, link: "client(a) -> broker(3)", delay: 20ms}
slo: ["lost == 0"]
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


@pytest.mark.nightly
def test_a_broker_that_another_hand_kills_is_named(aftershock: Any) -> None:
    """The verdict says which broker left and when, and charges no client; it does not name the broker of the fault."""
    command = aftershock(ALONE, "--json")
    command.wait_for("again: in force")
    for broker in docker.from_env().containers.list(filters={"label": f"{RUN}={command.run_dir.name}"}):
        if broker.name.endswith("-k1"):
            broker.kill()
    _, stdout = command.finish()
    verdict = json.loads(stdout)
    (sentence,) = verdict["unplanned"]
    assert sentence.startswith("broker 1 left at ")
    assert sentence.endswith("s, not by us, and did not return")
    failed = [check["id"] for check in verdict["checks"] if check["status"] == "FAIL"]
    assert not [name for name in failed if name.startswith(("obligation/", "integrity/"))]
    events = [json.loads(line) for line in (command.run_dir / "events.jsonl").read_text().splitlines()]
    left = [line["broker"] for line in events if line["event"] == "broker_left"]
    assert {2, 1} == {*left}


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

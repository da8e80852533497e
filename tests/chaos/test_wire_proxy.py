"""The wire proxy in a run: every client's traffic passes it and meets its rules; its end is the end of the run."""

import json
import os
import signal
from typing import Any

import pytest

pytestmark = pytest.mark.engine

PLAN = """
name: proxied
topics: [{name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 40/s, record_size: 200, rack: a, deadline: 20s}
    consume: {topic: orders, group: readers, rack: b}
    arms:
      theirs: {client: confluent}
      ours: {client: reference}
      kafkas: {client: java}
timing: {warmup: {min: 3s, max: 40s}, steady: 3s, fault: 3s, recovery: 5s}
faults:
"""
LOST = "  - {{id: lost-{arm}, at: 0s, for: 6s, kind: drop_response, api: Produce, client: {arm}, probability: 0.1}}\n"
LATE = "  - {{id: late-{arm}, at: 8s, for: 5s, kind: delay_response, api: Fetch, client: {arm}, delay: 60ms}}\n"
OLD = "  - {{id: old-{arm}, at: 15s, for: 5s, kind: cap_versions, versions: {{Produce: 9}}, client: {arm}}}\n"
SLO = 'slo: ["lost == 0", "duplicate == 0", "order == 0", "produce.success >= 99%"]\n'
ARMS = ("theirs", "ours", "kafkas")


@pytest.mark.nightly
def test_the_rules_of_the_wire_proxy_affect_every_client(aftershock: Any) -> None:
    """librdkafka, the reference client and Kafka's own: each loses responses, waits for them, and meets an old
    broker.

    Each fault is witnessed and met by each client, and none of them loses or doubles a record.
    """
    faults = "".join(words.format(arm=arm) for words in (LOST, LATE, OLD) for arm in ARMS)
    command = aftershock(PLAN + faults + SLO, "--seed", "5", "--json")
    _, stdout = command.finish()
    checks = json.loads(stdout)["checks"]
    judged = [check for check in checks if check["kind"] in ("slo", "integrity", "witness", "exposure")]
    assert [] == [(check["id"], check["subject"], check["why"]) for check in judged if check["status"] != "PASS"]
    assert 2 * 3 * len(ARMS) == len([check for check in judged if check["kind"] in ("witness", "exposure")])
    assert "" == command.left_behind()


def test_a_run_whose_proxy_dies_is_an_error(aftershock: Any) -> None:
    """No verdict, a message that names the process that ended, and nothing remains."""
    plan = PLAN.replace("      ours: {client: reference}\n      kafkas: {client: java}\n", "")
    command = aftershock(plan + LATE.format(arm="theirs"))
    command.wait_for("steady")
    process = json.loads((command.run_dir / "wire_proxy.json").read_text())["process"]
    os.kill(int(process.partition(":")[0]), signal.SIGKILL)
    code, _ = command.finish()
    assert 3 == code
    assert "the wire proxy" in command.stderr
    assert "no client can reach the cluster" in command.stderr
    assert "" == command.left_behind()

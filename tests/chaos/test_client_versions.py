"""Two versions of one library as the arms of a plan, without permission to start programs."""

import json
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

PLAN = """\
name: versions
topics: [{name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 20/s, record_size: 300, rack: a, deadline: 20s}
    consume: {topic: orders, group: readers, rack: b}
    arms:
      old: {client: kafka-python, version: 3.0.6, settings: {session.timeout.ms: 6000}}
      new: {client: kafka-python, version: 3.0.12, settings: {session.timeout.ms: 6000}}
timing: {warmup: {min: 3s, max: 60s}, steady: 4s, fault: 3s, recovery: 8s}
faults:
  - {at: 0s, for: 3s, kind: kill_client, client: orders/old}
  - {at: 12s, for: 5s, kind: kill, broker: leader of orders/0}
slo: ["lost == 0", "duplicate == 0", "produce.success >= 99% for new"]
"""


def test_both_versions_are_loaded_killed_and_judged(aftershock: Any) -> None:
    command = aftershock(PLAN, "--json")
    _, stdout = command.finish()
    verdict = json.loads(stdout)
    judged = [check for check in verdict["checks"] if check["kind"] in ("slo", "integrity", "witness", "exposure")]
    # kafka-python counts no bytes by broker, so that it can't tell whether its traffic crossed a link
    wrong = [check for check in judged if check["status"] not in ("PASS", "INCONCLUSIVE")]
    assert [] == [(check["id"], check["subject"], check["why"]) for check in wrong]
    assert {"old", "new"} <= {check["arm"] for check in judged}
    assert "" == command.left_behind()

"""The ambiguous acknowledgement: a response is lost after the broker has applied the request."""

import json
from typing import Any

import pytest

pytestmark = pytest.mark.engine

PLAN = """
name: ambiguous
topics:
  - {name: once, partitions: 3, replication: 3, config: {min.insync.replicas: 2}}
  - {name: maybe-twice, partitions: 3, replication: 3, config: {min.insync.replicas: 2}}
workloads:
  - name: idempotent
    produce: {topic: once, rate: 60/s, record_size: 200, rack: a, deadline: 15s}
    consume: {topic: once, group: readers}
    arms: {arm: {}}
  - name: not-idempotent
    produce: {topic: maybe-twice, rate: 60/s, record_size: 200, rack: a, deadline: 15s, idempotence: false}
    consume: {topic: maybe-twice, group: others}
    arms: {arm: {}}
timing: {warmup: {min: 3s, max: 40s}, steady: 3s, fault: 3s, recovery: 4s}
faults:
  - {id: once, at: 0s, for: 6s, kind: drop_response, api: Produce, client: idempotent/arm, probability: 0.1}
  - {id: twice, at: 0s, for: 6s, kind: drop_response, api: Produce, client: not-idempotent/arm, probability: 0.1}
slo: ["lost == 0"]
"""


def test_only_the_idempotent_arm_writes_once(aftershock: Any) -> None:
    """Both arms lose the same responses: the idempotent arm has no duplicate, the other arm has duplicates, and may.

    Each arm is judged by its configuration, both faults are witnessed and met traffic, and no record is lost.
    """
    command = aftershock(PLAN, "--seed", "7", "--json")
    _, stdout = command.finish()
    checks = json.loads(stdout)["checks"]
    assert [] == [(check["id"], check["why"]) for check in checks if check["status"] == "FAIL"]
    by_name = {(check["id"], check["subject"]): check for check in checks}
    for fault in ("once", "twice"):
        for kind in ("witness", "exposure"):
            check = by_name[f"{kind}/{fault}", f"fault={fault}"]
            assert "PASS" == check["status"], check["why"]

    doubled = {check["subject"]: check for check in checks if check["id"] == "integrity/duplicate"}
    produced = {subject: check for subject, check in doubled.items() if subject.endswith("produce")}
    (safe,) = [check for subject, check in produced.items() if "not-idempotent" not in subject]
    (unsafe,) = [check for subject, check in produced.items() if "not-idempotent" in subject]
    assert ("PASS", 0) == (safe["status"], safe["observed"])
    assert "PASS" == unsafe["status"]
    assert unsafe["observed"] > 0
    assert "permitted without idempotence" in unsafe["why"]
    assert "" == command.left_behind()

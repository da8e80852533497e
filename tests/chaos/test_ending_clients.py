"""Programs that end by themselves or stand still for good, on a real cluster, beside a harmless twin."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

PROGRAM = Path(__file__).with_name("ending_client.py")
ARMS = ("rests", "crashes", "stands", "silent")
PLAN = """
name: ending-clients
topics: [{{name: orders, partitions: 6, replication: 3, config: {{min.insync.replicas: 2}}}}]
workloads:
  - name: orders
    produce: {{topic: orders, rate: 20/s, record_size: 200, rack: a, deadline: 10s}}
    consume: {{topic: orders, rack: b}}
    arms:
{arms}
timing: {{warmup: {{min: 3s, max: 15s}}, steady: 25s}}
faults: []
slo: ["produce.success >= 99%"]
"""


def plan() -> str:
    line = "      {}: {{client: exec, command: [{}, {}, {}]}}"
    return PLAN.format(arms="\n".join(line.format(arm, sys.executable, PROGRAM, arm) for arm in ARMS))


def test_each_fails_for_its_own_defect_and_the_twin_passes(aftershock: Any) -> None:
    """The run goes on for the others when a program crashes, whatever the load of the host."""
    command = aftershock(plan(), "--allow-exec", "--json")
    code, stdout = command.finish()
    assert code == 1
    assert "" == command.left_behind()
    assert "orders-crashes-produce ended by itself, and the run goes on without it" in command.stderr
    verdict = json.loads(stdout)
    failed = {(check["id"], check["arm"]): check["why"] for check in verdict["checks"] if check["status"] == "FAIL"}
    assert [] == [name for name, arm in failed if arm == "rests"]
    assert {"client/died"} == {name for name, arm in failed if arm == "crashes" and name.startswith("client")}
    assert "was killed by signal 11" in failed["client/died", "crashes"]
    assert "a pointer of the library is gone" in failed["client/died", "crashes"]
    assert "orders/1, orders/3, orders/5" in failed["obligation/stuck", "stands"]
    assert "got no result" in failed["obligation/stuck", "silent"]
    assert {"stands", "silent"} == {arm for name, arm in failed if name == "obligation/stuck"}
    assert ("slo/produce.success", "crashes") in failed
    passed = {(check["id"], check["arm"]) for check in verdict["checks"] if check["status"] == "PASS"}
    assert {("integrity/lost", "rests"), ("slo/produce.success", "rests")} <= passed

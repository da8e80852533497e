"""One plan with several kinds of client side by side, on a real cluster while leaders move."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

PROGRAM = Path(__file__).parents[2] / "docs" / "examples" / "exec_client.py"
PLAN = """
name: every-arm
topics: [{{name: orders, partitions: 12, replication: 3, config: {{min.insync.replicas: 2}}}}]
workloads:
  - name: orders
    produce: {{topic: orders, rate: 20/s, record_size: 500, rack: a, deadline: 20s}}
    consume: {{topic: orders, group: readers, rack: b}}
    arms:
      hints: {{client: reference, leader_discovery: response, client_rack: b}}
      metadata: {{client: reference, leader_discovery: metadata, fetch_session: false, read_replica: false}}
{arms}
  - name: positions
    commit: {{groups: 5, rate: 20/s, rack: a}}
    arms: {{{committers}}}
timing: {{warmup: {{min: 3s, max: 30s}}, steady: 4s, fault: 3s, recovery: 4s}}
faults:
  - {{at: 0s, kind: reassign, topic: orders, rotate: 1}}
  - {{at: 6s, kind: reassign, topic: orders, rotate: 1}}
slo: ["lost == 0", "duplicate == 0", "order == 0", "produce.success >= 99%", "commit.success >= 99%"]
"""
FOREIGN_ARMS = {
    "confluent": "      confluent: {client: confluent}",
    "java": "      java: {client: java}",
    "mine": f"      mine: {{client: exec, command: [{sys.executable}, {PROGRAM}]}}",
}
COMMITTERS = {"ours": "reference", "theirs": "confluent", "kafkas": "java"}


def plan_of(arms: Sequence[str], committers: Sequence[str]) -> str:
    """Return the plan with the two arms of the reference client, these foreign arms, and these committing arms."""
    return PLAN.format(
        arms="\n".join(FOREIGN_ARMS[arm] for arm in arms),
        committers=", ".join(f"{arm}: {{client: {COMMITTERS[arm]}}}" for arm in committers),
    )


def counters_of(run: Path, op: str) -> dict[str, dict[str, int]]:
    """Return the closing counters of each arm."""
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["event"] == "counters" and line["op"] == op]
    return {line["arm"]: line["counters"] for line in told}


@pytest.mark.nightly
def test_clients_run_the_same_plan(aftershock: Any) -> None:
    """No client loses, doubles or reorders a record; only the arm with hints accepts hints."""
    command = aftershock(plan_of([*FOREIGN_ARMS], [*COMMITTERS]), "--allow-exec", "--json")
    _, stdout = command.finish()
    verdict = json.loads(stdout)
    judged = [check for check in verdict["checks"] if check["kind"] in ("slo", "integrity", "witness")]
    assert [] == [(check["id"], check["subject"], check["why"]) for check in judged if check["status"] != "PASS"]
    assert "" == command.left_behind()

    produced = counters_of(command.run_dir, "produce")
    assert {"hints", "metadata", *FOREIGN_ARMS} == {*produced}
    assert 0 < produced["hints"]["hints_accepted"]
    assert 0 == produced["metadata"].get("hints_offered", 0)
    assert 0 < produced["metadata"]["retries_backed_off"]
    consumed = counters_of(command.run_dir, "consume")
    assert 0 < consumed["hints"]["fetches_incremental"]
    assert 0 == consumed["metadata"].get("fetches_incremental", 0)
    assert 0 == consumed["metadata"].get("replica_switched", 0)
    assert {*COMMITTERS} == {*counters_of(command.run_dir, "commit")}


def test_a_program_needs_permission(aftershock: Any) -> None:
    """Without --allow-exec no process is started, and the error names the arm, its program and the option."""
    command = aftershock(plan_of(["mine"], ["ours"]))
    code, _ = command.finish()
    assert 3 == code
    assert "the arm `mine` of workload `orders` would start a program" in command.stderr
    assert "--allow-exec" in command.stderr
    assert not command.out.exists()

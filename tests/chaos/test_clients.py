"""Faults on clients in one run: each kind of client is hit, one arm is not, and no record is lost."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.engine

PROGRAM = Path(__file__).parents[2] / "docs" / "examples" / "exec_client.py"
PLAN = f"""
name: clients
topics: [{{name: orders, partitions: 6, replication: 3, config: {{min.insync.replicas: 2}}}}]
workloads:
  - name: orders
    produce: {{topic: orders, rate: 20/s, record_size: 300, rack: a, deadline: 20s}}
    consume: {{topic: orders, group: readers, rack: b}}
    arms:
      killed: {{client: confluent, settings: {{session.timeout.ms: 6000}}}}
      frozen: {{client: reference}}
      program: {{client: exec, command: [{sys.executable}, {PROGRAM}], settings: {{session.timeout.ms: 6000}}}}
      spared: {{client: confluent}}
  - name: positions
    commit: {{groups: 4, rate: 10/s, rack: a}}
    arms: {{committing: {{client: confluent}}}}
timing: {{warmup: {{min: 3s, max: 30s}}, steady: 4s, fault: 3s, recovery: 4s}}
faults:
  - {{at: 0s, for: 3s, kind: kill_client, client: orders/killed}}
  - {{at: 0s, for: 3s, kind: kill_client, client: program, op: produce}}
  - {{at: 0s, for: 3s, kind: kill_client, client: committing}}
  - {{at: 0s, for: 3s, kind: pause_client, client: frozen}}
  - {{at: 14s, kind: disconnect_client, client: program}}
slo: ["lost == 0", "duplicate == 0", "produce.success >= 99% for spared", "produce.success >= 99% for frozen"]
"""


def rows(run: Path, worker: str) -> list[dict[str, Any]]:
    return list(pq.read_table(run / "outcomes" / f"part-{worker}.parquet").to_pylist())


@pytest.mark.nightly  # Killing a client is among the kinds of the smoke tier.
def test_killed_and_frozen_clients_continue_without_loss(aftershock: Any) -> None:
    """Witnessed, met and healed; no client loses a record; killed clients continue with the next number."""
    command = aftershock(PLAN, "--allow-exec", "--json")
    _, stdout = command.finish()
    verdict = json.loads(stdout)
    judged = [check for check in verdict["checks"] if check["kind"] in ("slo", "integrity", "witness", "exposure")]
    assert [] == [(check["id"], check["subject"], check["why"]) for check in judged if check["status"] != "PASS"]
    assert "" == command.left_behind()
    for worker in ("orders-killed-produce", "orders-program-produce", "positions-committing-commit"):
        told = rows(command.run_dir, worker)
        assert [row["seq"] for row in told] == list(range(len(told)))
        assert {"CLIENT_DOWN"} <= {row["error"] for row in told}
        assert "ok" == told[-1]["status"]
    for worker in ("orders-frozen-produce", "orders-spared-produce"):
        assert {"ok"} == {row["status"] for row in rows(command.run_dir, worker)}

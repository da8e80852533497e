"""SIGINT or SIGTERM at every stage of a run: exit 130, no running process, and readable evidence."""

import json
import signal
from typing import Any

import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.engine

PLAN = """
name: interrupted
topics: [{name: orders, partitions: 3, replication: 3}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: 200}
    consume: {topic: orders}
timing: {warmup: {min: 1s, max: 1s}, steady: 4s, fault: 3s, recovery: 1s}
faults:
  - {id: slow, at: 0s, for: 4s, kind: latency, link: "client(a) -> broker", delay: 40ms}
  - {id: dead, at: 0s, for: 4s, kind: kill, broker: any broker except leader of orders/0}
"""
STAGES = {
    "launch": "starting 3 Kafka nodes",
    "steady": "s  steady",
    "fault": "dead: in force",
    "analysis": "starting Spark",
}


LONG = ("steady", "analysis")


@pytest.mark.parametrize(
    "stage", [pytest.param(stage, marks=pytest.mark.nightly if stage in LONG else ()) for stage in STAGES]
)
def test_an_interrupt_leaves_nothing_running(aftershock: Any, stage: str) -> None:
    """Interrupted during launch, in steady (by SIGTERM), with two faults in force, and while Spark starts."""
    command = aftershock(PLAN)
    command.wait_for(STAGES[stage])
    if stage == "fault":
        command.wait_for("slow: in force")
    command.process.send_signal(signal.SIGTERM if stage == "steady" else signal.SIGINT)
    code, _ = command.finish()
    assert 130 == code
    assert "" == command.left_behind()
    if stage in ("steady", "fault"):
        assert "interrupted" == command.facts()["status"]
        rows = sum(pq.read_metadata(part).num_rows for part in (command.run_dir / "outcomes").glob("*.parquet"))
        assert rows > 60
    if stage == "fault":
        lines = [json.loads(line) for line in (command.run_dir / "journal.jsonl").read_text().splitlines()]
        assert {"slow": "healed", "dead": "healed"} == {line["fault"]: line["state"] for line in lines}
    if stage == "analysis":
        assert "complete" == command.facts()["status"]

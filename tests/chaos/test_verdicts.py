"""Runs on a real cluster that end in each verdict for a planted reason."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from toxiproxy.api import APIConsumer

pytestmark = pytest.mark.engine

PLAN = """
name: short
topics: [{name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 80/s, record_size: 200, rack: a, deadline: 15s}
    consume: {topic: orders, group: readers, rack: b}
    arms: {only: {settings: {socket.timeout.ms: 6000}}}
timing: {warmup: {min: 3s, max: 40s}, steady: 4s, fault: 3s, recovery: 3s}
"""

NINE_KINDS = """
faults:
  - {at: 0s, for: 4s, kind: latency, link: "client(a) -> broker", delay: 40ms, jitter: 10ms}
  - {at: 1s, for: 4s, kind: latency, link: "rack(a) <-> rack(b)", delay: 20ms}
  - {at: 7s, for: 5s, kind: pause, broker: any broker except controller}
  - {at: 16s, for: 5s, kind: kill, broker: leader of orders/0}
  - {at: 34s, kind: elect, topic: orders}
  - {at: 38s, kind: reassign, topic: orders, rotate: 1}
  - {at: 44s, for: 4s, kind: refuse, link: "client(a) -> broker(2)"}
  - {at: 50s, for: 5s, kind: cut, rack: c}
  - {at: 60s, for: 3s, kind: stop, broker: leader of orders/0}
  - {at: 74s, kind: restart, broker: leader of orders/1}
"""
THREE_KINDS = """
faults:
  - {at: 0s, for: 4s, kind: latency, link: "client(a) -> broker", delay: 40ms, jitter: 10ms}
  - {at: 1s, for: 4s, kind: latency, link: "rack(a) <-> rack(b)", delay: 20ms}
  - {at: 6s, for: 4s, kind: kill, broker: leader of orders/0}
  - {at: 22s, kind: elect, topic: orders}
"""
SLOS = """
slo:
  - "lost == 0"
  - "order == 0"
  - "produce.success >= 95%"
  - "produce.gap < 30s"
"""


def checks_of(verdict: dict[str, Any], status: str) -> dict[str, dict[str, Any]]:
    return {check["id"]: check for check in verdict["checks"] if check["status"] == status}


def judge_again(run: Path) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "aftershock.harness.cli", "verdict", str(run), "--json"]
    judged = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    print(judged.stderr)
    return judged.returncode, json.loads(judged.stdout)


def spoil_deliveries(run: Path) -> tuple[list[int], list[int]]:
    """Delete one consume row and duplicate another; return both as [producer_id, seq]."""
    part = next((run / "outcomes").glob("*consume*.parquet"))
    table = pq.read_table(part)
    lost, doubled = table.slice(100, 1), table.slice(200, 1)
    rest = table.filter(pc.invert(pc.equal(pa.array(range(len(table))), 100)))
    pq.write_table(pa.concat_tables([rest, doubled]), part)
    return [[row["producer_id"], row["seq"]] for row in (*lost.to_pylist(), *doubled.to_pylist())]  # type: ignore[return-value]


@pytest.mark.parametrize("faults", [THREE_KINDS, pytest.param(NINE_KINDS, marks=pytest.mark.nightly)], ids=["3", "9"])
def test_kinds_take_effect_heal_and_lose_no_record(aftershock: Any, faults: str) -> None:
    """Several kinds, two overlapping: each is witnessed, met and healed, and every acknowledged record is delivered.

    Then the evidence is altered: a deleted and a duplicated delivery are found by id.
    """
    command = aftershock(PLAN + faults + SLOS, "--seed", "3", "--json")
    code, stdout = command.finish()
    verdict = json.loads(stdout)
    assert {} == checks_of(verdict, "FAIL")
    assert {} == {name: c["why"] for name, c in checks_of(verdict, "INCONCLUSIVE").items() if c["kind"] != "harness"}
    assert code in {0, 2}
    assert faults.count("kind:") == len([check for check in verdict["checks"] if check["kind"] == "witness"])
    assert "" == command.left_behind()
    assert f"run: {command.run_dir}" == command.stderr.splitlines()[-1]

    lost, doubled = spoil_deliveries(command.run_dir)
    code, verdict = judge_again(command.run_dir)
    failed = checks_of(verdict, "FAIL")
    assert 1 == code
    assert [lost] == failed["integrity/lost"]["samples"]
    assert [doubled] == failed["integrity/duplicate"]["samples"]


@pytest.mark.nightly
def test_an_slo_that_is_missed_fails_the_run(aftershock: Any) -> None:
    """Three replicas behind a proxy acknowledge no record within a millisecond: exit 1, by that check only."""
    command = aftershock(PLAN + 'slo: ["produce.latency p50 < 1ms in steady", "lost == 0"]')
    code, stdout = command.finish()
    assert 1 == code
    assert stdout.startswith("FAIL")
    verdict = json.loads((command.run_dir / "verdict.json").read_text())
    assert {"slo/produce.latency-p50-steady"} == set(checks_of(verdict, "FAIL"))
    assert "" == command.left_behind()


@pytest.mark.nightly
def test_a_toxic_that_vanishes_makes_the_run_inconclusive(aftershock: Any) -> None:
    """The toxic is deleted over Toxiproxy's API while it should be in force: exit 2, and the witness is named."""
    faults = 'faults: [{id: slow, at: 0s, for: 6s, kind: latency, link: "client(a) -> broker", delay: 40ms}]\n'
    command = aftershock(PLAN + faults + 'slo: ["produce.latency p50 < 2s in fault/slow"]')
    command.wait_for("slow: in force")
    delete_toxic(command.facts()["toxiproxy"], "client_a-k2", "slow:client_a-k2:upstream")
    code, stdout = command.finish()
    assert 2 == code
    assert "witness/slow" in stdout
    undecided = checks_of(json.loads((command.run_dir / "verdict.json").read_text()), "INCONCLUSIVE")
    assert {"witness/slow", "slo/produce.latency-p50-fault/slow"} <= set(undecided)
    assert "client_a-k2" in undecided["witness/slow"]["why"]
    assert "" == command.left_behind()


def delete_toxic(url: str, proxy: str, name: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    api = type("Consumer", (APIConsumer,), {"host": host, "port": port})
    assert 204 == api.delete(f"/proxies/{proxy}/toxics/{name}", timeout=5).status_code


@pytest.mark.nightly
def test_a_rehearsal_injects_nothing(aftershock: Any) -> None:
    """Every witness is negative, no undo is open, and the SLOs of the fault windows hold."""
    faults = """
faults:
  - {id: slow, at: 0s, for: 4s, kind: latency, link: "client(a) -> broker", delay: 40ms, jitter: 10ms}
  - {id: dead, at: 1s, for: 4s, kind: kill, broker: leader of orders/0}
slo: ["produce.gap < 2s in fault", "lost == 0", "recovery < 2s after dead"]
"""
    command = aftershock(PLAN + faults, "--rehearse", "--json")
    _, stdout = command.finish()
    verdict = json.loads(stdout)
    undecided = checks_of(verdict, "FAIL") | checks_of(verdict, "INCONCLUSIVE")
    assert set() == {name for name, check in undecided.items() if check["kind"] != "harness"}
    assert {"witness/slow", "witness/dead"} <= set(checks_of(verdict, "PASS"))
    lines = [json.loads(line) for line in (command.run_dir / "journal.jsonl").read_text().splitlines()]
    assert {"nothing"} == {line["undo"]["verb"] for line in lines}

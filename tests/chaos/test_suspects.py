"""A stop of the load generator is not blamed on Kafka; a pause of the brokers of the same length is."""

import json
import signal
from typing import Any

import pytest

from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.world.client_processes import send_signal, workers

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

PLAN = """
name: suspects
cluster: {racks: {a: 1}}
topics: [{name: orders, partitions: 3, replication: 1}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 100/s, record_size: 200, deadline: 20s}
    arms: {only: {client: reference}}
timing: {warmup: {min: 3s, max: 30s}, steady: 25s, fault: 3s, recovery: 2s}
slo: ["lost == 0", "produce.latency max < 500ms"]
"""
PAUSE = "faults: [{id: pause, at: 0s, for: 900ms, kind: pause, broker: 1}]\n"


def latency_check(command: Any) -> dict[str, Any]:
    checks = json.loads(command.finish()[1])["checks"]
    print([(check["id"], check["status"], check["why"]) for check in checks if check["status"] != "PASS"])
    (check,) = [check for check in checks if check["id"] == "slo/produce.latency-max"]
    return dict(check)


def test_a_stopped_producer_is_a_suspect(aftershock: Any) -> None:
    """``kill -STOP`` of the producer process for 0.9 s makes a maximum latency of 500 ms INCONCLUSIVE."""
    command = aftershock(PLAN, "--json")
    command.wait_for("s  steady")
    (processes,) = workers(command.run_dir.name).values()
    still_lacking(lambda: "the steady phase has lasted some seconds", 5.0)
    send_signal(processes, signal.SIGSTOP)
    still_lacking(lambda: "the stop is over", 0.9)
    send_signal(processes, signal.SIGCONT)
    check = latency_check(command)
    assert check["status"] == "INCONCLUSIVE"
    assert check["why"].startswith("orders-only-produce stood still for 0.")


def test_a_paused_broker_is_a_failure(aftershock: Any) -> None:
    check = latency_check(aftershock(PLAN + PAUSE, "--json"))
    assert check["status"] == "FAIL"
    assert check["observed"] is None or check["observed"] > 500

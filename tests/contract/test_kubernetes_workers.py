"""Clients in pods beside brokers in pods: one verdict, exact clocks, and nothing left; a pod that ends is told."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from aftershock.harness.cluster import engine
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety.ownership import RUN
from aftershock.tests.local_kubernetes import objects, running

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(600)]

RATE, WORKERS = 120, 3
PLAN = f"""
name: pods-of-clients
topics: [{{name: orders, partitions: 12, replication: 3, config: {{min.insync.replicas: 2}}}}]
workloads:
  - name: orders
    produce: {{topic: orders, rate: {RATE}/s, record_size: 500}}
    consume: {{topic: orders, group: readers, members: {WORKERS}}}
    run_on: {{kubernetes: {{workers: {WORKERS}}}}}
    arms: {{librdkafka: {{}}, ours: {{client: reference}}}}
timing: {{warmup: {{min: 4s, max: 60s}}, steady: 8s, recovery: 20s}}
faults: [{{at: 0s, kind: kill, broker: leader of orders/0, for: 6s}}]
slo: ["lost == 0", "duplicate == 0", "co_owned == 0", "produce.success >= 99%"]
"""


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    engine.worker_image(engine.connect(), print)
    with running(), closing(Api()) as api:
        yield api


@pytest.fixture
def unchanged(api: Api) -> Iterator[None]:
    """Assert that a test leaves no object of ours."""
    before = objects(api)
    yield
    assert before == objects(api)


def started(tmp_path: Path) -> "subprocess.Popen[str]":
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)
    words = ["run", str(plan), "--on", "kubernetes", "--out", str(tmp_path / "runs"), "--json"]
    command = [sys.executable, "-m", "aftershock.harness.cli", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("unchanged")
def test_clients_in_pods_give_one_verdict(tmp_path: Path) -> None:
    stdout, stderr = started(tmp_path).communicate()
    verdict = json.loads(stdout or "{}")
    statuses = {check["id"]: check["status"] for check in verdict.get("checks", ())}
    judged = {check: statuses.get(check) for check in ("slo/lost", "slo/duplicate", "slo/co_owned", "harness/clocks")}
    assert {"PASS"} == {*judged.values()}, stderr
    (home,) = (tmp_path / "runs").glob("2*")
    run = json.loads((home / "run.json").read_text())
    assert [f"orders-{n}" for n in range(1, WORKERS + 1)] == [host["name"] for host in run["hosts"]]
    rows = pq.read_table(home / "outcomes", columns=["worker", "op", "arm", "intended_us"]).to_pylist()
    for arm in ("librdkafka", "ours"):
        due = [row["intended_us"] for row in rows if (row["op"], row["arm"]) == ("produce", arm)]
        assert abs(len(due) / ((max(due) - min(due)) / 1e6) / RATE - 1) < 0.01
    workers = {row["worker"] for row in rows}
    assert all(workers.issuperset(host["clients"]) for host in run["hosts"])


@pytest.mark.usefixtures("unchanged")
def test_a_pod_of_clients_that_is_deleted_ends_the_run(api: Api, tmp_path: Path) -> None:
    """Its evidence is incomplete, which is no verdict on Kafka."""
    runner = started(tmp_path)

    def not_loaded() -> str:
        phases = [path.read_text() for path in (tmp_path / "runs").glob("2*/events.jsonl")]
        return "" if any('"phase": "steady"' in text for text in phases) else "no load yet"

    assert "" == still_lacking(not_loaded, 120.0)
    (pod,) = [item for item in api.objects("Pod", None, RUN) if item["metadata"]["name"] == "worker-2"]
    api.delete("Pod", pod["metadata"]["namespace"], "worker-2", grace_s=0)
    _, stderr = runner.communicate()
    assert 3 == runner.returncode, stderr
    assert "the host orders-2 of the clients ended early" in stderr

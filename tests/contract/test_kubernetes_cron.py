"""A plan that a CronJob runs inside a Kubernetes cluster: its exit code, its result, and what it leaves."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from aftershock.harness.cluster import engine
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.kafka.admin import still_lacking
from aftershock.tests.local_kubernetes import CI, running

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(900)]

NAMESPACE = "cron"
PLAN = """\
name: ours
topics: [{name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s}
    consume: {topic: orders}
timing: {warmup: {min: 3s, max: 60s}, steady: 3s, recovery: 10s}
faults: [{at: 0s, kind: kill, broker: 1, for: 4s}]
slo: ["LIMIT"]
"""


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    engine.runner_image(engine.connect(), print)
    with running(), closing(Api()) as api:
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        # of images that no registry has, only the nodes tell
        kubectl("create", "clusterrole", NAMESPACE, "--verb=list", "--resource=nodes")
        kubectl(
            "create",
            "clusterrolebinding",
            NAMESPACE,
            f"--clusterrole={NAMESPACE}",
            f"--serviceaccount={NAMESPACE}:ours",
        )
        yield api
        kubectl("delete", "clusterrole,clusterrolebinding", NAMESPACE)
        api.delete("Namespace", None, NAMESPACE)
        assert "" == still_lacking(lambda: NAMESPACE if api.find("Namespace", None, NAMESPACE) else "", 60.0)


def kubectl(*words: str, text: str | None = None) -> str:
    """Run the kubectl of the cluster of `ci/kubernetes`."""
    status = subprocess.run([CI, "status"], capture_output=True, text=True, check=True)
    (program,) = Path(status.stdout.strip()).parents[1].glob("bin-*/kubectl")
    command = [program, "--namespace", NAMESPACE, *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, env=os.environ).stdout


@pytest.mark.parametrize(
    ("limit", "status", "ended"),
    [("lost == 0", "PASS", "Complete"), ("produce.latency max < 500ms in fault", "FAIL", "Failed")],
)
def test_a_job_runs_the_plan(limit: str, status: str, ended: str, api: Api, tmp_path: Path) -> None:
    """The exit code of the run is that of the job, and only the objects of the CronJob stay."""
    plan = tmp_path / "ours.yaml"
    plan.write_text(PLAN.replace("LIMIT", limit))
    words = ["kubernetes", "cronjob", str(plan), "--namespace", NAMESPACE, "--schedule", "0 0 31 2 *"]
    command = [sys.executable, "-m", "aftershock.harness.cli", *words]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kubectl("apply", "-f", "-", text=printed)
    job = f"now-{status.lower()}"
    kubectl("create", "job", "--from=cronjob/ours", job)

    def unfinished() -> str:
        conditions = json.loads(kubectl("get", "job", job, "-o", "json"))["status"].get("conditions") or ()
        return "" if any(one["type"] == ended and one["status"] == "True" for one in conditions) else str(conditions)

    assert "" == still_lacking(unfinished, 300.0), kubectl("logs", f"job/{job}")
    result = api.get("ConfigMap", NAMESPACE, "ours-result")["data"]
    assert status == result["status"], kubectl("logs", f"job/{job}")
    assert f'aftershock_run_status{{plan="ours",status="{status.lower()}"}} 1.0' in result["aftershock.prom"]
    assert status == json.loads(result["verdict.json"])["status"]
    kubectl("delete", "job", job)
    kinds = ("ConfigMap", "Service", "PersistentVolumeClaim")
    left = {item["metadata"]["name"] for kind in kinds for item in api.objects(kind, NAMESPACE)}
    assert {"kube-root-ca.crt", "ours", "ours-result"} == left

"""A run with Docker's default 64 MiB of shared memory, and a verdict on it while it lasts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aftershock.harness.kafka.admin import still_lacking

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

PLAN = """
name: small-memory
topics: [{name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 600/s, record_size: 100, rack: a, deadline: 10s}
    consume: {topic: orders, group: readers, rack: b}
timing: {warmup: {min: 3s, max: 20s}, steady: 20s, fault: 3s, recovery: 45s}
faults:
  - {at: 0s, for: 4s, kind: latency, link: "client(a) -> broker", delay: 30ms}
  - {at: 15s, for: 4s, kind: kill, broker: leader of orders/0}
slo: ["lost == 0", "order == 0"]
"""
CLI = (sys.executable, "-m", "aftershock.harness.cli")
MOUNT = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root")
def test_a_run_in_64_mib_of_shared_memory_passes_and_is_judged_meanwhile(tmp_path: Path) -> None:
    """The run says beforehand what fits. A mount namespace with a small /dev/shm stands for a container."""
    (tmp_path / "plan.yaml").write_text(PLAN)
    out = tmp_path / "runs"
    command = [*CLI, "run", str(tmp_path / "plan.yaml"), "--out", str(out)]
    with (tmp_path / "stderr").open("w") as stderr:
        run = subprocess.Popen(["unshare", "-m", "sh", "-c", MOUNT, "sh", *command], stderr=stderr)
        try:

            def unsaved() -> str:
                events = next(out.glob("*/events.jsonl"), None)
                saved = events is not None and '"saved"' in events.read_text()
                return "" if saved or run.poll() is not None else "no rows are saved yet"

            assert "" == still_lacking(unsaved, 240)
            home = next(out.iterdir())
            so_far = subprocess.run(
                [*CLI, "verdict", "--so-far", str(home), "--json"], capture_output=True, text=True, check=False
            )
            print(so_far.stdout, so_far.stderr)
            code = run.wait(300)
        finally:
            run.kill()
            run.wait()
            print((tmp_path / "stderr").read_text())
    said = (tmp_path / "stderr").read_text()
    assert "in /dev/shm (67.1 MB free)" in said
    assert "/2 faults" in said
    verdict = json.loads(so_far.stdout)
    assert "the run is in progress" == verdict["provisional"]["state"]
    assert {"integrity/lost", "slo/lost", "harness/complete"} <= {*verdict["provisional"]["not_judged"]}
    assert "FAIL" not in {check["status"] for check in verdict["checks"]}
    final = json.loads((home / "verdict.json").read_text())
    assert "provisional" not in final
    # a busy host makes the run INCONCLUSIVE, but no check of records or faults
    assert all(
        check["status"] == "PASS" for check in final["checks"] if check["kind"] in ("slo", "integrity", "witness")
    )
    harness = {check["status"] for check in final["checks"] if check["kind"] == "harness"}
    assert (0, "PASS") == (code, final["status"]) or (code == 2 and "INCONCLUSIVE" in harness)
    assert "complete" == json.loads((home / "run.json").read_text())["status"]

"""Random plans on a real cluster: every fault is healed, and the verdict has reasons."""

import json
from typing import Any

import pytest

from aftershock.tests.random_plans import drawable, random_plan

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

CLUSTERS: tuple[dict[str, Any], ...] = ({}, {"disks": {"count": 2}}, {"controllers": 3})
ELSEWHERE = {"rolling_upgrade"}  # Upgrades need the image of another version; tests/chaos/kinds covers them.
LONGEST_MS = 70_000
PASS, FAIL, INCONCLUSIVE = 0, 1, 2


def plan(seed: int) -> str:
    frame = {
        "name": "random",
        "cluster": CLUSTERS[seed % len(CLUSTERS)],
        "topics": [{"name": "orders", "partitions": 6, "replication": 3, "config": {"min.insync.replicas": 2}}],
        "workloads": [
            {
                "name": "orders",
                "produce": {"topic": "orders", "rate": "50/s", "record_size": 200, "deadline": "20s"},
                "consume": {"topic": "orders", "group": "readers"},
                "arms": {"baseline": {"settings": {"session.timeout.ms": 6000}}},
            }
        ],
        "timing": {"warmup": {"min": "2s", "max": "30s"}, "steady": "3s", "fault": "2s", "recovery": "3s"},
        "slo": ["lost == 0"],
    }
    kinds = set(drawable(frame)) - ELSEWHERE
    return random_plan(seed, frame, kinds, longest_ms=LONGEST_MS)


@pytest.mark.parametrize("seed", range(10))
def test_random_plans(aftershock: Any, seed: int) -> None:
    """Ten plans of up to a minute of faults each, in turn on combined nodes, on bounded disks and on isolated
    controllers.
    """
    command = aftershock(plan(seed), "--seed", str(seed), "--json")
    code, stdout = command.finish()
    assert code in (PASS, FAIL, INCONCLUSIVE)
    assert "" == command.left_behind()
    journal = [json.loads(line) for line in (command.run_dir / "journal.jsonl").read_text().splitlines()]
    last = {line["fault"]: line["state"] for line in journal}
    touched = {line["fault"] for line in journal if line["state"] == "intended"}
    assert dict.fromkeys(touched, "healed") == {fault: last[fault] for fault in touched}
    checks = json.loads(stdout)["checks"]
    unexplained = [check for check in checks if check["status"] != "PASS" and not check["why"]]
    assert [] == unexplained
    assert code == PASS or [check for check in checks if check["status"] != "PASS"]

"""Groups of every client that read two topics, by name and by a pattern, while a member leaves and returns."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from aftershock.tests.chaos.group_settings import SHORT_SESSIONS

pytestmark = pytest.mark.engine

PROGRAM = Path(__file__).parents[2] / "docs" / "examples" / "exec_client.py"
CLIENTS = ("reference", "confluent", "java", "exec")
HEAD = (
    SHORT_SESSIONS
    + """
name: two-topics
topics:
  - {{name: orders, partitions: 6, replication: 3, config: {{min.insync.replicas: 2}}}}
  - {{name: returns, partitions: 6, replication: 3, config: {{min.insync.replicas: 2}}}}
workloads:
  - name: shop
    produce: {{topics: [orders, returns], rate: 15/s, record_size: 200, rack: a, deadline: 20s}}
    consume: {{{subscription}, group: readers, members: 3, commit: {{every: 1s}}, racks: [a, b]}}
    arms: {arms}
{more}
timing: {{warmup: {{min: 5s, max: 60s}}, steady: 6s, recovery: 8s}}
faults:
  - at: 0s
    together: {faults}
slo: ["lost == 0", "co_owned == 0", "fenced == 0", "stale_assignment == 0"]
"""
)
SUBSCRIPTIONS = {
    "names": "topics: [orders, returns]",
    "pattern": "pattern: '(ord|ret).*'",
    "pattern-consumer": "pattern: '(ord|ret).*', protocol: consumer",
    "pattern-classic": "pattern: '(ord|ret).*', protocol: classic",
}


def plan(subscription: str, clients: tuple[str, ...] = CLIENTS, more: str = "") -> str:
    """Return a plan with an arm for each client, whose second member leaves for eight seconds."""
    arms = {client: f"{{client: {client}}}" for client in clients}
    arms |= {"exec": f"{{client: exec, command: [{sys.executable}, {PROGRAM}]}}"} if "exec" in clients else {}
    faults = [f"{{id: left-{arm}, for: 8s, kind: leave, client: shop/{arm} member 2}}" for arm in arms]
    listed = ", ".join(f"{name}: {arm}" for name, arm in arms.items())
    return HEAD.format(subscription=subscription, arms=f"{{{listed}}}", faults=f"[{', '.join(faults)}]", more=more)


def judged(command: Any) -> dict[str, Any]:
    """Return the verdict of a run in which every check of records and faults passes."""
    _, stdout = command.finish()
    verdict: dict[str, Any] = json.loads(stdout)
    checks = [check for check in verdict["checks"] if check["kind"] in ("slo", "integrity", "witness")]
    assert [] == [(check["id"], check["subject"], check["why"]) for check in checks if check["status"] != "PASS"]
    assert "" == command.left_behind()
    return verdict


def delivered(run: Path, workload: str, arm: str) -> dict[str, set[tuple[int, int]]]:
    """Return topic → the (producer, seq) of the records that the members of an arm delivered."""
    found: dict[str, set[tuple[int, int]]] = {}
    for path in (run / "outcomes").glob(f"part-{workload}-{arm}-consume*.parquet"):
        rows = pq.read_table(path, columns=["topic", "producer_id", "seq"]).to_pylist()
        for row in rows:
            found.setdefault(row["topic"], set()).add((row["producer_id"], row["seq"]))
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("subscription", SUBSCRIPTIONS.values(), ids=SUBSCRIPTIONS.keys())
def test_groups_of_every_client_read_two_topics(aftershock: Any, subscription: str) -> None:
    """Even records are in one topic, odd ones in the other; every arm delivers all records of all arms."""
    command = aftershock(plan(subscription), "--allow-exec", "--json")
    judged(command)
    logged = {
        name: {(row["producer_id"], row["seq"]) for row in pq.read_table(path).to_pylist()}
        for name in ("orders", "returns")
        for path in [command.run_dir / "log" / f"part-{name}.parquet"]
    }
    assert [{0}, {1}] == [{seq % 2 for _, seq in logged[name]} for name in ("orders", "returns")]
    for client in CLIENTS:
        assert logged == delivered(command.run_dir, "shop", client), client


@pytest.mark.nightly
def test_two_workloads_share_a_group(aftershock: Any) -> None:
    """Each workload is judged by the records of its own topic, while a member of one of them leaves."""
    clients = ("reference", "confluent", "java")
    arms = ", ".join(f"{client}: {{client: {client}}}" for client in clients)
    back = "consume: {topic: returns, group: readers, members: 2, protocol: classic, commit: {every: 1s}}"
    more = f"  - name: back\n    {back}\n    arms: {{{arms}}}"
    command = aftershock(plan("topic: orders, protocol: classic", clients, more), "--json")
    judged(command)
    assert "the workloads `shop` and `back` share a group" in command.stderr
    for client in clients:
        assert {"orders"} == delivered(command.run_dir, "shop", client).keys(), client
        assert {"returns"} == delivered(command.run_dir, "back", client).keys(), client

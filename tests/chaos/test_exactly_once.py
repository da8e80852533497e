"""Transactions on a real cluster: producers that abort, readers of both isolations, and services that use them."""

import json
from typing import Any

import pyarrow.parquet as pq
import pytest

from aftershock.tests.chaos.conftest import DEADLINE_S, Command
from aftershock.tests.chaos.late_produce import admin_of, leave_open
from aftershock.tests.clients.build import CLIENTS, Missing

pytestmark = pytest.mark.engine

PLAN = """\
name: exactly-once
cluster: {config: {transaction.state.log.num.partitions: 3}}
topics:
  - {name: charges, partitions: 4, replication: 3, config: {min.insync.replicas: 2}}
  - {name: orders, partitions: 4, replication: 3, config: {min.insync.replicas: 2}}
  - {name: billed, partitions: 4, replication: 3, config: {min.insync.replicas: 2}}
workloads:
  - name: charging
    produce: {topic: charges, rate: 30/s, deadline: 15s, transaction: {records: 10, abort: 20%, timeout: 20s}}
    arms: {reference: {client: reference}, confluent: {}}
  - {name: careful, consume: {topic: charges, isolation: read_committed}}
  - {name: hasty, consume: {topic: charges, isolation: read_uncommitted}}
  - name: billing
    produce: {topic: orders, rate: 30/s, keys: 50, deadline: 15s}
    pipe: {from: orders, to: billed, group: biller, members: 2, transactional: true}
    arms: {service: {client: confluent, settings: {session.timeout.ms: 6000, transaction.timeout.ms: 10000}}}
timing: {warmup: {min: 3s, max: 12s}, steady: 5s, recovery: 5s}
faults:
  - {kind: kill, broker: leader of charges/0, at: 0s, for: 5s}
  - {kind: kill_client, client: service member 1, at: 7s, for: 1s}
"""
RULES = {
    "log": {"fenced_write"},
    "charging": {"lost", "torn", "lost_commit", "unaborted"},
    "careful": {"lost", "aborted_read"},
    "hasty": {"lost"},
    "billing": {"lost", "pipe_lost", "pipe_duplicate", "pipe_order", "output_without_offset"},
}
"""Rules that must be judged, for the log and for each workload."""


def test_correct_clients_and_a_correct_service_pass(aftershock: Any) -> None:
    """A leader's death and the kill of a process tear, lose, repeat and reorder nothing that was committed."""
    command = aftershock(PLAN, "--json")
    _, stdout = command.finish(DEADLINE_S)
    assert "" == command.left_behind()
    every = json.loads(stdout)["checks"]
    stable = {check["subject"]: check["status"] for check in every if check["id"] == "obligation/stable_offset"}
    assert dict.fromkeys(("topic=charges", "topic=billed", "topic=__consumer_offsets"), "PASS") == stable
    checks = [check for check in every if check["kind"] == "integrity"]
    assert {} == {f"{check['id']} {check['subject']}": check["why"] for check in checks if check["status"] != "PASS"}
    workload_of = {"reference": "charging", "confluent": "charging", "service": "billing"}
    judged: dict[str, set[str]] = {name: set() for name in RULES}
    for check in checks:
        named = [name for name in RULES if f"workload={name}" in check["subject"]]
        name = "log" if check["subject"] == "log" else named[0] if named else workload_of.get(check["arm"])
        if name:
            judged[name].add(check["id"].removeprefix("integrity/"))
    assert {} == {name: rules - judged[name] for name, rules in RULES.items() if rules - judged[name]}


VERSIONS = """\
name: versions
cluster: {config: {transaction.state.log.num.partitions: 3}, FEATURES}
topics:
  - {name: charges, partitions: 4, replication: 3, config: {min.insync.replicas: 2}}
workloads:
  - name: charging
    produce: {topic: charges, rate: 40/s, deadline: 15s, transaction: {records: 5, abort: 20%, timeout: 20s}}
    arms: {reference: {client: reference}, confluent: {}}
  - {name: careful, consume: {topic: charges, isolation: read_committed}}
timing: {warmup: {min: 3s, max: 12s}, steady: 4s, recovery: 4s}
FAULTS
"""
CAP = (
    "faults: [{id: older, at: 0s, for: 6s, kind: cap_versions, transaction_version: 1, client: reference, op: produce}]"
)


def versions_of(command: Command, arm: str) -> list[int | None]:
    """Return the versions of an arm's transactions, in their order; each version once in a row."""
    (path,) = (command.run_dir / "transactions").glob(f"*-{arm}-*.parquet")
    rows = sorted(pq.read_table(path).to_pylist(), key=lambda row: row["number"])
    spoken = [row["version"] for row in rows]
    return [version for place, version in enumerate(spoken) if place == 0 or spoken[place - 1] != version]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("features", "faults", "spoken"),
    [
        pytest.param("features: {transaction.version: 1}", "", [1], id="by the cluster"),
        pytest.param("", CAP, [2, 1, 2], id="by the wire proxy"),
    ],
)
def test_version_1_of_the_transactions(aftershock: Any, features: str, faults: str, spoken: list[int]) -> None:
    """A whole cluster of version 1, and one that looks so to a client: each transaction is settled, at that version."""
    command = aftershock(VERSIONS.replace("FEATURES", features).replace("FAULTS", faults), "--json")
    _, stdout = command.finish(DEADLINE_S)
    judged = {check["id"]: check["status"] for check in json.loads(stdout)["checks"] if check["kind"] != "harness"}
    assert {} == {name: status for name, status in judged.items() if status == "FAIL"}
    assert {"PASS"} == {judged[f"integrity/{rule}"] for rule in ("torn", "lost_commit", "unaborted", "aborted_read")}
    assert spoken == versions_of(command, "reference")
    assert [None] == versions_of(command, "confluent")  # librdkafka does not tell it


HANGING = """\
name: hanging
cluster: {config: {transaction.state.log.num.partitions: 3, transaction.partition.verification.enable: "false"}}
topics: [{name: charges, partitions: 3, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: charging
    produce: {topic: charges, rate: 30/s, deadline: 10s, transaction: {records: 10, abort: 20%, timeout: 10s}}
    consume: {topic: charges, isolation: read_committed}
    arms: {reference: {client: reference}}
timing: {warmup: {min: 3s, max: 12s}, steady: 15s, recovery: 5s}
"""


@pytest.mark.nightly
def test_a_hanging_transaction_fails_its_check_alone(aftershock: Any) -> None:
    """A batch that arrives after its transaction was aborted is appended where brokers don't verify transactions."""
    command = aftershock(HANGING, "--json")
    command.wait_for("steady")
    admin = admin_of(command.run_dir)
    leave_open(admin, "charges", 1)
    admin.close()
    _, stdout = command.finish(DEADLINE_S)
    assert "" == command.left_behind()
    failed = {check["id"]: check["why"] for check in json.loads(stdout)["checks"] if check["status"] == "FAIL"}
    assert {"obligation/stable_offset"} == failed.keys(), failed
    assert "charges/1" in failed["obligation/stable_offset"]


CLIENTS_PLAN = """\
name: transactional-clients
cluster: {config: {transaction.state.log.num.partitions: 3}, features: {transaction.version: LEVEL}}
topics:
  - {name: charges, partitions: 4, replication: 3, config: {min.insync.replicas: 2}}
workloads:
  - name: charging
    produce: {topic: charges, rate: 20/s, deadline: 15s, transaction: {records: 5, abort: 20%, timeout: 20s}}
    arms:
      java: {client: java}
      confluent: {}
      reference: {client: reference}
      franz: {client: exec, command: COMMAND}
      planted: {client: exec, command: COMMAND, settings: {commits_aborts: true}}
  - name: careful
    consume: {topic: charges, isolation: read_committed}
    arms: {java: {client: java}, reference: {client: reference}, confluent: {}, franz: {client: exec, command: COMMAND}}
  - name: hasty
    consume: {topic: charges, isolation: read_uncommitted}
    arms: {java: {client: java}, franz: {client: exec, command: COMMAND}}
timing: {warmup: {min: 3s, max: 20s}, steady: 5s, recovery: 8s}
faults:
  - {kind: kill, broker: leader of charges/0, at: 0s, for: 5s}
  - {kind: kill_client, client: java producer 1, at: 12s, for: 1s}
  - {kind: kill_client, client: franz producer 1, at: 12s, for: 1s}
"""


@pytest.mark.nightly
@pytest.mark.parametrize("level", [1, 2])
def test_each_client_at_each_version(aftershock: Any, level: int) -> None:
    """The program that commits what it is ordered to abort is found by one check; nobody else is blamed."""
    try:
        command = next(client.command for client in CLIENTS if client.name == "franz-go")
    except Missing as reason:
        pytest.skip(str(reason))
    plan = CLIENTS_PLAN.replace("LEVEL", str(level)).replace("COMMAND", json.dumps(command))
    run = aftershock(plan, "--allow-exec", "--json")
    _, stdout = run.finish(DEADLINE_S)
    assert "" == run.left_behind()
    checks = [check for check in json.loads(stdout)["checks"] if check["kind"] == "integrity"]
    failed = {(check["id"], check["arm"]): check["why"] for check in checks if check["status"] != "PASS"}
    assert {("integrity/unaborted", "planted")} == failed.keys(), failed
    for arm in ("java", "confluent", "reference", "franz"):
        judged = {check["id"].removeprefix("integrity/") for check in checks if check["arm"] == arm}
        assert judged >= {"lost", "torn", "lost_commit", "unaborted"}

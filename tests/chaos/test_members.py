"""Members of consumer groups on a real cluster: correct ones raise no alarm while others come and go, and Kafka refuses
the commits of those that it has replaced.

Two rounds of churn by default, each with three clients under both protocols (AFTERSHOCK_CHURNS), and ten minutes of
churn in one group of eight.
"""

import json
import os
from typing import Any

import pytest

from aftershock.tests.chaos.group_settings import SHORT_SESSIONS

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

ARMS = ("reference", "confluent", "java")
CHURNS = int(os.environ.get("AFTERSHOCK_CHURNS", "2"))
TOPICS = "topics: [{name: orders, partitions: 8, replication: 3, config: {min.insync.replicas: 2}}]\n"
ORDERS = (
    TOPICS
    + """
workloads:
  - name: orders
    produce: {topic: orders, rate: 20/s, record_size: 200, rack: a, deadline: 20s}
    consume: {topic: orders, group: readers, members: 3, rack: b, protocol: consumer, commit: {every: 500ms}}
    arms: {reference: {client: reference}, confluent: {client: confluent}, java: {client: java}}
"""
)
CHURN = (
    SHORT_SESSIONS
    + ORDERS
    + """
  - name: classic
    produce: {topic: orders, rate: 20/s, record_size: 200, rack: a, deadline: 20s}
    consume:
      topic: orders
      group: old
      members: 3
      rack: b
      protocol: classic
      assignor: cooperative-sticky
      commit: {every: 500ms}
    arms:
      reference_classic: {client: reference, settings: {session.timeout.ms: 6000, heartbeat.interval.ms: 1000}}
      confluent_classic: {client: confluent, settings: {session.timeout.ms: 6000, heartbeat.interval.ms: 1000}}
      java_classic: {client: java, settings: {session.timeout.ms: 6000, heartbeat.interval.ms: 1000}}
name: clean-churn
timing: {warmup: {min: 5s, max: 40s}, steady: 5s, fault: 3s, recovery: 15s}
slo: ["lost == 0", "co_owned == 0", "fenced == 0", "stale_assignment == 0", "produce.success >= 99%"]
faults:
  - at: 0s
    together:
      - {for: 24s, kind: churn, client: reference, every: 4s}
      - {for: 24s, kind: churn, client: confluent, every: 4s}
      - {for: 24s, kind: churn, client: java, every: 4s}
      - {for: 24s, kind: churn, client: reference_classic, every: 4s}
      - {for: 24s, kind: churn, client: confluent_classic, every: 4s}
      - {for: 24s, kind: churn, client: java_classic, every: 4s}
"""
)
LONG_CHURN = (
    SHORT_SESSIONS
    + TOPICS
    + """
name: long-churn
workloads:
  - name: orders
    produce: {topic: orders, rate: 100/s, record_size: 200, rack: a, deadline: 20s}
    consume: {topic: orders, group: readers, members: 8, rack: b, protocol: consumer, commit: {every: 500ms}}
    arms: {confluent: {client: confluent}}
timing: {warmup: {min: 5s, max: 40s}, steady: 10s, recovery: 15s}
slo:
  - "lost == 0"
  - "co_owned == 0"
  - "fenced == 0"
  - "stale_assignment == 0"
  - "produce.success >= 99%"
  - {slo: "rebalance.duration < 20s", gate: report}
faults:
  # half of the members may be away at a time, so four to eight are in the group
  - {at: 0s, for: 600s, kind: churn, client: confluent, every: 10s}
"""
)
PLAN = (
    SHORT_SESSIONS
    + ORDERS
    + """
name: returning-members
timing: {warmup: {min: 5s, max: 40s}, steady: 5s, fault: 3s, recovery: 15s}
slo: ["lost == 0", "co_owned == 0", "fenced == 0", "produce.success >= 99%"]
faults:
"""
)
RETURN = "  - {{id: returned-{arm}, at: 0s, for: 12s, kind: zombie, client: {arm} member 1}}\n"
HIDE = (
    "  - {{id: hidden-{arm}, at: 1s, for: 18s, kind: hide_error, api: OffsetCommit, error: UNKNOWN_MEMBER_ID, "
    "client: {arm} member 1}}\n"
)


def of_arms(judged: dict[str, Any], check_id: str) -> dict[str, str]:
    return {check["arm"]: check["status"] for check in judged["checks"] if check["id"] == check_id}


@pytest.mark.parametrize("seed", range(CHURNS))
def test_members_that_come_and_go_raise_no_alarm(aftershock: Any, seed: int) -> None:
    """No check fails, whichever members leave, die and return; whether records were lost or read twice is decided.

    On a host that gives 24 client processes too little time, checks of time are INCONCLUSIVE.
    """
    command = aftershock(CHURN, "--seed", str(seed), "--json")
    _, stdout = command.finish()
    checks = json.loads(stdout)["checks"]
    decided = ("integrity", "witness", "exposure")
    wrong = [
        each for each in checks if (each["status"] != "PASS" and each["kind"] in decided) or each["status"] == "FAIL"
    ]
    assert [] == [(each["id"], each["subject"], each["status"], each["why"]) for each in wrong]
    assert {*decided} <= {each["kind"] for each in checks}
    assert "" == command.left_behind()


@pytest.mark.timeout(1200)
def test_sixty_changes_in_ten_minutes_are_judged(aftershock: Any) -> None:
    command = aftershock(LONG_CHURN, "--json")
    code, stdout = command.finish(deadline_s=1100)
    judged = json.loads(stdout)
    assert [] == [(each["id"], each["subject"], each["why"]) for each in judged["checks"] if each["status"] != "PASS"]
    assert 0 == code
    journal = [json.loads(line) for line in (command.run_dir / "journal.jsonl").read_text().splitlines()]
    witnesses = [entry["witness"] for entry in journal if "witness" in entry]
    assert [60] == [witness["observed"] for witness in witnesses if witness["unit"] == "changes"]
    assert "" == command.left_behind()


def test_a_member_that_returns_is_fenced(aftershock: Any) -> None:
    """The group has replaced it, so Kafka accepts no commit of its old member epoch, whichever client it is."""
    command = aftershock(PLAN + "".join(RETURN.format(arm=arm) for arm in ARMS), "--seed", "3", "--json")
    code, stdout = command.finish()
    judged = json.loads(stdout)
    assert dict.fromkeys(ARMS, "PASS") == of_arms(judged, "integrity/fenced")
    events = [json.loads(line) for line in (command.run_dir / "events.jsonl").read_text().splitlines()]
    assert {*ARMS} == {line["arm"] for line in events if line["event"] == "lost" and line["worker"].endswith("-1")}
    assert [] == [(each["id"], each["subject"], each["why"]) for each in judged["checks"] if each["status"] == "FAIL"]
    assert 0 == code
    assert "" == command.left_behind()


def test_a_commit_that_only_seems_accepted_is_found(aftershock: Any) -> None:
    """The wire proxy hides the error from the member that returned, so that the member believes in its commit."""
    faults = "".join(words.format(arm=arm) for words in (RETURN, HIDE) for arm in ARMS)
    command = aftershock(PLAN + faults, "--seed", "3", "--json")
    code, stdout = command.finish()
    judged = json.loads(stdout)
    assert dict.fromkeys(ARMS, "FAIL") == of_arms(judged, "integrity/fenced")
    assert 1 == code
    assert "" == command.left_behind()

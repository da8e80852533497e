"""The shipped plan about late commits on a real cluster, the same with late aborts, and harmless twins."""

import json
from pathlib import Path
from typing import Any

import pytest

from aftershock.faults.plans import find
from aftershock.results.evidence.files import read_lines
from aftershock.tests.chaos.conftest import DEADLINE_S

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

OF_TRANSACTIONS = ("aborted_read", "torn", "lost_commit", "unaborted")


def run(aftershock: Any, plan: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the status of each check of transactions by arm and rule, and the events of late commits."""
    command = aftershock(plan, "--json")
    _, stdout = command.finish(DEADLINE_S)
    assert "" == command.left_behind()
    checks = [check for check in json.loads(stdout)["checks"] if check["kind"] == "integrity" and check["arm"]]
    rules = {f"{check['arm']} {check['id'].removeprefix('integrity/')}": check["status"] for check in checks}
    events = read_lines(command.run_dir / "events.jsonl")
    late = [event for event in events if event["event"] == "held_request_delivered"]
    return {name: status for name, status in rules.items() if name.split()[1] in OF_TRANSACTIONS}, late


def test_a_late_commit_of_the_first_protocol_ends_the_next_transaction(aftershock: Any) -> None:
    """librdkafka FAILs by the right check, and the reference client, which speaks the second protocol, does not."""
    rules, late = run(aftershock, Path(find("held-commit")).read_text(encoding="utf-8"))
    assert "FAIL" == rules["librdkafka unaborted"]
    failed = {name for name, status in rules.items() if status == "FAIL"}
    assert failed <= {"librdkafka unaborted", "librdkafka torn"}
    answers = {(event["worker"].split("-")[1], event["met"], event["answer"]) for event in late}
    assert {("librdkafka", "open", "NONE"), ("reference", "open", "PRODUCER_FENCED")} == answers


def test_a_late_commit_before_the_next_transaction_is_blamed_on_nobody(aftershock: Any) -> None:
    """The twin: released as soon as its own transaction has ended, and before another one begins."""
    plan = Path(find("held-commit")).read_text(encoding="utf-8")
    # one transaction in a second, so that none begins at once when the one before has ended
    twin = plan.replace("until: {sent: 5}", "until: {sent: 0}").replace("rate: 20/s", "rate: 2/s")
    rules, late = run(aftershock, twin.replace("records: 10, ", "records: 1, "))
    assert [] == [name for name, status in rules.items() if status == "FAIL"]
    assert {"between"} == {event["met"] for event in late}
    assert {"librdkafka", "reference"} == {event["worker"].split("-")[1] for event in late}


def held_abort(features: str) -> str:
    """Return the plan with late aborts.

    The abort ends the first half of the next transaction. The producer can only commit the second half if it has no
    record in a partition of the first half, which is no part of its transaction any more: so there are many partitions.
    """
    plan = Path(find("held-commit")).read_text(encoding="utf-8")
    changes = {
        "outcome: commit": "outcome: abort",
        "abort: 30%": "abort: 50%",
        "rate: 20/s": "rate: 20/s, keys: 1000",
        "partitions: 3,": "partitions: 48,",
        "sent: 5": "sent: 7",
        "blocks: 5": "blocks: 10",
        "cluster: {": f"cluster: {{{features}",
    }
    for old, new in changes.items():
        assert old in plan, old
        plan = plan.replace(old, new)
    return plan


def test_a_late_abort_of_the_first_protocol_loses_a_part_of_a_commit(aftershock: Any) -> None:
    """The commit is acknowledged, and its first records are aborted: of each client, as both speak version 1."""
    rules, late = run(aftershock, held_abort("features: {transaction.version: 1}, "))
    failed = {name for name, status in rules.items() if status == "FAIL"}
    lost = {f"{arm} {rule}" for arm in ("librdkafka", "reference") for rule in ("lost_commit", "torn")}
    assert failed == lost, failed
    assert ("open", "NONE") in {(event["met"], event["answer"]) for event in late}


def test_a_late_abort_of_the_second_protocol_is_refused(aftershock: Any) -> None:
    """The reference client loses nothing under the same faults as librdkafka, which still speaks the first one."""
    rules, late = run(aftershock, held_abort(""))
    failed = {name for name, status in rules.items() if status == "FAIL"}
    assert failed == {"librdkafka lost_commit", "librdkafka torn"}, failed
    answers = {event["answer"] for event in late if "reference" in event["worker"]}
    assert {"PRODUCER_FENCED"} == answers

"""The shipped plan about late commits on a real cluster, and its harmless twin."""

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

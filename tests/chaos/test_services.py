"""Services on a real cluster: each defect is found by its check alone, a correct service is not blamed, and faults on
the members of a service take effect.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from aftershock.tests.chaos.conftest import DEADLINE_S
from aftershock.tests.chaos.services import exactly_once, service

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

HOME = Path(service.__file__).parent
AT_LEAST_ONCE = {"pipe_lost", "pipe_duplicate", "pipe_order", "offsets_without_output"}


def judged(aftershock: Any, name: str, program: Any) -> dict[str, Any]:
    plan = (HOME / f"{name}.yaml").read_text().replace("PROGRAM", str(program.__file__))
    command = aftershock(plan, "--allow-exec", "--json")
    _, stdout = command.finish(2 * DEADLINE_S)
    assert "" == command.left_behind()
    return dict(json.loads(stdout))


def by_status(verdict: dict[str, Any], arms: Any) -> dict[str, dict[str, set[str]]]:
    """Return the integrity rules of the services, by status and arm."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for check in verdict["checks"]:
        if check["kind"] == "integrity" and check["arm"] in arms:
            found[check["status"]][check["arm"]].add(check["id"].removeprefix("integrity/"))
    return found


def test_defects_of_services(aftershock: Any) -> None:
    """Each defect fails its check alone; without marks nothing is known, and the correct service passes."""
    found = by_status(judged(aftershock, "services", service), service.DEFECTS)
    assert {arm: {rule} for arm, rule in service.CAUGHT.items()} == dict(found["FAIL"])
    assert {"drops_marks": {"pipe_lost"}} == dict(found["INCONCLUSIVE"])
    assert found["PASS"]["none"] >= AT_LEAST_ONCE


def test_defects_of_services_that_promise_exactly_once(aftershock: Any) -> None:
    """Each defect fails its check alone; processes that share an id end again and again, and break no promise."""
    verdict = judged(aftershock, "exactly_once", exactly_once)
    found = by_status(verdict, exactly_once.DEFECTS)
    assert {arm: {rule} for arm, rule in exactly_once.CAUGHT.items()} == dict(found["FAIL"])
    assert all(found["PASS"][arm] >= {*AT_LEAST_ONCE, "aborted_read"} for arm in ("nothing", "two_processes"))
    (note,) = [note for note in verdict["unplanned"] if note.startswith("shares_an_id: a process of the service ended")]
    assert "giving up: KafkaError{FATAL,code=_FENCED" in note


def test_faults_on_members_of_a_service(aftershock: Any) -> None:
    """The processes are told apart although the service does not name them, and each fault is witnessed."""
    verdict = judged(aftershock, "members", service)
    kinds = ("witness", "exposure", "integrity")
    wrong = [check for check in verdict["checks"] if check["kind"] in kinds and check["status"] != "PASS"]
    assert [] == [(check["id"], check["subject"], check["status"], check["why"]) for check in wrong]
    assert {*AT_LEAST_ONCE} <= by_status(verdict, ["ours"])["PASS"]["ours"]

"""Services on a real cluster: each defect is found by its check alone, and a correct service is not blamed."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from aftershock.tests.chaos.conftest import DEADLINE_S
from aftershock.tests.chaos.services import service

pytestmark = pytest.mark.engine

HOME = Path(service.__file__).parent


@pytest.mark.nightly
def test_defects_of_services(aftershock: Any) -> None:
    """Each defect fails its check alone; without marks nothing is known, and the correct service passes."""
    plan = (HOME / "services.yaml").read_text().replace("PROGRAM", str(service.__file__))
    command = aftershock(plan, "--allow-exec", "--json")
    _, stdout = command.finish(DEADLINE_S)
    assert "" == command.left_behind()
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for check in json.loads(stdout)["checks"]:
        if check["kind"] == "integrity" and check["arm"] in service.DEFECTS:
            found[check["status"]][check["arm"]].add(check["id"].removeprefix("integrity/"))
    assert {arm: {rule} for arm, rule in service.CAUGHT.items()} == dict(found["FAIL"])
    assert {"drops_marks": {"pipe_lost"}} == dict(found["INCONCLUSIVE"])
    assert {"pipe_lost", "pipe_duplicate", "pipe_order", "offsets_without_output"} <= found["PASS"]["none"]

"""The shipped images of services on a real cluster: they keep their promises, and one that breaks its own is found."""

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from aftershock.faults.plans import find
from aftershock.faults.sections.document import dump_yaml
from aftershock.tests.chaos.conftest import DEADLINE_S

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

KILLS = 2


def shortened(name: str) -> dict[str, Any]:
    """Return a shipped plan with fewer kills."""
    plan: dict[str, Any] = YAML(typ="safe").load(Path(find(name)))
    for element in plan["faults"]:
        element["repeat"] = KILLS
    return plan


def integrity(stdout: str) -> dict[str, dict[str, str]]:
    """Return the status of each integrity check of pipes, by arm."""
    found: dict[str, dict[str, str]] = {}
    for check in json.loads(stdout)["checks"]:
        if check["id"].startswith(("integrity/pipe_", "integrity/offsets_without")):
            found.setdefault(check["arm"], {})[check["id"].removeprefix("integrity/")] = check["status"]
    return found


def test_kills_of_kafka_streams(aftershock: Any) -> None:
    """Exactly once neither loses nor repeats, at least once only repeats, and the two are told from each other."""
    plan = shortened("streams")
    honest, topic = plan["workloads"][1], plan["topics"][1]
    liar = json.loads(json.dumps(honest).replace("repeated-counts", "promised").replace("-again", "-promised"))
    liar["arms"] = {"liar": liar["arms"].pop("at-least-once")}
    plan["workloads"].append(liar | {"name": "liar", "pipe": liar["pipe"] | {"transactional": True}})
    plan["topics"].append(topic | {"name": "promised", "config": dict(topic["config"])})
    kill = {"id": "killed-liar", "kind": "kill_client", "client": "any member of liar", "for": "2s"}
    plan["faults"].append({"at": "10s", "repeat": KILLS, "every": "28s", "fault": kill})
    command = aftershock(dump_yaml(plan), "--allow-exec", "--json")
    _, stdout = command.finish(2 * DEADLINE_S)  # with the build of the image
    assert "" == command.left_behind()
    found = integrity(stdout)
    assert {"PASS"} == {*found["exactly-once"].values(), *found["at-least-once"].values()}
    assert ("PASS", "FAIL") == (found["liar"]["pipe_lost"], found["liar"]["pipe_duplicate"])


def test_kills_of_mirror_maker(aftershock: Any) -> None:
    """With exactly-once source support, each record has one committed copy, in order."""
    command = aftershock(dump_yaml(shortened("mirror-maker")), "--allow-exec", "--json")
    _, stdout = command.finish(2 * DEADLINE_S)  # with the build of the image
    assert "" == command.left_behind()
    found = integrity(stdout)["worker"]
    assert {"pipe_lost", "pipe_duplicate", "pipe_order", "offsets_without_output"} <= found.keys()
    assert {"PASS"} == {*found.values()}

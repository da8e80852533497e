"""The cases of the kinds that need no Docker, on a cluster whose nodes are pods (`ci/kubernetes`)."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from aftershock.errors import PlanError
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import load_plan
from aftershock.tests.chaos.kinds.case import Case
from aftershock.tests.chaos.kinds.stand import Stands
from aftershock.tests.chaos.kinds.test_every_kind import CASES, takes_effect_and_heals
from aftershock.tests.local_kubernetes import running

PLAN = """name: pods
cluster: {{kubernetes: {{nodes: true}}}}
topics: [{{name: probe, partitions: 6, replication: 3}}]
workloads: [{{name: probe, produce: {{topic: probe, rate: 1/s}}}}]
faults: [{fault}]
"""


def possible(case: Case) -> bool:
    """Return whether a case can run on Kubernetes: `plan check` refuses the others for that reason."""
    try:
        load_plan(PLAN.format(fault=json.dumps(case.fault().model_dump(mode="json", by_alias=True, exclude_none=True))))
    except PlanError as error:
        return "impossible on Kubernetes" not in str(error)
    return True


def cases() -> list[Any]:
    """Return the first case of each kind that is possible on Kubernetes, on clusters without Docker's parts."""
    found = {
        kind: next((case for case in cases if case.on in ("plain", "proxied", "pods") and possible(case)), None)
        for kind, cases in CASES.items()
        if kind in KINDS
    }
    return [pytest.param(replace(case, on="pods"), id=kind) for kind, case in found.items() if case]


@pytest.fixture(scope="module")
def stands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stands]:
    """Return clusters on a Kubernetes that runs as long as the tests; one that ran before stays."""
    with running(nodes=3), closing(Stands(tmp_path_factory.mktemp)) as stands:
        yield stands


def test_the_kinds_of_links_processes_and_kafka_are_among_them() -> None:
    """So that a refusal by mistake does not empty the list."""
    names = {param.id for param in cases()}
    assert {"latency", "cut", "kill", "pause", "stop", "restart", "crash_loop", "lose_rack", "reassign"} <= names
    assert not names & {"power_loss", "clock_bump", "disk_full", "packet_loss"}


@pytest.mark.engine
@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("case", cases())
def test_the_fault_takes_effect_and_heals(stands: Stands, case: Case) -> None:
    takes_effect_and_heals(stands, case)

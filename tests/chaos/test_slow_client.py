"""A planted slow client, audited beside its harmless twin: it is last in each scenario that it affects, only there."""

from pathlib import Path
from typing import Any

import pytest

from aftershock.faults.plans import find
from aftershock.harness.campaigns import audit as lab
from aftershock.harness.campaigns.card import broker_settings
from aftershock.results.evidence.stored import read_judged_run
from aftershock.results.studies.part import Part
from aftershock.results.studies.recount import Recount
from aftershock.results.studies.scoring import score
from aftershock.results.studies.suite import registered
from aftershock.tests.clients.build import CLIENTS, Missing

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parents[1] / "clients" / "slow_client.py"
SLEEPS_S = 5
UNAFFECTED = ("leader-slow", "leaders-moved", "member-dies")
"""Scenarios in which no connection of a client is lost: links and brokers stay up, and only a member's process dies."""


def clients() -> lab.Clients:
    """Return the slow client and its twin, which is the same program and does not sleep."""
    (library,) = (client for client in CLIENTS if client.name == "aiokafka")
    try:
        python, program = library.command
    except Missing as reason:
        pytest.skip(f"{library.library}: {reason}")
    sleeps = {"twin": 0, "slow": SLEEPS_S}
    return lab.parse_clients([f"{name}=exec:{python} {PROGRAM} {s} {program}" for name, s in sleeps.items()], [])


@pytest.mark.parametrize("scenario", lab.SCENARIOS)
def test_it_is_last_where_connections_are_lost_and_only_there(aftershock: Any, scenario: str) -> None:
    (planned,) = lab.planned(clients(), None, {}, [scenario])
    changes = [part for change in planned.settings for part in ("--set", change)]
    command = aftershock(find(planned.plan).read_text(), *changes, "--allow-exec", "--seed", "1")
    command.finish(800)
    assert "" == command.left_behind()
    part = Part(scenario, read_judged_run(command.run_dir))
    settings = broker_settings(part.run.timeline["cluster"])
    for row in registered().rows_of(scenario):
        scored = score(row, Recount(part, row.workload), registered(), settings)
        ranks = {cell.client: cell.rank for cell in scored.cells}
        expected = {"twin": None, "slow": None} if scenario in UNAFFECTED else {"twin": 1, "slow": 2}
        assert expected == ranks, (row.id, scored.line, [cell.recovery for cell in scored.cells])
        assert scored.line.told_apart == (scenario not in UNAFFECTED)

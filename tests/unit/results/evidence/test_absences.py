"""Brokers that left: whether a fault of the run took them away, and what that changes for the clients."""

from dataclasses import replace
from typing import Any

import pytest

from aftershock.results.checks.obligations.lanes import lanes
from aftershock.results.evidence.absences import LATE_US, Absence, unplanned_absences
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.explain.events import event
from aftershock.tests.unit.results.checks.obligations.plays import Play, S, lasting


def gone(evidence: Evidence, left_s: float, back_s: float | None = None, broker: int = 2) -> Evidence:
    lines: list[dict[str, Any]] = [{"t_us": round(left_s * S), "event": "broker_left", "broker": broker}]
    if back_s is not None:
        lines.append({"t_us": round(back_s * S), "event": "broker_returned", "broker": broker})
    return replace(evidence, events=(*evidence.events, *lines))


def test_a_broker_that_left_by_itself_is_told() -> None:
    (absence,) = unplanned_absences(gone(Play().evidence(), 25.12, 40.2))
    assert absence == Absence(2, 25_120_000, 40_200_000)
    assert str(absence) == "broker 2 left at 25.1 s, not by us, and was back at 40.2 s"
    (stays,) = unplanned_absences(gone(Play().evidence(), 25.12))
    assert str(stays).endswith("and did not return")
    assert unplanned_absences(Play().evidence()) == ()


@pytest.mark.parametrize(
    "targets",
    [
        {"brokers": (2,)},
        {"links": ("replication_a-k2",)},
        {"links": ("controller_b-k1",)},  # broker 2 is in rack b
        {},
    ],
)
def test_a_fault_that_touches_the_broker_took_it_away(targets: dict[str, tuple[Any, ...]]) -> None:
    """Until some time after the heal, in which the broker starts; not later, and not before the fault."""
    evidence = Play([lasting("kill", 40, 60, **targets)]).evidence()
    late_s = LATE_US / S
    by_us = [at_s for at_s in (39, 41, 59, 60 + late_s, 61 + late_s) if not unplanned_absences(gone(evidence, at_s))]
    assert by_us == [41, 59, 60 + late_s]


@pytest.mark.parametrize(
    "targets",
    [{"brokers": (1,)}, {"links": ("client_a-k2",)}, {"topics": ("orders",)}, {"clients": ("orders-base-produce",)}],
)
def test_a_fault_of_something_else_did_not(targets: dict[str, tuple[Any, ...]]) -> None:
    evidence = Play([lasting("kill", 40, 60, **targets)]).evidence()
    assert len(unplanned_absences(gone(evidence, 50))) == 1


def test_a_rehearsal_takes_nothing_away() -> None:
    evidence = Play([lasting("kill", 40, 60, brokers=(2,))]).evidence()
    rehearsed = replace(evidence, run={**evidence.run, "rehearse": True})
    assert len(unplanned_absences(gone(rehearsed, 50))) == 1


def test_no_progress_is_owed_while_a_broker_is_away_by_itself() -> None:
    """The obligation is due before the broker may have died, and again after its return."""
    lane = next(one for one in lanes(gone(Play().evidence(), 50, 60)) if one.side == "produce")
    due = {
        at_s: next(s.required for s in lane.of(0) if s.start_us <= at_s * S < s.end_us) for at_s in (30, 45, 55, 100)
    }
    assert due == {30: True, 45: False, 55: False, 100: True}


def test_events_of_the_cluster_have_words() -> None:
    left = {"event": "broker_left", "broker": 2}
    assert event(left) == "broker 2 is no longer in the cluster"
    isr = {"event": "isr_left", "broker": 2, "n": 1, "places": ["orders/3"]}
    assert event(isr) == "broker 2 is no longer in sync on orders/3"
    assert event(isr | {"n": 7, "places": ["orders/3", "orders/4"]}) == "broker 2 is no longer in sync on 7 partitions"

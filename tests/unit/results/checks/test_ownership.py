"""Who owned a partition when, by the members' events, and which overlaps and commits that forbids."""

from dataclasses import replace
from typing import Any

import pytest

from aftershock.results.checks.findings.ownership import RETURN_US, Overlaps, co_assigned, fenced, tenures, unaware
from aftershock.results.evidence.evidence import Evidence
from aftershock.tests.unit.results.checks.slo.stage import A, S, Stage, client

FIRST, SECOND = "orders-a-consume-1", "orders-a-consume-2"


def event(at_s: float, worker: str, name: str, *partitions: int, **details: Any) -> dict[str, Any]:
    """Return an event of a consumer about partitions of the topic."""
    rows = [["orders", number] for number in partitions]
    common = {"workload": "orders", "arm": "a", "op": "consume", "worker": worker, "t_us": int(at_s * S), "event": name}
    return common | {"partitions": rows} | details


def committed(at_s: float, worker: str, took_s: float | None = 0.1) -> dict[str, Any]:
    details = {} if took_s is None else {"took_us": int(took_s * S)}
    return event(at_s, worker, "committed", offsets=[["orders", 0, 17]], **details)


def fault(verb: str | None, start_s: float, end_s: float, *workers: str) -> tuple[dict[str, Any], ...]:
    """Return the journal of a fault on clients, or of one on the cluster."""
    undo, targets = {"verb": verb or "start"}, {"clients": list(workers), "brokers": [] if workers else [1]}
    lines = {"intended": start_s, "healed": end_s}
    return tuple(
        {"fault": "f", "state": state, "t_us": int(at_s * S), "undo": undo, "targets": targets}
        for state, at_s in lines.items()
    )


def group(*events: dict[str, Any], journal: tuple[dict[str, Any], ...] = ()) -> Evidence:
    """Return the evidence of a group of two members."""
    consume = {"topic": "orders", "group": "readers", "members": 2}
    evidence = replace(Stage().evidence(), events=events, journal=journal)
    members = replace(client("a"), members=2)
    timeline = {**evidence.timeline, "workloads": [{"name": "orders", "consume": consume, "arms": {"a": {}}}]}
    return replace(evidence, clients=(members,), timeline=timeline)


def test_tenures_end_with_their_events_or_their_process() -> None:
    """Revoked, lost, killed, or open at the end of the run; a second assignment leaves the others open."""
    evidence = group(
        event(1, FIRST, "assigned", 0, 1, epoch=3),
        event(2, FIRST, "revoked", 1),
        event(3, SECOND, "assigned", 1),
        event(4, FIRST, "assigned", 2),
        event(5, FIRST, "lost", 2),
        journal=fault("start_clients", 6, 9, SECOND),
    )
    (owner,) = evidence.clients
    assert [
        (FIRST, 0, 1.0, float("inf"), "", 3),
        (FIRST, 1, 1.0, 2.0, "revoked", 3),
        (SECOND, 1, 3.0, 6.0, "killed", None),
        (FIRST, 2, 4.0, 5.0, "lost", None),
    ] == [(t.worker, t.place[1], t.start_us / S, t.end_us / S, t.ended, t.epoch) for t in tenures(evidence, owner)]


def test_a_member_that_is_started_again_owns_nothing_of_before() -> None:
    """Churn kills a member without saying when; what another member gets after its return is no overlap."""
    evidence = group(
        event(1, FIRST, "assigned", 0, 1),
        event(5, FIRST, "restarted", life=1),
        event(6, FIRST, "assigned", 1),
        event(7, SECOND, "assigned", 0),
    )
    (owner,) = evidence.clients
    assert [5.0, 5.0] == [t.end_us / S for t in tenures(evidence, owner) if t.ended == "restarted"]
    assert Overlaps(4, 0, 0) == co_assigned(evidence, owner)


@pytest.mark.parametrize(
    ("journal", "expected"),
    [
        ((), Overlaps(2, 1, 0)),
        (fault("resume_clients", 2, 4, FIRST), Overlaps(2, 0, 1)),  # a zombie does not know
        (fault("resume_polling", 2, 4, FIRST), Overlaps(2, 0, 1)),
        (fault("resume_clients", 2, 4, SECOND), Overlaps(2, 1, 0)),  # the other member's fault excuses nothing
        (fault(None, 2, 4), Overlaps(2, 0, 1)),  # a broker is away
        (fault("resume_clients", 6, 7, FIRST), Overlaps(2, 1, 0)),  # later
    ],
)
def test_two_owners_at_once(journal: tuple[dict[str, Any], ...], expected: Overlaps) -> None:
    """An overlap is permitted only while the earlier owner may not know that it was replaced."""
    evidence = group(event(1, FIRST, "assigned", 0), event(3, SECOND, "assigned", 0), journal=journal)
    assert expected == co_assigned(evidence, evidence.clients[0])


@pytest.mark.parametrize(
    ("api", "expected"), [("OffsetFetch", Overlaps(2, 1, 0)), ("ConsumerGroupHeartbeat", Overlaps(2, 0, 1))]
)
def test_a_fault_on_requests_excuses_only_if_members_learn_by_them(api: str, expected: Overlaps) -> None:
    evidence = group(event(1, FIRST, "assigned", 0), event(3, SECOND, "assigned", 0), journal=fault(None, 2, 4))
    step = {"id": "f", "kind": "answer_error", "parameters": {"api": api}}
    evidence = replace(evidence, timeline={**evidence.timeline, "steps": [step]})
    assert expected == co_assigned(evidence, evidence.clients[0])


def test_an_owner_after_another() -> None:
    """Tenures that follow each other do not overlap, even at the same moment."""
    evidence = group(event(1, FIRST, "assigned", 0), event(3, FIRST, "revoked", 0), event(3, SECOND, "assigned", 0))
    assert Overlaps(2, 0, 0) == co_assigned(evidence, evidence.clients[0])


def test_a_member_learns_some_time_after_it_runs_again() -> None:
    """The excuse lasts longer than the fault."""
    evidence = group(journal=fault("resume_clients", 2, 4, FIRST))
    assert ((2 * S, 4 * S + RETURN_US),) == unaware(evidence, FIRST)
    assert () == unaware(evidence, SECOND)


@pytest.mark.parametrize(
    ("commit", "expected"),
    [
        (committed(2.5, FIRST), (1, 0)),
        (committed(3.05, FIRST), (1, 0)),  # sent before the other member got the partition
        (committed(4, FIRST), (1, 1)),
        (committed(4, SECOND), (1, 0)),
        (committed(4, FIRST, None), (0, 0)),  # the time of sending is unknown
    ],
)
def test_a_commit_of_a_replaced_member(commit: dict[str, Any], expected: tuple[int, int]) -> None:
    """Kafka must refuse a commit that was sent after another member got the partition."""
    evidence = group(event(1, FIRST, "assigned", 0), event(3, SECOND, "assigned", 0), commit)
    assert expected == fenced(evidence, evidence.clients[0])
    assert A == evidence.clients[0].key

"""Who owned a partition when, by the members' events, which overlaps and commits that forbids, and where it began."""

from dataclasses import replace
from typing import Any

import pytest

from aftershock.results.checks.explanations.model import Anomaly
from aftershock.results.checks.findings.ownership import Start, co_assigned, fenced, starts, tenures
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
    """What another member gets after its return is no overlap."""
    evidence = group(
        event(1, FIRST, "assigned", 0, 1),
        event(5, FIRST, "restarted", life=1),
        event(6, FIRST, "assigned", 1),
        event(7, SECOND, "assigned", 0),
    )
    (owner,) = evidence.clients
    assert [5.0, 5.0] == [t.end_us / S for t in tenures(evidence, owner) if t.ended == "restarted"]
    assert (4, []) == co_assigned(evidence, owner)


def test_two_owners_at_once() -> None:
    """The earlier owner breaks the rule, from the other one's assignment until it learns of it."""
    evidence = group(event(1, FIRST, "assigned", 0), event(3, SECOND, "assigned", 0), event(5, FIRST, "lost", 0))
    overlap = Anomaly(A, "orders", 0, from_us=3 * S, until_us=5 * S, worker=FIRST)
    assert (2, [overlap]) == co_assigned(evidence, evidence.clients[0])


def test_an_outdated_assignment_that_is_reported_late() -> None:
    """A member that was away reports an assignment of an older epoch: it breaks the rule, and not the owner."""
    evidence = group(
        event(1, SECOND, "assigned", 0, epoch=11),
        event(3, FIRST, "assigned", 0, epoch=10),
        event(5, FIRST, "lost", 0),
        committed(4, SECOND),
    )
    overlap = Anomaly(A, "orders", 0, from_us=3 * S, until_us=5 * S, worker=FIRST)
    assert (2, [overlap]) == co_assigned(evidence, evidence.clients[0])
    assert (1, []) == fenced(evidence, evidence.clients[0])


def test_an_assignment_of_an_owned_partition_changes_nothing() -> None:
    """Some clients report all that they own at each rebalance."""
    evidence = group(event(1, FIRST, "assigned", 0), event(3, FIRST, "assigned", 0, 1), event(5, FIRST, "revoked", 0))
    (owner,) = evidence.clients
    assert [(0, 1.0), (1, 3.0)] == [(t.place[1], t.start_us / S) for t in tenures(evidence, owner)]


@pytest.mark.parametrize(("returned_s", "overlaps"), [(5, 0), (None, 0)])
def test_a_member_that_churn_may_have_killed_is_no_owner(returned_s: float | None, overlaps: int) -> None:
    """Another member gets its partition before it returns, or it never does."""
    events = [event(1, FIRST, "assigned", 0), event(3, SECOND, "assigned", 0)]
    events += [event(returned_s, FIRST, "restarted", life=1)] if returned_s else []
    journal = tuple(line | {"kind": "churn"} for line in fault("start_clients", 2, 6, FIRST, SECOND))
    evidence = group(*events, journal=journal)
    assert overlaps == len(co_assigned(evidence, evidence.clients[0])[1])
    earlier = group(*events, journal=tuple(line | {"t_us": line["t_us"] + 2 * S} for line in journal))
    assert len(co_assigned(earlier, earlier.clients[0])[1]) == 1


def test_an_owner_after_another() -> None:
    """Tenures that follow each other do not overlap, even at the same moment."""
    evidence = group(event(1, FIRST, "assigned", 0), event(3, FIRST, "revoked", 0), event(3, SECOND, "assigned", 0))
    assert (2, []) == co_assigned(evidence, evidence.clients[0])


@pytest.mark.parametrize(("bounds_us", "overlaps"), [((), 1), ((900, 1_100), 0), ((900, 900, 1_100), 0), ((999, 1), 1)])
def test_an_overlap_that_clocks_do_not_decide(bounds_us: tuple[int, ...], overlaps: int) -> None:
    """Two members on two hosts own a partition for 1.5 ms by their own clocks: the two worst clocks count."""
    evidence = group(
        event(1, FIRST, "assigned", 0), event(3, SECOND, "assigned", 0), event(3.0015, FIRST, "revoked", 0)
    )
    hosts = [{"name": f"orders-{n}", "clients": [], "clock_bound_us": bound} for n, bound in enumerate(bounds_us)]
    evidence = replace(evidence, run={**evidence.run, "hosts": hosts})
    assert overlaps == len(co_assigned(evidence, evidence.clients[0])[1])


def test_a_member_starts_where_its_group_has_committed() -> None:
    """The last commit that was acknowledged before; a reset of the position starts anew, without a commit."""
    evidence = group(
        event(1, FIRST, "assigned", 0),
        committed(2, FIRST),
        event(3, FIRST, "revoked", 0),
        event(4, SECOND, "assigned", 0),
        committed(5, SECOND) | {"offsets": [["orders", 0, 30]]},
        event(6, SECOND, "position_reset", topic="orders", partition=0, offset=17),
    )
    assert [
        Start(A, FIRST, "orders", 0, 1 * S, True, None, None, 3 * S),
        Start(A, SECOND, "orders", 0, 4 * S, True, 17, 2 * S, None),
        Start(A, SECOND, "orders", 0, 6 * S, False, None, None, None),
    ] == [*starts(evidence)]


FENCED = event(4, FIRST, "member_fenced", error="UNKNOWN_MEMBER_ID", took_us=1_000)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((FENCED,), [(1, 9)]),
        ((FENCED, event(12, FIRST, "assigned", 0)), [(1, 9), (12, None)]),
        ((FENCED, committed(14, FIRST)), [(1, 9), (14, None)]),
        ((FENCED, committed(4.05, FIRST)), [(1, 9)]),  # sent before
        # it stopped, or was a member again, in time
        ((FENCED, event(8, FIRST, "lost", 0)), [(1, 8)]),
        ((FENCED, event(5, FIRST, "assigned", 0)), [(1, None)]),
        ((FENCED, committed(7, FIRST)), [(1, None)]),
        ((FENCED | {"worker": SECOND},), [(1, None)]),
        ((FENCED | {"took_us": 3 * S + 1},), [(1, None)]),  # about an earlier membership
        ((FENCED | {"took_us": None},), [(1, None)]),
        ((FENCED, event(6, FIRST, "position_reset", topic="orders", partition=0)), [(1, 9), (6, 9)]),
    ],
)
def test_a_member_that_is_told_to_be_none(
    events: tuple[dict[str, Any], ...], expected: list[tuple[int, int | None]]
) -> None:
    evidence = group(event(1, FIRST, "assigned", 0), *events)
    found = [(start.at_us / S, start.ended_us and start.ended_us / S) for start in starts(evidence)]
    assert expected == found


@pytest.mark.parametrize(("ended", "expected"), [("revoked", [1]), ("restarted", [1, 3])])
def test_a_reader_outside_groups_starts_with_its_process(ended: str, expected: list[int]) -> None:
    evidence = group(event(1, FIRST, "assigned", 0), event(2, FIRST, ended, 0), event(3, FIRST, "assigned", 0))
    workload = {"name": "orders", "consume": {"topic": "orders", "group": None}, "arms": {"a": {}}}
    evidence = replace(evidence, timeline={**evidence.timeline, "workloads": [workload]})
    assert [at_s * S for at_s in expected] == [start.at_us for start in starts(evidence)]


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
    examined, accepted = fenced(evidence, evidence.clients[0])
    assert expected == (examined, len(accepted))
    assert all((one.client, one.worker, one.offset) == (A, FIRST, 17) for one in accepted)

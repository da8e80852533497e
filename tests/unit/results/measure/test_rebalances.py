"""Rebalances of a group: which partitions changed hands, for how long, and who stood still; and their story."""

from dataclasses import replace
from typing import Any

import pytest

from aftershock.results.evidence.evidence import Evidence
from aftershock.results.explain.chapter import rebalance_moments, rebalances_of
from aftershock.results.measure.rebalances import ownerless_waits, rebalances, waits_of
from aftershock.results.model.facts import OwnerlessWait, Rebalance, Stall
from aftershock.results.report import reading
from aftershock.results.report.timeline import owners
from aftershock.tests.unit.results.checks.slo.stage import S
from aftershock.tests.unit.results.checks.test_ownership import FIRST, SECOND, event, fault, group

Row = dict[str, Any]


def lane(
    worker: str, partition: int, since_s: float, *reads_s: float, due_s: float | None = None, again: int = 0
) -> Row:
    """Return a tenure's deliveries: their first and last time, and when the first fresh record was acknowledged."""
    first, last = (round(at_s * S) for at_s in (reads_s[0], reads_s[-1]))
    row = {"worker": worker, "topic": "orders", "partition": partition, "lane": 1, "since": round(since_s * S)}
    row |= {"first_us": first, "last_us": last, "n": 10 + again, "fresh": 10, "fresh_us": first}
    return row | {"due_us": first if due_s is None else round(due_s * S), "waits": []}


def silent(row: Row, from_s: float, to_s: float) -> Row:
    return row | {"waits": [{"from_us": round(from_s * S), "to_us": round(to_s * S)}]}


def found(evidence: Evidence, *rows: Row) -> tuple[Rebalance, ...]:
    (owner,) = evidence.clients
    return rebalances(evidence, owner, rows)


BEGIN = (event(1, FIRST, "assigned", 0, 1), event(1, SECOND, "assigned", 2))


def test_a_partition_changes_hands() -> None:
    """From its revocation to the first delivery of the new owner; records wait since they were due."""
    evidence = group(*BEGIN, event(20, FIRST, "revoked", 1), event(21, SECOND, "assigned", 1))
    rows = [
        lane(FIRST, 1, 1, 2, 19.9),
        lane(SECOND, 1, 21, 22.5, 40, due_s=20.5, again=3),
        silent(lane(FIRST, 0, 1, 2, 40), 20.2, 20.9),
        silent(lane(SECOND, 2, 1, 2, 40), 30, 35),
    ]
    (rebalance,) = found(evidence, *rows)
    assert (20 * S, 22.5 * S, 0, 0.7 * S, 1) == (
        rebalance.start_us,
        rebalance.end_us,
        rebalance.returned,
        rebalance.kept_us,
        rebalance.skew,
    )
    (change,) = rebalance.moved
    assert (FIRST, SECOND, 2 * S, 3) == (change.former, change.owner, change.unowned_us, change.again)


def test_partitions_that_return_to_their_owner_were_kept() -> None:
    """As in the eager protocol, in which everybody gives everything up."""
    evidence = group(
        *BEGIN,
        event(20, FIRST, "revoked", 0, 1),
        event(20, SECOND, "revoked", 2),
        event(23, FIRST, "assigned", 0, 1),
        event(23, SECOND, "assigned", 2),
    )
    rows = [silent(lane(FIRST, 0, 23, 23.1, 40), 20, 23.1), lane(FIRST, 1, 23, 23.2, 40), lane(SECOND, 2, 23, 23.3, 40)]
    (rebalance,) = found(evidence, *rows)
    assert ((), 3, 3.1 * S) == (rebalance.moved, rebalance.returned, rebalance.kept_us)


def test_changes_far_apart_are_different_rebalances() -> None:
    """A second lies between the end of one and the start of the next."""
    evidence = group(
        *BEGIN,
        event(20, FIRST, "revoked", 1),
        event(20.1, SECOND, "assigned", 1),
        event(22, FIRST, "revoked", 0),
        event(22.1, SECOND, "assigned", 0),
    )
    assert [(20, 20.1), (22, 22.1)] == [(one.start_us / S, one.end_us / S) for one in found(evidence)]


def test_a_dead_member_owned_its_partitions_until_its_death() -> None:
    """Nobody revokes them; the group notices the death later."""
    evidence = group(*BEGIN, event(30, SECOND, "assigned", 0, 1), journal=fault("start_clients", 20, 40, FIRST))
    (rebalance,) = found(evidence, lane(FIRST, 0, 1, 2, 19), lane(SECOND, 0, 30, 30.5, 50, due_s=19.5))
    assert (20, 30.5) == (rebalance.start_us / S, rebalance.end_us / S)
    assert {0: 11 * S, 1: None} == {change.place[1]: change.unowned_us for change in rebalance.moved}


def test_a_member_that_churn_killed_owned_its_partitions_until_its_last_delivery() -> None:
    """The fault names all members, and does not say when it killed whom; the others' partitions stay with them."""
    churn = tuple(line | {"kind": "churn"} for line in fault("start_clients", 5, 60, FIRST, SECOND))
    evidence = group(*BEGIN, event(30, SECOND, "assigned", 0, 1), event(40, FIRST, "restarted", life=1), journal=churn)
    rows = [lane(FIRST, 0, 1, 2, 19), lane(FIRST, 1, 1, 2, 19.5), lane(SECOND, 0, 30, 30.5, 50)]
    (rebalance,) = found(evidence, *rows)
    assert (19, 30.5) == (rebalance.start_us / S, rebalance.end_us / S)
    assert [0, 1] == [change.place[1] for change in rebalance.moved]


def ownerless(evidence: Evidence, *waits: tuple[int, float, float]) -> list[tuple[int, float, float, float]]:
    """Return ``partition start end lacking`` in seconds, of waits given as ``partition start end``."""
    (owner,) = evidence.clients
    by_place: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for partition, from_s, to_s in waits:
        by_place.setdefault(("orders", partition), []).append((round(from_s * S), round(to_s * S)))
    found: tuple[OwnerlessWait, ...] = ownerless_waits(evidence, owner, by_place)
    return [(wait.place[1], wait.start_us / S, wait.end_us / S, wait.lacking_us / S) for wait in found]


def test_an_eager_group_that_revokes_everything_has_no_owners_until_it_rejoins() -> None:
    """The same owners get the same partitions back 31 s later: every partition waited, though none changed hands."""
    evidence = group(
        *BEGIN,
        event(20, FIRST, "revoked", 0, 1),
        event(20, SECOND, "revoked", 2),
        event(51, FIRST, "assigned", 0, 1),
        event(51, SECOND, "assigned", 2),
    )
    waits = [(0, 19.9, 51.2), (1, 20.5, 51.1), (2, 19.8, 51.3)]
    assert [(2, 19.8, 51.3, 20), (0, 19.9, 51.2, 20), (1, 20.5, 51.1, 20.5)] == ownerless(evidence, *waits)


def test_a_paused_owner_delivers_nothing() -> None:
    """It owns its partitions for the 50 s of its pause, and reads on 12 s later."""
    evidence = group(*BEGIN, journal=fault("resume_clients", 20, 70, FIRST))
    assert [(0, 20.1, 82, 20.1), (1, 19.9, 82.1, 20)] == sorted(ownerless(evidence, (0, 20.1, 82), (1, 19.9, 82.1)))


@pytest.mark.parametrize("verb", ["start_clients", "resume_clients", "resume_polling"])
def test_partitions_of_a_dead_member_wait_for_their_next_owner(verb: str) -> None:
    """Killed, expelled while frozen, or excluded because it did not poll."""
    evidence = group(*BEGIN, event(65, SECOND, "assigned", 0), journal=fault(verb, 20, 90, FIRST))
    assert [(0, 19.9, 65.5, 20)] == ownerless(evidence, (0, 19.9, 65.5), (0, 66, 67))


def test_a_member_that_is_cut_off_learns_late_that_it_owns_nothing() -> None:
    """It reports `lost` after its partition has another owner; only that change shows that nobody could deliver."""
    evidence = group(*BEGIN, event(65, SECOND, "assigned", 0), event(70, FIRST, "lost", 0))
    assert [(0, 20, 65.5, 65)] == ownerless(evidence, (0, 20, 65.5))


def test_a_partition_that_is_never_read_again_waits_until_the_end() -> None:
    """A stall of the reader is a wait, also without a delivery that ends it; stalls of others are not."""
    evidence = group(*BEGIN, event(20, FIRST, "revoked", 0))
    (owner,) = evidence.clients
    stalls = [Stall("consume", owner.key, 0, 20 * S, 40 * S), Stall("produce", owner.key, 2, 20 * S, 40 * S)]
    stalls.append(Stall("consume", owner.key, None, 20 * S, 40 * S))
    found = ownerless_waits(evidence, owner, waits_of(owner, (), stalls))
    assert (OwnerlessWait(("orders", 0), 20 * S, 40 * S, 20 * S),) == found


@pytest.mark.parametrize(
    "wait",
    [
        (2, 15, 19),  # an owner that is slow, or a broker that is dead
        (0, 15, 19.9),  # before the change
        (0, 24, 26),  # after it
        (0, 0.5, 1.5),  # before the group has started
        (1, 60, 70),  # an owner, also while a former owner is frozen
    ],
)
def test_waits_of_delivering_owners_do_not_count(wait: tuple[int, float, float]) -> None:
    evidence = group(
        *BEGIN,
        event(20, FIRST, "revoked", 0),
        event(23, SECOND, "assigned", 0),
        event(58, SECOND, "assigned", 1),
        journal=fault("resume_clients", 50, 80, FIRST),
    )
    assert [] == ownerless(evidence, wait)


def test_churn_of_all_members_does_not_freeze_those_that_live() -> None:
    """The fault names all members, and does not say when it killed whom."""
    churn = tuple(line | {"kind": "churn"} for line in fault("start_clients", 5, 60, FIRST, SECOND))
    assert [] == ownerless(group(*BEGIN, journal=churn), (0, 10, 30), (2, 10, 30))


def test_a_member_of_another_workload_owns_a_partition_too() -> None:
    """Two workloads share the group, and the partition was with the other one for a while."""
    evidence = group(*BEGIN, event(20, FIRST, "revoked", 0), event(50, FIRST, "assigned", 0))
    mate = replace(evidence.clients[0], workload="audit")
    (workload,) = evidence.timeline["workloads"]
    both = [workload, workload | {"name": "audit"}]
    theirs = event(20.5, "audit-a-consume-1", "assigned", 0) | {"workload": "audit"}
    given = event(49, "audit-a-consume-1", "revoked", 0) | {"workload": "audit"}
    shared = replace(
        evidence,
        clients=(*evidence.clients, mate),
        events=(*evidence.events, theirs, given),
        timeline={**evidence.timeline, "workloads": both},
    )
    owner = evidence.clients[0]
    waits = {("orders", 0): [(20 * S, 51 * S)]}
    assert () == ownerless_waits(shared, owner, waits)
    assert 1 == len(ownerless_waits(evidence, owner, waits))


@pytest.mark.parametrize(("returned", "told_as"), [(False, "member 1 loses orders/1"), (True, "returns to its owner")])
def test_the_story_of_a_rebalance(returned: bool, told_as: str) -> None:
    """Who lost what, who got it, and how long records waited; or that all returned."""
    new_owner = FIRST if returned else SECOND
    evidence = group(*BEGIN, event(20, FIRST, "revoked", 1), event(21, new_owner, "assigned", 1))
    (owner,) = evidence.clients
    (rebalance,) = found(evidence, lane(FIRST, 1, 1, 2, 19.9), lane(new_owner, 1, 21, 22, 40, due_s=20))
    rows = [vars(rebalance) | {"moved": [vars(change) for change in rebalance.moved]}]
    analysis = {"rebalances": [{"client": owner.key, "rebalances": rows}]}
    moments = [*rebalance_moments(rebalances_of(analysis, owner), owner, 0, 60 * S, "arm=a")]
    assert told_as in moments[0].text
    assert [] == [*rebalance_moments(rows, owner, 30 * S, 60 * S, "arm=a")]
    if not returned:
        assert (
            "member 2 gets orders/1; orders/1 was read again last; records of orders/1 waited 2.000 s"
            in moments[1].text
        )
        wait = {"place": ["orders", 1], "start_us": 20 * S, "end_us": 22 * S, "lacking_us": 20 * S}
        unowned = {"unowned": [{"client": owner.key, "waits": [wait]}]}
        (lanes,) = owners(evidence, analysis | unowned, {}, 60 * S)
        assert "member 2" in str(lanes.texts)
        assert lanes.reading.startswith("1 rebalances, the longest took 2.0 s; a record waited up to 2.0 s without")
    assert "The group did not rebalance." == reading.ownership(())

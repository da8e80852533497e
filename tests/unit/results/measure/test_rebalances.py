"""Rebalances of a group: which partitions changed hands, for how long, and who stood still; and their story."""

from typing import Any

import pytest

from aftershock.results.evidence.evidence import Evidence
from aftershock.results.explain.rebalances import of_client, told
from aftershock.results.measure.facts import Rebalance
from aftershock.results.measure.rebalances import rebalances
from aftershock.results.report.ownership import charts, reading
from aftershock.tests.unit.results.checks.slo.stage import S
from aftershock.tests.unit.results.checks.test_ownership import FIRST, SECOND, event, fault, group

Row = dict[str, Any]


def lane(
    worker: str, partition: int, since_s: float, *reads_s: float, due_s: float | None = None, again: int = 0
) -> Row:
    """Return the deliveries of a tenure: their first and last time, and when the first fresh record was due."""
    first, last = (round(at_s * S) for at_s in (reads_s[0], reads_s[-1]))
    row = {"worker": worker, "topic": "orders", "partition": partition, "lane": 1, "since": round(since_s * S)}
    row |= {"first_us": first, "last_us": last, "n": 10 + again, "fresh": 10, "fresh_us": first}
    return row | {"due_us": first if due_s is None else round(due_s * S), "silences": []}


def silent(row: Row, from_s: float, to_s: float) -> Row:
    return row | {"silences": [{"from_us": round(from_s * S), "to_us": round(to_s * S)}]}


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


@pytest.mark.parametrize(("returned", "told_as"), [(False, "member 1 loses orders/1"), (True, "returns to its owner")])
def test_the_story_of_a_rebalance(returned: bool, told_as: str) -> None:
    """Who lost what, who got it, and how long records waited; or that all returned."""
    new_owner = FIRST if returned else SECOND
    evidence = group(*BEGIN, event(20, FIRST, "revoked", 1), event(21, new_owner, "assigned", 1))
    (owner,) = evidence.clients
    (rebalance,) = found(evidence, lane(FIRST, 1, 1, 2, 19.9), lane(new_owner, 1, 21, 22, 40, due_s=20))
    rows = [vars(rebalance) | {"moved": [vars(change) for change in rebalance.moved]}]
    analysis = {"rebalances": [{"client": owner.key, "rebalances": rows}]}
    moments = [*told(of_client(analysis, owner), owner, 0, 60 * S, "arm=a")]
    assert told_as in moments[0].text
    assert [] == [*told(rows, owner, 30 * S, 60 * S, "arm=a")]
    if not returned:
        assert (
            "member 2 gets orders/1; orders/1 was read again last; records of orders/1 waited 2.000 s"
            in moments[1].text
        )
        (chart,) = charts(evidence, analysis, {})
        assert "member 2" in chart.svg
        assert chart.reading.startswith("1 rebalances, the longest took 2.0 s; a record waited up to 2.0 s")
    assert "The group did not rebalance." == reading(())

"""Rows of a card: marks from medians and checks, what the cluster alone needs, ranks, advice and upgrades."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from aftershock.results.model.check import Check, Status
from aftershock.results.studies.recount import Recount
from aftershock.results.studies.scoring import Scored, cluster_checks, score
from aftershock.results.studies.suite import Row, copies, registered
from aftershock.tests.unit.results.studies.audited import CLUSTER, audited

(HALF_OPEN,) = (row for row in registered().rows if row.id == "half-open")
SETTINGS = {"replica.lag.time.max.ms": "5000"}
LIMIT_S = 8.0
GOOD = Check("integrity/lost", "integrity", "arm=java", Status.PASS, 9, 1, "records", "none", 0.0, arm="java")
BAD = replace(GOOD, status=Status.FAIL, observed=2.0, why="2 of 9 records")
GAVE_UP = Check("slo/produce.success", "slo", "arm=java", Status.FAIL, 9, 1, "%", "", 96.0, 100.0, "java", gate=False)
OPEN = replace(GOOD, status=Status.INCONCLUSIVE, why="not all was read")
BUSY = Check("harness/host", "harness", "host", Status.INCONCLUSIVE, 0, 1, "", "the host was busy")
LATE = Check("harness/generator", "harness", "arm=java", Status.INCONCLUSIVE, 0, 1, "", "java was late", arm="java-2nd")


def scored(
    home: Path,
    seconds: Mapping[str, float | Sequence[float]],
    *checks: Check,
    row: Row = HALF_OPEN,
    clients: Mapping[str, str] | None = None,
    count: int = 3,
) -> Scored:
    """Return the row of a run whose clients, in three copies and two repetitions, need so many seconds."""
    outages = {
        arm: (s, s) if isinstance(s, float) else s
        for client, s in seconds.items()
        for arm in (copies(client, count) if client != "ideal" else [client])
    }
    part = audited(home / "run", outages, *checks, clients=clients)
    assert CLUSTER == part.run.timeline["cluster"]
    return score(row, Recount(part, row.workload), registered(), SETTINGS)


@pytest.mark.parametrize(
    ("java_s", "checks", "mark", "reason"),
    [
        (3.0, [GOOD], "kept", ""),
        (LIMIT_S - 0.2, [], "kept", ""),
        (LIMIT_S + 0.2, [], "slow", "recovery: 8.2"),
        # the median decides, not the worst
        ([3.0, 20.0], [], "slow", "recovery: 11.5"),
        (50.0, [], "slow", "recovery: not before the heal, after 40 s, limit 8 s"),
        (3.0, [GAVE_UP], "slow", "produce.success: 96 %, limit 100 %"),
        (3.0, [BAD], "broken", "integrity/lost: 2 of 9 records"),
        # what fails stands, whatever the host did; what is only late does not
        (3.0, [BAD, BUSY], "broken", "integrity/lost: 2 of 9 records"),
        (50.0, [BUSY], "open", "the host was busy"),
        (3.0, [LATE], "open", "java was late"),
        (3.0, [OPEN], "open", "integrity/lost: not all was read"),
        (50.0, [OPEN], "slow", "not before the heal"),
    ],
)
def test_marks(tmp_path: Path, java_s: float | Sequence[float], checks: list[Check], mark: str, reason: str) -> None:
    java, other = scored(tmp_path, {"java": java_s, "other": 3.0, "ideal": 1.0}, *checks).cells
    assert (mark, True) == (java.mark, reason in java.reason), java.reason
    assert bool(reason) == bool(java.reason)
    assert other.mark == ("open" if BUSY in checks else "kept")


def test_the_heal_decides_nothing_if_it_came_before_the_limit(tmp_path: Path) -> None:
    row = replace(HALF_OPEN, limit={"lag": 10})
    java = scored(tmp_path, {"java": 50.0}, row=row).cells[0]
    assert ("open", True) == (java.mark, "not before the heal, which came after 40 s, before the limit" in java.reason)
    assert (True, 0) == (java.is_bound, java.before_heal)


def test_no_client_is_slow_for_what_the_cluster_alone_needs(tmp_path: Path) -> None:
    java = scored(tmp_path, {"java": 12.0, "ideal": 11.0}).cells[0]
    assert ("open", True) == (java.mark, "the cluster alone needed longer than the limit, too" in java.reason)


def test_fewer_units_than_registered_are_undecided(tmp_path: Path) -> None:
    unseen = Check("witness/f-2", "witness", "fault=f-2", Status.INCONCLUSIVE, 0, 1, "", "not seen")
    java = scored(tmp_path, {"java": 3.0}, unseen).cells[0]
    assert ("open", "3 of at least 6 units took effect") == (java.mark, java.reason)


def test_a_row_says_what_the_cluster_alone_needs_and_whether_clients_differ(tmp_path: Path) -> None:
    made = scored(tmp_path, {"java": 30.0, "slow": 45.0, "twin": 30.0, "ideal": 1.0}, count=2)
    line = made.line
    assert (LIMIT_S, "lag + 2 backoff + slack") == (line.limit_s, line.formula)
    assert (2, False) == (line.alone.n, line.alone_is_bound)
    assert pytest.approx(1.0, abs=0.1) == line.alone.median_s
    # two repetitions of two copies are four units, too few to tell anybody apart
    assert (False, {None}) == (line.told_apart, {cell.rank for cell in made.cells})


def test_ranks_and_differences(tmp_path: Path) -> None:
    """A client that waits for the heal is behind by at least the difference; the ideal client has no rank."""
    made = scored(tmp_path, {"java": 30.0, "slow": 45.0, "ideal": 1.0})
    java, slow = made.cells
    assert (True, 1, 2) == (made.line.told_apart, java.rank, slow.rank)
    assert made.line.explained == pytest.approx(1.0, abs=0.01)
    assert slow.behind
    assert (True, pytest.approx(10.0, abs=0.2), 6) == (slow.behind.at_least, slow.behind.median_s, slow.behind.n)
    assert (None, "java") == (java.behind, slow.best)


def test_a_single_client_has_no_rank(tmp_path: Path) -> None:
    made = scored(tmp_path, {"java": 30.0})
    assert (None, None, 0) == (made.line.explained, made.cells[0].rank, made.line.alone.n)


def test_advice_cites_a_record_of_the_client_and_what_its_trial_saved(tmp_path: Path) -> None:
    """The advised client is behind nobody, and no rank of it is shown."""
    seconds = {"java": 30.0, "java-advised": 6.0, "ideal": 1.0}
    made = scored(tmp_path, seconds, clients={"java": "java", "java-advised": "java"})
    (advice,) = made.advice
    assert "its record 0:" in advice.record or "its record 1:" in advice.record or "its record 2:" in advice.record
    assert "took 29.9 s" in advice.record
    assert "Tried: saves 24.0 s (24.0 to 24.0, n = 6)." == advice.tried
    assert {None} == {cell.rank for cell in made.cells}


def test_what_was_saved_is_at_least_so_much_if_only_the_heal_ended_it(tmp_path: Path) -> None:
    seconds = {"java": 50.0, "java-advised": 6.0}
    (advice,) = scored(tmp_path, seconds, clients={"java": "java", "java-advised": "java"}).advice
    assert advice.tried.startswith("Tried: saves at least 34.0 s")


def test_checks_count_in_their_own_workload(tmp_path: Path) -> None:
    """Two workloads have clients of one name; a failure in one of them is not held against the other one."""
    named = replace(BAD, subject="workload=unkeyed arm=java produce")
    outages = dict.fromkeys(copies("java", 3), (3.0, 3.0))
    part = audited(tmp_path / "run", outages, named, workloads=("orders", "unkeyed"))
    unkeyed = replace(HALF_OPEN, workload="unkeyed")
    marks = [
        score(row, Recount(part, row.workload), registered(), SETTINGS).cells[0].mark for row in (HALF_OPEN, unkeyed)
    ]
    assert ["kept", "broken"] == marks


def test_counts_of_copies_are_added(tmp_path: Path) -> None:
    checks = [replace(BAD, id="integrity/duplicate", arm=arm) for arm in ("java", "java-2nd")]
    assert 4 == scored(tmp_path, {"java": 3.0}, *checks).cells[0].duplicates


def test_the_checks_of_the_cluster_are_those_of_no_client(tmp_path: Path) -> None:
    replica = Check("integrity/replica", "integrity", "log", Status.FAIL, 9, 1, "", "2 replicas differ")
    ideal = replace(OPEN, arm="ideal")
    of_all = Check("slo/lost", "slo", "all arms", Status.FAIL, 9, 1, "records", "2 of 9 records")  # those of BAD
    part = audited(tmp_path / "run", {"java": (3.0, 3.0), "ideal": (1.0, 1.0)}, replica, ideal, BAD, GOOD, of_all)
    assert [replica, ideal] == cluster_checks(part)

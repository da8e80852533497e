"""Coverage: coordinates of a cell (phase, role of the target, client), and tallies of the ledger's lines."""

from dataclasses import replace
from datetime import date, timedelta

import pytest

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find
from aftershock.faults.search.coverage import (
    RECOVERING_MS,
    STALE_AFTER,
    Cell,
    CoverageLine,
    Worker,
    can_affect,
    matrix,
    phase_at,
    role_of,
    tally_cells,
    uncovered_cells,
    workers_of,
)


@pytest.mark.parametrize(
    ("start_ms", "phase"),
    [
        (0, "steady"),
        (4_999, "steady"),
        (5_000, "overlapping"),
        (7_999, "overlapping"),
        (8_000, "recovering"),
        (8_000 + RECOVERING_MS - 1, "recovering"),
        (8_000 + RECOVERING_MS, "steady"),
    ],
)
def test_the_phase_at_a_faults_start(start_ms: float, phase: str) -> None:
    """Another fault lasts from 5 to 8 s; a fault that starts later has no influence."""
    assert phase == phase_at(start_ms, [(5_000, 8_000), (100_000, 200_000)])


def test_an_overlap_hides_a_recovery() -> None:
    """A fault that starts during one fault and right after another overlaps."""
    assert "overlapping" == phase_at(6_000, [(0, 5_500), (5_000, 9_000)])


def fault(kind: str, **parameters: object) -> Fault:
    lasting = {} if KINDS[kind].for_rule == "refused" else {"for": "4s"}
    return KINDS[kind].model_validate({"kind": kind, **lasting, **parameters})


@pytest.mark.parametrize(
    ("role", "one"),
    [
        ("leader", fault("kill", broker="leader of orders/0")),
        ("follower", fault("kill", broker="replica of orders/0 in rack b")),
        ("controller", fault("pause", broker="controller")),
        ("coordinator", fault("stop", broker="coordinator of readers-baseline")),
        ("transaction coordinator", fault("stop", broker="transaction coordinator of orders-baseline-produce")),
        ("broker", fault("kill", broker="2")),
        ("broker", fault("kill", broker="any broker except controller")),
        ("client link", fault("latency", link="client(a) -> broker(leader of orders/0)", delay="50ms")),
        ("replication link", fault("stall", link="replication(a) -> broker")),
        ("rack link", fault("cut", link="rack(a) <-> rack(b)")),
        ("rack", fault("lose_rack", rack="a")),
        ("topic", fault("elect", topic="orders")),
        ("client", fault("disconnect_client", client="baseline")),
        ("produce", fault("kill_client", client="baseline", op="produce")),
        ("Produce requests", fault("drop_request", api="Produce", topic="orders")),
        ("Fetch requests", fault("cap_versions", versions={"Fetch": 12})),
        ("all requests", fault("strip_hints", hints=["current_leader"])),
        ("cluster", fault("kill_controller")),
    ],
)
def test_the_role_of_a_faults_target(role: str, one: Fault) -> None:
    """The role is that of the most specific target."""
    assert role == role_of(one)


def worker(name: str) -> Worker:
    crew = workers_of(load_plan(find("explore")).plan)
    (result,) = [each for each in crew if f"{each.workload}/{each.arm} {each.op}" == name]
    return result


def test_the_clients_of_a_plan() -> None:
    """There is a worker for each operation of each arm, labelled with client and guarantee."""
    crew = workers_of(load_plan(find("explore")).plan)
    assert 10 == len(crew)
    assert "confluent produce acks=all idempotent" == worker("safe/confluent produce").label
    assert "confluent produce acks=1" == worker("quick/confluent produce").label
    assert "reference consume in a group" == worker("safe/reference consume").label
    assert "reference consume" == worker("plain/reference consume").label
    assert ("reference commit", ("orders",)) == (
        worker("commits/reference commit").label,
        worker("commits/reference commit").topics,
    )


@pytest.mark.parametrize(
    ("one", "met", "missed"),
    [
        (fault("latency", link="client(a) -> broker", delay="9ms"), "safe/confluent produce", "safe/confluent consume"),
        (fault("latency", link="client(*) -> broker", delay="9ms"), "safe/confluent consume", None),
        (fault("stall", link="replication(a) -> broker"), "quick/confluent produce", "safe/confluent consume"),
        (fault("elect", topic="clicks"), "plain/reference consume", "safe/reference consume"),
        (
            fault("kill_client", client="safe/confluent", op="consume"),
            "safe/confluent consume",
            "safe/confluent produce",
        ),
        (fault("kill_client", client="reference"), "plain/reference produce", "plain/confluent produce"),
        (fault("drop_request", api="Produce"), "safe/reference produce", "safe/reference consume"),
        (fault("drop_request", api="Fetch"), "plain/reference consume", "commits/reference commit"),
        (fault("drop_request", api="OffsetCommit"), "commits/reference commit", "plain/confluent consume"),
        (fault("drop_request", api="OffsetCommit"), "safe/confluent consume", "safe/confluent produce"),
        (fault("kill", broker="1"), "safe/confluent consume", None),
    ],
)
def test_clients_that_a_fault_can_affect(one: Fault, met: str, missed: str | None) -> None:
    """A client that doesn't use the link, the topic or the API is not affected."""
    assert can_affect(one, worker(met))
    assert missed is None or not can_affect(one, worker(missed))


TODAY = date(2026, 11, 22)
KILL = Cell("kill", "leader", "steady", "confluent produce acks=all")
CUT = Cell("cut", "rack", "recovering", "reference commit")
LINE = CoverageLine(TODAY, "r1", 7, 0, KILL, exercised=True, why="", verdict="PASS", recovered_s=3.5)


def test_cells_are_never_exercised_stale_or_counted() -> None:
    """Fourteen nights are fresh, fifteen are stale; a failed attempt doesn't exercise the cell."""
    old, edge = TODAY - STALE_AFTER - timedelta(days=1), TODAY - STALE_AFTER
    lines = [replace(LINE, night=old), replace(LINE, cell=CUT, exercised=False)]
    result = tally_cells(lines, TODAY)
    assert "STALE, 15 d" == result[KILL].word(TODAY)
    assert ("NEVER", 1) == (result[CUT].word(TODAY), result[CUT].tried)
    fresh = tally_cells([*lines, replace(LINE, night=edge)], TODAY)[KILL]
    assert ("2x, 14 d", 1) == (fresh.word(TODAY), fresh.fresh)


def test_the_matrix() -> None:
    """The matrix has a line for each kind, with all its roles; phases and workloads are summed."""
    late = KILL._replace(phase="recovering")
    cells, result = [KILL, late, CUT], tally_cells([LINE], TODAY)
    assert "cut   rack NEVER\nkill  leader 1x, 0 d" == matrix(cells, result, TODAY)
    assert {"NEVER": [CUT, late], "STALE": []} == uncovered_cells(cells, result, TODAY)

"""Random plans of the search: reproducible, always valid, and aimed at the least exercised cells."""

from collections.abc import Iterator
from datetime import date
from functools import cache

import pytest

from aftershock.errors import PlanError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.kafka.reassign import Reassign
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.expand import end_ms
from aftershock.faults.plan.model import Plan
from aftershock.faults.plans import find
from aftershock.faults.search import swarm
from aftershock.faults.search.coverage import PHASES, Cell, Tally, can_affect, role_of, workers_of
from aftershock.faults.search.swarm import FAULTS_MAX, LONGEST_MS, Frame, draw_plan, frame_of, planned_phase
from aftershock.faults.timeline.compile import compile_plan

TODAY = date(2026, 11, 22)
ONCE = Tally(1, 1, 0, TODAY)
SMALL = """
name: mine
cluster: {racks: {a: 1, b: 1}}
topics: [{name: t, partitions: 2, replication: 2}]
workloads:
  - {name: w, produce: {topic: t, rate: 50/s}, arms: {one: {}, other: {client: reference}}}
timing: {warmup: {min: 1s, max: 2s}, steady: 2s, fault: 2s, recovery: 2s}
faults: [{id: own, at: 0s, for: 4s, kind: kill, broker: leader of t/0}]
blocks: 3
slo:
  - "lost == 0"
  - "lost == 0 for other"
  - "produce.gap < 9s in fault/own"
"""


@cache
def shipped() -> Frame:
    return frame_of(load_plan(find("explore")))


def of(text: str) -> Plan:
    return load_plan(text).plan


def cells_of(plan: Plan) -> Iterator[Cell]:
    """Return the cells that a run of this plan exercises if everything happens as planned."""
    faults = [fault for fault in plan.faults if isinstance(fault, Fault)]
    for fault in faults:
        phase = planned_phase(fault, [other for other in faults if other is not fault], plan.timing)
        labels = {worker.label for worker in workers_of(plan) if can_affect(fault, worker)}
        yield from (Cell(fault.kind, role_of(fault), phase, label) for label in labels)


def covered(frame: Frame, runs: int, seed: int = 0) -> dict[Cell, Tally]:
    """Return the tallies after ``runs`` runs, each drawn with the tallies of those before."""
    seen: dict[Cell, Tally] = {}
    for number in range(runs):
        for cell in cells_of(of(draw_plan(frame, seen, seed, number).text)):
            before = seen.get(cell, Tally())
            seen[cell] = Tally(before.exercised + 1, before.fresh + 1, 0, TODAY)
    return seen


def test_equal_inputs_give_equal_plans() -> None:
    """Seed, number and tallies determine the plan byte for byte; each of them changes it."""
    frame = shipped()
    first = draw_plan(frame, {}, 7, 3)
    assert first == draw_plan(frame_of(load_plan(find("explore"))), {}, 7, 3)
    others = [draw_plan(frame, {}, 8, 3), draw_plan(frame, {}, 7, 4), draw_plan(frame, {first.goal: ONCE}, 7, 3)]
    assert first.text not in {other.text for other in others}


@pytest.mark.parametrize("seed", range(40))
def test_every_plan_can_be_run(seed: int) -> None:
    """A drawn plan passes the check, compiles, is short, and has the fault and client of its goal."""
    drawn = draw_plan(shipped(), {}, seed, 0)
    plan = of(drawn.text)
    assert compile_plan(plan, seed, "", [""] * len(plan.slo)).length_ms <= LONGEST_MS
    assert 1 <= len(plan.faults) <= FAULTS_MAX
    assert drawn.goal in set(cells_of(plan))
    assert drawn.goal in shipped().cells
    assert plan.cluster.wire_proxy


def test_every_kind_can_be_reached() -> None:
    """Every kind has cells, in every phase, unless it needs an image of another version or a group without members.

    Kinds that are invalid beside the frame's ``disks`` are drawn without them.
    ``hide_error`` has none: a client that is told of success can't keep its promises. The frame has no transactions.
    """
    of_transactions = {"move_transaction_coordinator", "fence_producer", "abort_transaction", "hold_request"}
    elsewhere = {kind for kind, fault in KINDS.items() if "kubernetes" in fault.needs}
    assert KINDS.keys() - {"rolling_upgrade", "delete_group_offsets", "hide_error"} - of_transactions - elsewhere == {
        cell.fault for cell in shipped().cells
    }
    assert set(PHASES) == {cell.phase for cell in shipped().cells}


@pytest.mark.parametrize("kind", ["strip_hints", "falsify_hints"])
def test_kinds_without_own_effect_get_companions(kind: str) -> None:
    """Leaders move while metadata responses are falsified, in the topic of the client that the plan was drawn for."""
    frame = shipped()
    goals = [cell for cell in frame.cells if cell.fault == kind]
    seen = dict.fromkeys(set(frame.cells) - set(goals), ONCE)
    for seed in range(20):
        faults = [fault for fault in of(draw_plan(frame, seen, seed, 0).text).faults if isinstance(fault, Fault)]
        (lie,) = (fault for fault in faults if fault.kind == kind)
        moves = [fault for fault in faults if isinstance(fault, Reassign) and fault.rotate]
        assert any(lie.at < move.at < end_ms(lie) for move in moves)


def test_the_least_exercised_comes_first() -> None:
    """A run is drawn for a cell that was never exercised, if there is one; failed attempts count as exercised."""
    frame = shipped()
    left = frame.cells[7::400]
    seen = {cell: ONCE if place % 2 else Tally(tried=1) for place, cell in enumerate(frame.cells) if cell not in left}
    assert {draw_plan(frame, seen, seed, 0).goal for seed in range(30)} <= set(left)


def test_what_is_stale_is_drawn_again() -> None:
    """A cell exercised often, but not recently, is drawn before one exercised once last night."""
    frame = shipped()
    stale = Tally(exercised=50, fresh=0, latest=date(2026, 1, 1))
    seen = {cell: stale if cell == frame.cells[11] else ONCE for cell in frame.cells}
    assert frame.cells[11] == draw_plan(frame, seen, 1, 0).goal


def test_all_reachable_cells_are_exercised() -> None:
    """Half as many runs as cells exercise all cells of a small frame."""
    frame = frame_of(load_plan(SMALL))
    result = covered(frame, len(frame.cells) // 2)
    assert set(frame.cells) == set(result)


def test_runs_have_different_arms() -> None:
    """Each run has one to four arms, about half of them, in different combinations."""
    plans = [of(draw_plan(shipped(), {}, seed, 0).text) for seed in range(40)]
    casts = {tuple((workload.name, arm) for workload in plan.workloads for arm in workload.arms) for plan in plans}
    assert len(casts) > 10
    assert {2, 3, 4} <= {len(cast) for cast in casts} <= {1, 2, 3, 4}


def test_a_frame_gives_all_but_the_faults() -> None:
    """The frame's own faults and blocks are left out; its SLOs are kept if valid for the drawn plan."""
    frame = frame_of(load_plan(SMALL))
    plans = [of(draw_plan(frame, {}, seed, 0).text) for seed in range(20)]
    assert {1} == {plan.blocks for plan in plans}
    arms = {
        tuple(plan.workloads[0].arms): {slo.slo for slo in plan.objectives if slo.gate == "verdict"} for plan in plans
    }
    assert {"lost == 0"} == arms["one",]
    assert {"lost == 0", "lost == 0 for other"} == arms["one", "other"]


def test_recovery_is_reported_if_steady_has_enough_records() -> None:
    """An SLO of recovery is added per fault with `gate: report`."""
    plans = [of(draw_plan(shipped(), {}, seed, 0).text) for seed in range(20)]
    producing = [plan for plan in plans if any(workload.produce for workload in plan.workloads)]
    assert {"report"} == {slo.gate for plan in producing for slo in plan.objectives}
    assert all(len(plan.objectives) == len(plan.faults) for plan in producing)


def test_a_kind_of_another_package_is_drawn_from_its_schema() -> None:
    """Required fields are filled in by type; a kind with an unknown field type has no template."""
    assert [{"broker": "BROKER"}] == swarm._template_from_schema(KINDS["kill"])
    assert [{"link": "CLIENT_LINK", "delay": ["100ms", "1s"]}] == swarm._template_from_schema(KINDS["latency"])
    assert [] == swarm._template_from_schema(KINDS["answer_error"])


def test_attached_clusters_are_not_explored() -> None:
    """The message says so, with a remedy."""
    attached = SMALL.replace("{racks: {a: 1, b: 1}}", "{attach: {bootstrap: 'localhost:9092'}}")
    only_link = attached.replace("kind: kill, broker: leader of t/0", "kind: kill_client, client: one")
    with pytest.raises(PlanError, match="explore launches its own clusters; remove `attach` from the plan"):
        frame_of(load_plan(only_link))

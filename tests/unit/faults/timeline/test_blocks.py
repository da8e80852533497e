"""Blocks: repetitions of the plan's faults, with their ids, start times and phases."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.model import Plan
from aftershock.faults.timeline.compile import compile_plan
from aftershock.faults.timeline.lanes import WIDTH, lanes
from aftershock.faults.timeline.timeline import Marks, from_json, phases
from aftershock.tests.unit.faults.conftest import FRAME, timeline_of

if TYPE_CHECKING:
    from aftershock.faults.timeline.timeline import Timeline


S = 1_000_000
KILL = "{at: 1s, for: 4s, kind: kill, broker: 1}"
MOVE = "{id: turn, at: 8s, kind: reassign, topic: orders, rotate: 1}"
SLOW = 'kind: latency, link: "client(a) -> broker", delay: {range: [1ms, 500ms]}'
ROUNDS = f"{{at: 8s, repeat: 2, every: 5s, fault: {{for: 2s, {SLOW}}}}}"


def blocks_of(count: object, *faults: str, seed: int = 7) -> Timeline:
    return timeline_of(*faults, seed=seed, frame=FRAME.replace("timing:", f"blocks: {count}\ntiming:"))


def test_blocks_follow_each_other() -> None:
    """A block starts after the planned end and recovery of the block before; the last block ends the load."""
    timeline, alone = blocks_of(3, KILL, MOVE), timeline_of(KILL, MOVE)
    each_ms = alone.length_ms
    assert (0, each_ms, 2 * each_ms) == timeline.blocks_ms
    assert 3 * each_ms == timeline.length_ms
    begun = [(step.id, step.entry, step.block, step.at_ms) for step in timeline.steps]
    assert begun == [
        (f"{entry}-{block}", entry, block, (block - 1) * each_ms + at_ms)
        for block in (1, 2, 3)
        for entry, at_ms in (("kill-1", 1000), ("turn", 8000))
    ]


def test_a_block_is_the_outermost_round() -> None:
    """Rounds of a repeat follow the block's number; the step also has the id of the plan."""
    steps = blocks_of(2, ROUNDS).steps
    assert ["latency-1-1-1", "latency-1-1-2", "latency-1-2-1", "latency-1-2-2"] == [step.id for step in steps]
    assert {"latency-1"} == {step.entry for step in steps}


def test_one_block_equals_no_blocks() -> None:
    """`blocks: 1` gives the same timeline, byte for byte."""
    assert timeline_of(KILL, ROUNDS).to_json() == blocks_of(1, KILL, ROUNDS).to_json()
    assert () == blocks_of(1, KILL).blocks_ms


def test_blocks_draw_independently() -> None:
    """Twenty blocks of a range have different values, and more blocks change no draw of earlier blocks."""
    fault = f"{{for: 2s, {SLOW}}}"
    drawn = [step.parameters["delay"] for step in blocks_of(20, fault).steps]
    assert len(set(drawn)) > 10
    assert drawn[:3] == [step.parameters["delay"] for step in blocks_of(3, fault).steps]


def test_length_of_a_block_may_be_drawn() -> None:
    """If `for` is a range, each block has its own length, and the next block starts after it."""
    timeline = blocks_of(6, "{for: {range: [2s, 20s]}, kind: pause, broker: 1}")
    lengths = {end - begin for begin, end in zip(timeline.blocks_ms, timeline.blocks_ms[1:], strict=False)}
    assert len(lengths) > 2
    assert all(step.at_ms == timeline.blocks_ms[step.block - 1] for step in timeline.steps)


def test_timeline_keeps_blocks() -> None:
    """A timeline with blocks reads back equal; a timeline of an older version has no blocks."""
    timeline = blocks_of(3, KILL)
    assert timeline == from_json(timeline.to_json())
    old = json.loads(timeline_of(KILL).to_json())
    del old["blocks_ms"], old["steps"][0]["block"], old["steps"][0]["entry"]
    assert (0, "") == (
        from_json(json.dumps(old).encode()).steps[0].block,
        from_json(json.dumps(old).encode()).steps[0].entry,
    )


@pytest.mark.parametrize(
    ("count", "rule"),
    [
        ("0", "at least 1"),
        ("-1", "at least 1"),
        ("101", "at most 100"),
        ("two", "an integer"),
        ("1.5", "an integer"),
        ("true", "an integer"),
    ],
)
def test_invalid_number_of_blocks(count: str, rule: str) -> None:
    """Only integers from 1 to 100 are valid; anything else is reported once, with its position."""
    with pytest.raises(PlanError) as caught:
        blocks_of(count, KILL)
    assert [f"plan.yaml:8:9: `blocks` must be {rule}, got `{count}`"] == list(caught.value.problems)


def test_bounds_count_every_block() -> None:
    """The limits of 500 steps and of one day include every block."""
    many, slow = f"{{repeat: 90, fault: {{for: 1s, {SLOW}}}}}", "{for: 7h, kind: pause, broker: 1}"
    with pytest.raises(PlanError, match=r"exceeds the limit of 500 faults and waits: use fewer than 6 `blocks`"):
        blocks_of(6, many)
    with pytest.raises(PlanError, match="more than a day after the end of steady") as caught:
        blocks_of(4, slow)
    assert 1 == len(caught.value.problems)


def test_a_long_id_has_room_for_its_rounds() -> None:
    """Ids of a plan have at most 40 characters; the block's number is appended, and the step equals its fault."""
    long = "x" * 40
    steps = blocks_of(2, f"{{id: {long}, for: 4s, kind: kill, broker: 1}}").steps
    assert [f"{long}-1", f"{long}-2"] == [step.fault().id for step in steps]


def test_an_id_that_equals_an_id_of_a_block() -> None:
    """A fault can't have the id of another fault's block."""
    with pytest.raises(PlanError, match="fault id `kill-1-2` is defined twice"):
        blocks_of(3, KILL, "{id: kill-1-2, at: 20s, for: 4s, kind: kill, broker: 2}")


def test_a_plan_in_python_has_blocks() -> None:
    """The plan as an object gives the same timeline."""
    checked = load_plan(FRAME.replace("timing:", "blocks: 3\ntiming:") + f"  - {KILL}\n")
    again = Plan.model_validate(checked.plan.model_dump(by_alias=True))
    assert compile_plan(again, 7, "p", []) == compile_plan(checked.plan, 7, "p", [])


def test_plan_show_has_blocks() -> None:
    """`plan show` has the blocks in its lane of phases and one lane per fault, within its width."""
    drawn = lanes(blocks_of(8, KILL, ROUNDS))
    assert all(len(line) <= WIDTH for line in drawn.splitlines())
    phase, kill, slow = drawn.splitlines()[3:6]
    assert [f"{number} " in phase for number in range(1, 9)] == [True] * 8
    assert ("kill-1-1..8", "latency-1-*") == (kill.split()[0], slow.split()[0])
    assert 8 == len(kill.split()[1:])


def lines(fault: str, **times: float) -> list[dict[str, Any]]:
    return [{"fault": fault, "state": state, "t_us": int(second * S)} for state, second in times.items()]


def test_phases_have_their_block() -> None:
    """Warm-up and steady belong to no block; recovery belongs to the block before, even if the next never starts."""
    journal = [
        *lines("kill-1-1", intended=21, healed=30),
        *lines("turn-1", intended=28, injected=29),
        *lines("kill-1-2", failed=45),
        *lines("kill-1-3", intended=70, healed=80),
    ]
    rows = phases(journal, Marks(0, 10 * S, 20 * S, 100 * S), blocks_of(3, KILL, MOVE))
    assert [(row.name, row.fault, row.entry, row.block, row.start_us / S, row.end_us / S) for row in rows] == [
        ("warmup", None, None, 0, 0, 10),
        ("steady", None, None, 0, 10, 20),
        ("fault", "kill-1-1", "kill-1", 1, 21, 30),
        ("fault", "turn-1", "turn", 1, 28, 34),
        ("recovery", None, None, 1, 34, 70),
        ("fault", "kill-1-3", "kill-1", 3, 70, 80),
        ("recovery", None, None, 3, 80, 100),
    ]

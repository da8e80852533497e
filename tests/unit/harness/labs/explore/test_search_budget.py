"""What fits into a budget, by a clock that only moves when it is told to."""

import pytest

from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_plan
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.labs.explore.search import CLOSING_S, LAUNCH_S, OVERHEAD_S, Budget, format_duration, load_s

PLAN = """
name: mine
topics: [{name: t, partitions: 2, replication: 3}]
workloads:
  - {name: w, produce: {topic: t, rate: 50/s, deadline: 20s}}
timing: {warmup: {min: 1s, max: 12s}, steady: 3s, fault: 2s, recovery: 5s}
faults: [{at: 2s, for: 4s, kind: kill, broker: leader of t/0}]
"""
LOAD_S = 12 + 3 + (2 + 4 + 8 + 5) + 20  # warm-up, steady, the kill with its allowance and recovery, the last deadline


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def timeline() -> Timeline:
    checked = load_plan(PLAN)
    return compile_plan(checked.plan, 7, checked.source, checked.slo_positions)


def test_what_a_plan_may_take() -> None:
    """The longest warm-up, all that the plan says, and the last deadline: no run is longer."""
    assert LOAD_S == load_s(timeline())


def test_a_first_run_pays_for_the_cluster() -> None:
    """It fits to the second, with what it takes to put the cluster away, and no more a second later."""
    clock = Clock()
    budget = Budget(LOAD_S + OVERHEAD_S + LAUNCH_S + CLOSING_S + 10, clock)
    clock.now_s += 10
    assert budget.fits(timeline())
    clock.now_s += 1
    assert not budget.fits(timeline())
    assert LOAD_S + OVERHEAD_S + LAUNCH_S - 1 == budget.left_s


def test_what_was_seen_takes_the_place_of_the_guess() -> None:
    """The worst of what lay beside a load, with a margin; the first run's, with the launch in it, is none."""
    budget = Budget(1_000, Clock())
    budget.record(300, 50)
    assert LOAD_S + OVERHEAD_S == budget.needs_s(timeline())
    budget.record(70, 50)
    assert LOAD_S + 20 * 1.25 == budget.needs_s(timeline())
    budget.record(90, 50)
    budget.record(60, 50)
    assert LOAD_S + 40 * 1.25 == budget.needs_s(timeline())


def test_a_run_without_a_verdict_says_nothing_of_the_others() -> None:
    """It took its time, and that is all."""
    budget = Budget(300 + CLOSING_S, Clock())
    budget.record(10, None)
    assert (LOAD_S + OVERHEAD_S, 30) == (budget.needs_s(timeline()), budget.more())


def test_how_many_more() -> None:
    """As many as fit if they take what those before did on average; nobody knows before the first."""
    budget = Budget(300 + CLOSING_S, Clock())
    assert 0 == budget.more()
    budget.record(80, 50)
    budget.record(60, 50)
    assert 4 == budget.more()


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (61, "1 m 01 s"), (-3, "0 s")])
def test_how_time_is_told(seconds: float, text: str) -> None:
    """Minutes and seconds."""
    assert text == format_duration(seconds)

"""Time budget of a search, with a clock that only the test moves."""

import pytest

from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_plan
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.search.explore import CLOSING_S, LAUNCH_S, OVERHEAD_S, Budget, format_duration, load_s

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


def test_the_time_limit_of_a_plan() -> None:
    """The longest warm-up, the plan's own times, and the last deadline: no run takes longer."""
    assert LOAD_S == load_s(timeline())


def test_the_first_run_includes_launch_and_removal_of_the_cluster() -> None:
    """The run fits to the second, the cluster's removal included; one second less is too short."""
    clock = Clock()
    budget = Budget(LOAD_S + OVERHEAD_S + LAUNCH_S + CLOSING_S + 10, clock)
    clock.now_s += 10
    assert budget.fits(timeline())
    clock.now_s += 1
    assert not budget.fits(timeline())
    assert LOAD_S + OVERHEAD_S + LAUNCH_S - 1 == budget.left_s


def test_measured_overhead_replaces_the_estimate() -> None:
    """The largest measured overhead with a margin; the first run, which includes the launch, doesn't count."""
    budget = Budget(1_000, Clock())
    budget.record(300, 50)
    assert LOAD_S + OVERHEAD_S == budget.needs_s(timeline())
    budget.record(70, 50)
    assert LOAD_S + 20 * 1.25 == budget.needs_s(timeline())
    budget.record(90, 50)
    budget.record(60, 50)
    assert LOAD_S + 40 * 1.25 == budget.needs_s(timeline())


def test_a_run_without_verdict_does_not_change_the_estimate() -> None:
    """Its time is spent, but its overhead is not measured."""
    budget = Budget(300 + CLOSING_S, Clock())
    budget.record(10, None)
    assert (LOAD_S + OVERHEAD_S, 30) == (budget.needs_s(timeline()), budget.more())


def test_the_number_of_remaining_runs() -> None:
    """Estimated from the mean duration of earlier runs; unknown before the first run."""
    budget = Budget(300 + CLOSING_S, Clock())
    assert 0 == budget.more()
    budget.record(80, 50)
    budget.record(60, 50)
    assert 4 == budget.more()


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (61, "1 m 01 s"), (-3, "0 s")])
def test_durations_are_formatted_in_minutes_and_seconds(seconds: float, text: str) -> None:
    assert text == format_duration(seconds)

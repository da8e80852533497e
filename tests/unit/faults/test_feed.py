"""SLOs that the plan can't feed, or that match nothing."""
# ruff: noqa: E501 -- a row of a table, and a sentence that is expected, are kept whole

from __future__ import annotations

import pytest

from aftershock.errors import PlanError
from aftershock.faults.check import load_plan
from aftershock.tests.unit.faults.conftest import FRAME

FAULTS = """\
  - {id: slow, at: 0s, for: 10s, kind: latency, link: client(a) -> broker, delay: 5ms}
  - {id: slower, at: 5s, for: 10s, kind: latency, link: client(a) -> broker, delay: 5ms}
  - {at: 30s, kind: reassign, topic: orders, rotate: 1}
"""


def said(*slos: str, faults: str = FAULTS, frame: str = FRAME) -> list[str]:
    text = frame + faults + "slo:\n" + "".join(f'  - "{slo}"\n' for slo in slos)
    try:
        load_plan(text)
    except PlanError as error:
        return list(error.problems)
    return []


@pytest.mark.parametrize(
    "slo",
    [
        "produce.latency p95 < 250ms in steady",
        "produce.latency p95 < 250ms in fault/slow",
        "produce.latency p98.8 < 250ms in fault",
        "produce.latency p99 < 250ms",
        "consume.latency p95 < 250ms in recovery for baseline",
        "produce.latency max < 9s in fault/reassign-1",
        "produce.success >= 99.9%",
        "produce.gap < 6s in warmup",
        "recovery < 5s after reassign-1",
        "lost == 0",
    ],
)
def test_fed(slo: str) -> None:
    """60/s for 10 s of steady, 15 + 5 s of fault in all: these have enough."""
    assert said(slo) == []


@pytest.mark.parametrize(
    ("slo", "sentence"),
    [
        ("produce.latency p99 < 250ms in steady", "this SLO needs 1000 records in steady, and `baseline` at 60/s gives 600 there: make steady last 17s, or have 100/s"),
        ("produce.latency p99.9 < 250ms in fault", "this SLO needs 10000 records in fault, and `baseline` at 60/s gives 1200 there: make fault last 167s, or have 500/s"),
        ("produce.latency p99 < 250ms in fault/slow", "this SLO needs 1000 records in fault/slow, and `baseline` at 60/s gives 600 there: make fault/slow last 17s, or have 100/s"),
        ("produce.success >= 99.99%", "this SLO needs 10000 records in the run, and `baseline` at 60/s gives 3420 there: make the run last 167s, or have 176/s"),
        ("produce.latency p95 < 250ms in fault/slwo", "the plan has no fault `slwo`; did you mean `slow`?"),
        ("recovery < 5s after kill-1", "the plan has no fault `kill-1`; known here: reassign-1, slow, slower"),
        ("produce.latency p95 < 250ms for basline", "the plan has no arm `basline`; did you mean `baseline`?"),
        ("p95(baseline) <= 0.7 * p95(other) of produce.latency", "the plan has no arm `other`; known here: baseline"),
        ("produce.latency p95 < 250 in fault", "this is no SLO, at its character 23: '250' has no unit; write a time in us, ms or s, like 250ms"),
    ],
)  # fmt: skip
def test_not_fed(slo: str, sentence: str) -> None:
    """Too few records for its quantile, or names that aren't there: refused, with what would do."""
    assert said(slo) == [f"plan.yaml:14:5: {sentence}"]


def test_windows_without_faults() -> None:
    """Without faults there is neither a fault window nor recovery."""
    problems = said("produce.latency p95 < 1s in fault", "produce.gap < 1s in recovery", faults="  []\n")
    assert len(problems) == 2
    assert all("matches nothing" in problem for problem in problems)


def test_nobody_on_that_side() -> None:
    """An SLO of consumers in a plan that only produces, or of an arm that doesn't, matches nothing."""
    produce_only = FRAME.replace("    consume: {topic: orders, group: readers}\n", "")
    assert "no workload consumes anything" in said("consume.gap < 1s", frame=produce_only)[0]
    other = FRAME.replace("timing:", "  - {name: r, consume: {topic: orders}, arms: {reader: {}}}\ntiming:")
    assert "the arm `reader` does not produce" in said("produce.gap < 1s for reader", frame=other)[0]
    assert said("consume.latency p98 < 1s in steady for reader", frame=other) == []


def test_consumers_get_what_all_arms_produce() -> None:
    """Two producing arms at 60/s feed each consuming arm 120/s: enough for p99 in ten seconds."""
    two = FRAME.replace("timing:", "    arms: {one: {}, two: {}}\ntiming:")
    assert said("consume.latency p99 < 1s in steady", frame=two) == []
    assert len(said("produce.latency p99 < 1s in steady", frame=two)) == 1


def test_commits_are_fed_by_the_commits_of_an_arm() -> None:
    """A plan's commits feed what is asked of commits, and of nothing else; without them it matches nothing."""
    commits = "  - {name: positions, commit: {groups: 5, rate: 30/s}, arms: {ours: {}}}\ntiming:"
    frame = FRAME.replace("timing:", commits)
    fed = ("commit.latency p95 < 100ms in steady", "commit.success >= 99% for ours", "commit.gap < 5s in fault/slow")
    assert said(*fed, frame=frame) == []
    (thin,) = said("commit.service p99 < 100ms in steady", frame=frame)
    assert "needs 1000 records in steady, and `ours` at 30/s gives 300 there" in thin
    (idle,) = said("commit.latency p50 < 1s for baseline", frame=frame)
    assert "the arm `baseline` does not commit anything" in idle
    (nobody,) = said("commit.gap < 1s")
    assert "no workload commits anything" in nobody
    assert "the arm `ours` does not produce anything" in said("produce.gap < 1s for ours", frame=frame)[0]


def test_judged_although_a_fault_is_misspelt() -> None:
    """A fault of unknown kind makes no SLO that names it look wrong."""
    problems = said(
        "recovery < 5s after kill-1", "produce.latency p95 < 1s in fault", faults="  - {kind: kil, at: 0s}\n"
    )
    assert len(problems) == 1
    assert "no fault of kind `kil`" in problems[0]

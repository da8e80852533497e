"""Limits of plans from strangers: each is an error with its position, found before anything is expanded."""

import resource

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.expand import steps_max
from aftershock.faults.plan.model import Repeat, Wait
from aftershock.faults.sections.document import ENTRIES_MAX, TEXT_MAX, load
from aftershock.faults.sections.units import corners
from aftershock.tests.mutated_plans import check_plan, cpu_limit, survey

PLAN = """\
name: big
topics: [{{name: orders, partitions: 3, replication: 1}}]
workloads: [{{name: orders, produce: {{topic: orders, rate: {rate}}}}}]
faults: {faults}
"""
LATENCY = "kind: latency, link: 'client(a) -> broker', at: 0s, for: 1s"
RANGES = ", ".join(f"p{number}: {{range: [1, 2]}}" for number in range(40))
KILLS = ", ".join(["{kind: kill, broker: 1, id: a, for: 1s}"] * 600)
CHOICES = ", ".join(["{choose: [{fault: {wait: 0s}}, {fault: {wait: 0s}}]}"] * 300)


@pytest.mark.parametrize(
    ("faults", "where", "why"),
    [
        (f"[{{kind: kill, broker: 0x{'f' * 20_000}}}]", "4:31", f"exceeds the limit of {TEXT_MAX} characters"),
        (f"[{{kind: kill, broker: 0x{'f' * 2_000}}}]", "4:31", "is too large; give at most 9223372036854775807"),
        (f"[{{kind: kill, broker: {'9' * 2_000}}}]", "4:31", "is too large"),
        (f"[{{? {'k' * 5_000} : 1}}]", "4:13", f"exceeds the limit of {TEXT_MAX} characters"),
        (f"[{{{LATENCY}, {RANGES}}}]", "4:10", "40 ranges in one fault exceed the limit of 4"),
        (f"[{{together: [{{{LATENCY}, {RANGES}}}]}}]", "4:22", "40 ranges in one fault exceed the limit of 4"),
        (
            "[{repeat: 500, fault: {repeat: 500, fault: {repeat: 500, fault: {wait: 0s}}}}]",
            "4:10",
            "500 faults and waits",
        ),
        ("[{every: 1ms, until: 24h, fault: {then: [{wait: 0s}, {wait: 0s}]}}]", "4:10", "500 faults and waits"),
        (f"[{{together: [{KILLS}]}}]", "4:10", "the limit of 500 faults and waits"),
        (f"[{KILLS}]", "", "`faults` has 600 entries, more than the limit of 500: remove some"),
        (
            f"[{{choose: [{{fault: {{then: [{CHOICES}]}}}}, {{fault: {{then: [{CHOICES}]}}}}]}}]",
            "4:9",
            "more than 1000 faults",
        ),
        (f"[{','.join('1' * (ENTRIES_MAX + 1))}]", "4:9", "`faults` has 1001 entries, more than the limit of 1000"),
        ("[{kind: kill, id: {range: [1s, 2s]}, broker: 1, for: 1s}]", "4:27", "`id` can't be drawn from a range"),
        ("[{kind: [kill]}]", "4:17", "there is no fault of kind"),
        ('[{kind: close_session, client: "\\x1f", at: 0s}]', "4:40", "write a client as `ARM` or `WORKLOAD/ARM`"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_large_faults(faults: str, where: str, why: str) -> None:
    """Text, integers, ranges, repetitions and lists."""
    with cpu_limit(), pytest.raises(PlanError) as refused:
        load_plan(PLAN.format(rate="1/s", faults=faults))
    assert [problem for problem in refused.value.problems if why in problem and f"plan.yaml:{where}" in problem]


def test_the_fastest_rate() -> None:
    load_plan(PLAN.format(rate="1000000/s", faults="[]"))
    with pytest.raises(PlanError, match=r"3:59: `rate`: 1000001/s exceeds the highest rate: give 1000000/s at most"):
        load_plan(PLAN.format(rate="1000001/s", faults="[]"))


def test_the_most_topics_and_replicas() -> None:
    many = "".join(f"  - {{name: t{number}, partitions: 1000, replication: 1}}\n" for number in range(101))
    text = PLAN.format(rate="1/s", faults="[]").replace("topics: [{name: orders, partitions: 3, replication: 1}]", "T:")
    with pytest.raises(PlanError) as refused:
        load_plan(text.replace("T:", f"topics:\n  - {{name: orders, partitions: 1, replication: 1}}\n{many}"))
    replicas, topics = refused.value.problems
    assert replicas.startswith("plan.yaml:13:28: with this topic the plan has 10001 replicas of partitions, more than")
    assert "plan.yaml:103:5: `topics` has 102 entries, more than the limit of 100: remove some" == topics


def test_a_wait_is_a_step() -> None:
    assert 500 == steps_max(Repeat(repeat=500, fault=Wait(wait="0s")))


def test_corners_are_limited_wherever_they_are_computed() -> None:
    with pytest.raises(ValueError, match="40 ranges in one fault exceed the limit of 4"):
        corners({f"p{number}": {"range": [1, 2]} for number in range(40)})


def test_the_groups_of_many_committers_are_not_listed() -> None:
    """400 roles among 1.6 million groups."""
    arms = ", ".join(f"{arm}: {{}}" for arm in "abcdefgh")
    commit = f"commit: {{groups: 10000, rate: 1/s}}, arms: {{{arms}}}"
    loads = ", ".join(f"{{name: w{number}, {commit}}}" for number in range(20))
    pauses = ", ".join(["{kind: pause, broker: coordinator of w9-h-9999, at: 0s, for: 1s}"] * 400)
    text = PLAN.format(rate="1/s", faults=f"[{{choose: [{{fault: {{then: [{pauses}]}}}}, {{fault: {{wait: 0s}}}}]}}]")
    text = text.replace("workloads: [", f"workloads: [{loads}, ")
    with cpu_limit():
        load_plan(text)
        with pytest.raises(PlanError, match="no arm consumes in a group `w9-h-10000`"):
            load_plan(text.replace("w9-h-9999,", "w9-h-10000,", 1))


def test_a_plan_can_not_forge_a_problem_or_move_the_cursor() -> None:
    """Control characters of a plan's text are written as escapes; there is one line for each problem."""
    with pytest.raises(PlanError) as refused:
        load_plan(PLAN.format(rate='"1\\n::error::\\e[2J\\u2028x"', faults="[]"))
    assert [r"plan.yaml:3:59: `rate`: 1\n::error::\x1b[2J\u2028x is not a rate"] == [
        problem.split(":", 4)[0] + ":" + ":".join(problem.split(":")[1:9]) for problem in refused.value.problems
    ]


def test_integers_at_the_limit_are_read() -> None:
    assert {"a": 2**63 - 1, "b": -(2**63 - 1)} == load(f"a: {hex(2**63 - 1)}\nb: -9223372036854775807").data


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_damaged_plans_are_checked_within_limits(seed: int) -> None:
    """500 plans for each seed: valid, or problems with positions; never another exception, endless work or memory."""
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    valid, failures = survey(seed, 500)
    assert [] == failures
    assert 20 < valid < 250
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 400_000


def test_the_survey_finds_what_it_looks_for() -> None:
    """A check that crashes, and one that never ends."""

    def crash(text: str) -> bool:
        if len(text) % 2:
            raise KeyError(text)
        return check_plan(text)

    assert survey(1, 40, crash)[1]

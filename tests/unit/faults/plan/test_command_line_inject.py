"""A fault from the command line is read and checked like a fault of a plan."""

from __future__ import annotations

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.command_line import InjectCommand, parse_inject
from aftershock.faults.sections.cluster import Cluster
from aftershock.faults.sections.workloads import Topic

TOPICS = (Topic(name="t", partitions=3, replication=3), Topic(name="lonely", partitions=1, replication=1))


def injection(kind: str, *pairs: str, lasting: str | None = "10s", cluster: Cluster | None = None) -> InjectCommand:
    return parse_inject(kind, pairs, lasting, cluster or Cluster(), TOPICS, f"{kind}-1")


def problems(kind: str, *pairs: str, lasting: str | None = "10s", cluster: Cluster | None = None) -> list[str]:
    with pytest.raises(PlanError) as caught:
        injection(kind, *pairs, lasting=lasting, cluster=cluster)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("kind", "pairs", "lasting"),
    [
        ("latency", ["link=client(a) <-> broker", "delay=50ms", "jitter=10ms"], "10s"),
        ("cut", ["rack=b", "ways=in"], "10s"),
        ("refuse", ["link=client(a) -> broker(leader of t/0)"], "10s"),
        ("kill", ["broker=2"], "10s"),
        ("stop", ["broker=any broker except controller"], "10s"),
        ("restart", ["broker=leader of t/2"], None),
        ("pause", ["broker=coordinator of somebody"], "10s"),
        ("reassign", ["topic=t", "move={from: 1, to: 2}"], "10s"),
        ("elect", ["topic=t"], None),
    ],
)
def test_every_kind(kind: str, pairs: list[str], lasting: str | None) -> None:
    """Each kind's parameters equal those in a plan, with the given id and `at: 0s`."""
    fault = injection(kind, *pairs, lasting=lasting).fault
    assert (kind, f"{kind}-1", 0) == (fault.kind, fault.id, fault.at)
    assert (None if lasting is None else 10_000) == fault.for_
    assert [pair.partition("=")[0] for pair in pairs] == [key for key in fault.parameters() if key in str(pairs)]


def test_dotted_keys_nest() -> None:
    """`move.from=1 move.to=2` is `move: {from: 1, to: 2}` without shell quotes."""
    nested = injection("reassign", "topic=t", "move.from=1", "move.to=2").fault
    assert injection("reassign", "topic=t", "move={from: 1, to: 2}").fault == nested


def test_mistakes_all_at_once() -> None:
    """An unknown key (with a suggestion) and the missing key are reported together, each with its position."""
    assert ["inject pause brokr: unknown key `brokr`; did you mean `broker`?", "inject pause broker: "] == [
        problem[: len(expected)]
        for problem, expected in zip(
            sorted(problems("pause", "brokr=1"), reverse=True),
            ["inject pause brokr: unknown key `brokr`; did you mean `broker`?", "inject pause broker: "],
            strict=True,
        )
    ]


@pytest.mark.parametrize(
    ("kind", "pairs", "lasting", "expected"),
    [
        ("paus", ["broker=1"], "5s", "there is no fault of kind `paus`; did you mean `pause`?"),
        ("pause", ["broker=leader of tt/0"], "5s", "the topic `tt` is not on the cluster; did you mean `t`?"),
        ("pause", ["broker=leader of t/3"], "5s", "t has no partition 3: its partitions are 0 to 2"),
        ("pause", ["broker=7"], "5s", "the cluster has no node 7"),
        ("pause", ["broker=1"], None, "a pause needs `for`"),
        ("elect", ["topic=t"], "5s", "elect can't have `for`, because it can't be undone"),
        ("pause", ["broker=1"], "5", "is not a duration"),
        ("cut", ["link=client(z) -> broker"], "5s", "the cluster has no rack `z`"),
        ("cut", ["link=replication(a) -> broker(1)"], "5s", "broker 1 is in rack a itself"),
        ("reassign", ["topic=lonely", "rotate=1"], None, "1 rotations of 1 replicas restore their order"),
        ("pause", ["broker"], "5s", "write a parameter as KEY=VALUE"),
        ("pause", ["broker=1", "broker=2"], "5s", "given twice; give it once"),
        ("pause", ["broker=1", "broker.x=2"], "5s", "given twice; give it once"),
        ("pause", ["broker=1", "at=3s"], "5s", "begins at once"),
        ("pause", ["broker=1", "id=mine"], "5s", "the id of an injection is generated"),
        ("pause", ["broker=1", "for=3s"], None, "--for 10s"),
        ("pause", ["broker=[1"], "5s", "the plan is not valid YAML"),
        ("pause", ["broker=*x"], "5s", "aliases"),
    ],
)
def test_bad_input(kind: str, pairs: list[str], lasting: str | None, expected: str) -> None:
    """Every mistake that can be detected without the cluster is one sentence with its position."""
    (problem,) = problems(kind, *pairs, lasting=lasting)
    assert problem.startswith(f"inject {kind}")
    assert expected in problem


def test_one_rack_has_no_way_out() -> None:
    """An impossible link is refused before the cluster is contacted."""
    (problem,) = problems("cut", "link=rack(a) -> rack(*)", cluster=Cluster(racks={"a": 2}))
    assert "the cluster has one rack" in problem


def test_a_grey_failure_is_a_warning() -> None:
    """A pause that the controller would not notice is allowed, with a warning."""
    (warning,) = injection("pause", "broker=1", lasting="1s").warnings
    assert warning.startswith("inject pause --for: a pause of 1s is a grey failure")

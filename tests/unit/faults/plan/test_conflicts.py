"""Conflicting faults and grey failures."""

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.conflicts import conflict_in_force
from aftershock.tests.unit.faults.conftest import FRAME, timeline_of

KILL = "{at: 0s, for: 8s, kind: kill, broker: 1}"
SHUT = '{at: 0s, for: 8s, kind: refuse, link: "client(a) -> broker"}'
TURN = "{at: 0s, for: 8s, kind: reassign, topic: orders, rotate: 1}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (KILL, "{at: 7s, for: 8s, kind: kill, broker: 1}"),
        (KILL, "{at: 7s, for: 8s, kind: pause, broker: 1}"),
        ("{at: 7s, for: 8s, kind: pause, broker: 1}", KILL),
        (KILL, "{at: 7s, for: 8s, kind: stop, broker: 1}"),
        ("{at: 0s, kind: restart, broker: 1}", "{at: 9s, for: 8s, kind: pause, broker: 1}"),
        ("{at: 0s, for: 8s, kind: stop, broker: 1}", "{at: 1s, kind: restart, broker: 1}"),
        (SHUT, SHUT),
        (SHUT, SHUT.replace("broker", "broker(2)")),
        (SHUT.replace("broker", "broker(leader of orders/0)"),) * 2,
        (
            SHUT.replace("client(a) ->", "rack(a) <->").replace("broker", "rack(b)"),
            SHUT.replace("client(a) -> broker", "replication(*) -> broker(1)"),
        ),
        (TURN, "{at: 1s, kind: reassign, topic: orders, rotate: 1}"),
        (TURN, "{at: 1s, kind: elect, topic: orders}"),
    ],
)
def test_conflicting_faults(first: str, second: str) -> None:
    """Two faults with one exclusive target at the same time are refused at the later one."""
    with pytest.raises(PlanError, match=r"plan.yaml:11:5: this \w+ conflicts with"):
        timeline_of(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SHUT, SHUT.replace("at: 0s", "at: 8s")),
        (SHUT, SHUT.replace("client(a)", "client(b)")),
        (SHUT, SHUT.replace("client(a)", "replication(a)")),
        (SHUT.replace("broker", "broker(1)"), SHUT.replace("broker", "broker(2)")),
        (SHUT.replace("broker", "broker(any broker except 1)"),) * 2,
        (SHUT, '{at: 0s, for: 8s, kind: cut, link: "client(a) -> broker"}'),
        ("{at: 0s, kind: restart, broker: 1}", "{at: 10s, for: 8s, kind: pause, broker: 1}"),
        (KILL, "{at: 8s, for: 8s, kind: kill, broker: 1}"),
        (KILL, "{at: 1s, for: 8s, kind: kill, broker: 2}"),
        ("{at: 0s, for: 8s, kind: kill, broker: leader of orders/0}",) * 2,
        ('{at: 0s, for: 8s, kind: latency, link: "client(a) -> broker", delay: 5ms}',) * 2,
        (TURN, "{at: 9s, kind: elect, topic: orders}"),
        (KILL, TURN),
    ],
)
def test_faults_without_conflict(first: str, second: str) -> None:
    """Sequential faults, faults on other nodes or by role, and several latencies are allowed."""
    assert len(timeline_of(first, second).steps) == 2


@pytest.mark.parametrize(
    ("profile", "lasting", "warned"), [("fast", "2s", 1), ("fast", "3s", 0), ("production", "3s", 1)]
)
def test_grey_failure(profile: str, lasting: str, warned: int) -> None:
    """A kill shorter than the profile's session timeout is allowed, with a warning at its `for`."""
    text = f"{FRAME}  - {{at: 0s, for: {lasting}, kind: kill, broker: 1}}\ncluster: {{profile: {profile}}}\n"
    warnings = load_plan(text).warnings
    assert len(warnings) == warned
    assert all(warning.startswith("plan.yaml:10:19: a kill of") for warning in warnings)


ONE, TWO = {"brokers": [1], "links": [], "topics": []}, {"brokers": [2], "links": [], "topics": []}
DOORS = {"brokers": [], "links": ["client_a-k1", "client_a-k2"], "topics": []}
MOVED = {"brokers": [1, 2], "links": [], "topics": ["orders"]}


@pytest.mark.parametrize(
    ("kind", "targets", "other", "other_targets", "what"),
    [
        ("pause", ONE, "kill", ONE, "node 1"),
        ("restart", ONE, "stop", ONE, "node 1"),
        ("reassign", MOVED, "elect", MOVED, "topic orders"),
        ("cut", DOORS, "refuse", {**DOORS, "links": ["client_a-k2"]}, "link client_a-k2"),
        ("cut", DOORS, "cut", DOORS, "link client_a-k1"),
    ],
)
def test_conflict_with_a_fault_in_force(
    kind: str, targets: object, other: str, other_targets: object, what: str
) -> None:
    """Two faults in force on one node, topic or cut link conflict, in either order."""
    assert what == conflict_in_force(kind, targets, other, other_targets)  # type: ignore[arg-type]
    assert what == conflict_in_force(other, other_targets, kind, targets)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "targets", "other", "other_targets"),
    [
        ("pause", ONE, "pause", TWO),
        ("latency", DOORS, "latency", DOORS),
        ("latency", DOORS, "cut", DOORS),
        ("reassign", MOVED, "kill", ONE),
        ("pause", ONE, "a kind of a later version", ONE),
    ],
)
def test_no_conflict_with_a_fault_in_force(kind: str, targets: object, other: str, other_targets: object) -> None:
    """Faults on different nodes, several latencies, and a move among nodes that are down may overlap."""
    assert conflict_in_force(kind, targets, other, other_targets) is None  # type: ignore[arg-type]

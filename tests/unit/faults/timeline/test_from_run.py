"""Manual injections written as a plan: every such plan passes the check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.errors import EvidenceError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import CheckedPlan, load_plan
from aftershock.faults.plans import find
from aftershock.faults.sections.document import load
from aftershock.faults.timeline.from_run import WrittenPlan, plan_from_run
from aftershock.faults.timeline.timeline import Marks
from aftershock.tests.unit.faults.conftest import Stage

CLUSTER = "cluster: {racks: {a: 1, b: 1, c: 1}}\n"
ORDERS = {"name": "orders", "partitions": 6, "replication": 3}
MOVE = {"kind": "reassign", "topic": "orders", "move": {"from": "1", "to": "any broker except 1"}}
EVERY_KIND = [
    {"kind": "latency", "for": "5s", "link": "client(a) <-> broker", "delay": "50ms", "jitter": "10ms"},
    {"kind": "cut", "for": "5s", "rack": "b", "ways": "in"},
    {"kind": "refuse", "for": "5s", "link": "client(a) -> broker(leader of orders/0)"},
    {"kind": "kill", "for": "5s", "broker": "any broker except controller"},
    {"kind": "stop", "for": "5s", "broker": "replica of orders/1 in rack b"},
    {"kind": "restart", "broker": "2"},
    {"kind": "pause", "for": "5s", "broker": "leader of orders/0"},
    MOVE,
    {"kind": "reassign", "for": "5s", "topic": "orders", "rotate": 1},
    {"kind": "elect", "topic": "orders"},
]


@dataclass
class Evidence:
    """Events and a journal of injections; times in s."""

    said: str = CLUSTER
    events: list[dict[str, Any]] = field(default_factory=list)
    journal: list[dict[str, Any]] = field(default_factory=list)
    topics: tuple[dict[str, Any], ...] = (ORDERS,)

    def injected(
        self, words: dict[str, Any], begun_s: float, healing_s: float | None, *, took: bool = True
    ) -> Evidence:
        number = 1 + sum(event["fault"]["kind"] == words["kind"] for event in self.events)
        fault_id = f"{words['kind']}-{number}"
        fault = {"id": fault_id, **words}
        self.events.append({"event": "injected_by_hand", "arm": None, "fault": fault, "topics": list(self.topics)})
        states = {"intended": begun_s, "injected" if took else "failed": begun_s + 0.04}
        states |= {"healing": healing_s, "healed": healing_s + 0.2} if healing_s is not None else {}
        self.journal += [{"fault": fault_id, "state": state, "t_us": int(at * 1e6)} for state, at in states.items()]
        return self

    def written(self, marks: Marks | None = None) -> WrittenPlan:
        return plan_from_run("20260101-000000-cluster-abcd", load(self.said).data, self.events, self.journal, marks)

    def plan(self, marks: Marks | None = None) -> CheckedPlan:
        """The plan, checked as `plan check` does."""
        return load_plan(self.written(marks).text)

    def faults(self, marks: Marks | None = None) -> list[Fault]:
        return list(self.plan(marks).plan.faults)


@pytest.mark.parametrize("words", [words for words in EVERY_KIND if words != MOVE], ids=lambda words: words["kind"])
async def test_round_trip_of_every_kind(stage: Stage, words: dict[str, Any]) -> None:
    """An executed fault gives a valid plan with the same parameters, duration and roles.

    A move is the exception: it has no target if every broker has a replica.
    """
    name = f"{words['kind']}-1"
    text = ", ".join(f"{key}: {str(value).replace(chr(39), '')}" for key, value in words.items() if key != "link")
    link = f', link: "{words["link"]}"' if "link" in words else ""
    await stage.play(f"{{id: {name}, at: 0s, {text}{link}}}")
    evidence = Evidence()
    evidence.events = [{"event": "injected_by_hand", "fault": {"id": name, **words}, "topics": [ORDERS]}]
    evidence.journal = stage.journal.as_json()
    (fault,) = evidence.faults()
    asked = KINDS[words["kind"]].model_validate({"id": name, "at": "0s", **words})
    assert asked == fault


def test_a_fault_cut_short_keeps_its_actual_duration() -> None:
    """Ctrl-C after 2 s of 5 gives `for: 2s`; a complete fault keeps its requested duration."""
    evidence = Evidence().injected(EVERY_KIND[6], 100.0, 102.04).injected(EVERY_KIND[6], 110.0, 114.93)
    assert [(0, 2_000), (10_000, 5_000)] == [(fault.at, fault.for_) for fault in evidence.faults()]
    assert ["pause-1", "pause-2"] == [fault.id for fault in evidence.faults()]


def test_a_fault_cut_short_at_once() -> None:
    """A fault lasts at least a tenth of a second, since plans have no faults of zero length."""
    assert [100] == [fault.for_ for fault in Evidence().injected(EVERY_KIND[6], 1.0, 1.01).faults()]


def test_injections_never_in_force_are_omitted() -> None:
    """A failed injection is not in the plan, and is listed as omitted."""
    evidence = Evidence().injected(EVERY_KIND[6], 1.0, 3.0, took=False).injected(EVERY_KIND[3], 5.0, 10.0)
    assert ["kill-1"] == [fault.id for fault in evidence.faults()]
    assert ("pause-1",) == evidence.written().omitted


def test_nothing_by_hand() -> None:
    """Without an injection that was in force, an error says why."""
    with pytest.raises(EvidenceError, match=r"has no manual injections, .*: use `aftershock inject`"):
        Evidence().written()
    with pytest.raises(EvidenceError, match="pause-1 never took effect"):
        Evidence().injected(EVERY_KIND[6], 1.0, 3.0, took=False).written()


def test_still_open() -> None:
    """A fault that is still in force keeps its requested duration."""
    assert [5_000] == [fault.for_ for fault in Evidence().injected(EVERY_KIND[6], 1.0, None).faults()]


def test_topics_are_those_of_the_cluster_and_those_named() -> None:
    """The cluster's own topics are in their latest state; later topics are only added if a fault names them."""
    grown, other = {**ORDERS, "partitions": 12}, {"name": "other", "partitions": 1, "replication": 2}
    text = CLUSTER + "topics: [{name: orders, partitions: 6, replication: 3, config: {retention.ms: 60000}}]"
    evidence = Evidence(text, topics=(grown, other, {**other, "name": "unnamed"}))
    evidence.injected({"kind": "elect", "topic": "other"}, 1.0, None)
    topics = evidence.plan().plan.topics
    assert [("orders", 12), ("other", 1)] == [(topic.name, topic.partitions) for topic in topics]
    assert {"retention.ms": "60000"} == topics[0].config


def test_a_cluster_without_topics() -> None:
    """Without any topic, the plan gets a default one that fits the number of brokers."""
    evidence = Evidence("cluster: {racks: {a: 1, b: 1}}", topics=()).injected({**EVERY_KIND[1]}, 1.0, 6.0)
    (topic,) = evidence.plan().plan.topics
    assert 2 == topic.replication


def test_internal_topics_stay_out() -> None:
    """A role on an internal topic is kept, without adding the topic to the plan."""
    evidence = Evidence(topics=()).injected({"kind": "kill", "for": "5s", "broker": "leader of __x/0"}, 1.0, 6.0)
    assert ["orders"] == [topic.name for topic in evidence.plan().plan.topics]


@pytest.mark.parametrize(("group", "named"), [("mine", "mine-baseline"), ("readers-baseline", "readers-baseline")])
def test_a_group_gets_a_consumer(group: str, named: str) -> None:
    """For a coordinator, the plan gets a consumer in that group, and the role uses the group's name in a run."""
    evidence = Evidence().injected({**EVERY_KIND[6], "broker": f"any broker except coordinator of {group}"}, 1.0, 6.0)
    plan = evidence.plan().plan
    assert f"any broker except coordinator of {named}" == plan.faults[0].parameters()["broker"]
    assert [named.removesuffix("-baseline")] == [
        workload.consume.group for workload in plan.workloads[1:] if workload.consume
    ]


def test_into_a_plan() -> None:
    """An injection into a run gives the whole plan plus the fault at its time from the end of steady."""
    text = find("demo").read_text()
    marks = Marks(0, 20_000_000, 30_000_000, 90_000_000)
    evidence = Evidence(text).injected({**EVERY_KIND[1]}, 65.0, 70.0)
    before, after = load_plan(text).plan, evidence.plan(marks).plan
    assert (before.workloads, before.slo, before.timing) == (after.workloads, after.slo, after.timing)
    assert before.faults == after.faults[:-1]
    assert ("cut-1", 35_000) == (after.faults[-1].id, after.faults[-1].at)
    assert "demo-by-hand" == after.name


def test_after_a_plan() -> None:
    """An injection after the load follows the plan's own faults without idle time."""
    evidence = Evidence(find("demo").read_text()).injected({**EVERY_KIND[1]}, 900.0, 905.0)
    fault = evidence.faults(Marks(0, 20_000_000, 30_000_000, 90_000_000))[-1]
    assert 20_000 < fault.at < 40_000


def test_idleness_is_cut() -> None:
    """Idle time between two injections is cut to a minute."""
    evidence = Evidence().injected(EVERY_KIND[6], 0.0, 5.0).injected(EVERY_KIND[3], 40_000.0, 40_005.0)
    assert [0, 65_000] == [fault.at for fault in evidence.faults()]


def test_conflicting_actions_are_moved_apart() -> None:
    """Two restarts 7 s apart conflict in a plan, which reserves 10 s for each: the second one moves."""
    restart = {"kind": "restart", "broker": "2"}
    evidence = Evidence().injected(restart, 0.0, None).injected(restart, 7.0, None)
    assert [0, 10_000] == [fault.at for fault in evidence.faults()]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(EVERY_KIND),
            st.integers(0, 200_000),
            st.integers(0, 6_000),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_injections_give_a_valid_plan(injections: list[tuple[dict[str, Any], int, int]]) -> None:
    """Any faults at any time, overlapping or not, give a valid plan with all of them."""
    evidence = Evidence()
    for words, at_ms, lasted_ms in injections:
        evidence.injected(words, at_ms / 1000, (at_ms + lasted_ms) / 1000)
    assert len(injections) == len(evidence.faults())


def test_into_a_composed_plan() -> None:
    """An injection follows the plan's own faults as drawn by the run's seed; these stay as written."""
    text = f"""{find("demo").read_text().partition("faults:")[0]}
faults:
  - {{at: 5s, repeat: 3, every: 20s, fault: {{for: 4s, kind: pause, broker: {{range: [1, 3]}}}}}}
  - choose: [{{fault: {{wait: 0s}}}}, {{fault: {{at: 90s, for: 4s, kind: kill, broker: 1}}}}]
slo: ["lost == 0"]
"""
    evidence = Evidence(text).injected({**EVERY_KIND[1]}, 900.0, 905.0)
    for seed in range(6):
        written = plan_from_run("r", load(text).data, evidence.events, evidence.journal, Marks(0, 20, 30, 40), seed)
        plan = load_plan(written.text).plan
        assert load_plan(text).plan.faults == plan.faults[:-1]
        assert plan.faults[-1].at in (49_000, 94_000)

"""Plans as Python objects and as YAML are equivalent."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from ruamel.yaml import YAML

from aftershock.errors import PlanError
from aftershock.faults.kinds.kafka.reassign import Reassign
from aftershock.faults.kinds.link.latency import Latency
from aftershock.faults.kinds.process.kill import Kill
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.catalogue import plan_schema
from aftershock.faults.plan.check import check, load_plan
from aftershock.faults.plan.model import Plan, dump
from aftershock.faults.sections.cluster import Cluster
from aftershock.faults.sections.document import INTEGER_MAX, load
from aftershock.faults.sections.workloads import Arm, Produce, Topic, Workload
from aftershock.tests.unit.faults.conftest import FRAME

# ruff: noqa: E501 -- a row of a table, and a sentence that is expected, are kept whole


names = st.from_regex(r"\A[a-z0-9][a-z0-9_.-]{0,9}\Z")
durations = st.integers(1, 10_000_000).map(lambda ms: f"{ms}ms")
scalars = (
    st.booleans()
    | st.integers(-INTEGER_MAX, INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("abc 0123", max_size=5)
)
produces = st.fixed_dictionaries(
    {"topic": st.just("orders"), "rate": st.floats(0.01, 1e6).map(lambda rate: f"{rate:.6f}/s")},
    optional={
        "record_size": st.integers(1, 10_000) | st.just("2kB") | st.just({"min": 10, "max": "1kB"}),
        "keys": st.none() | st.integers(1, 100),
        "acks": st.sampled_from(["all"]),
        "idempotence": st.booleans(),
        "rack": st.sampled_from("abc"),
        "linger": durations,
        "deadline": st.integers(100, 300_000).map(lambda ms: f"{ms}ms"),
    },
)
arms = st.fixed_dictionaries(
    {},
    optional={
        "settings": st.dictionaries(st.just("retry.backoff.ms"), scalars),
        "client_rack": st.sampled_from(["b", "none"]),
    },
)
faults = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("kill"), "at": durations, "for": durations, "broker": st.sampled_from([2, "controller"])}
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("latency"),
            "at": durations,
            "for": durations,
            "link": st.just("client(*) <-> broker"),
            "delay": st.just("9ms"),
        },
        optional={"id": names.filter(lambda name: "." not in name), "jitter": st.just("3ms"), "every": st.just("1s")},
    ),
    st.fixed_dictionaries(
        {"kind": st.just("reassign"), "at": durations, "topic": names, "move": st.just({"from": 1, "to": "controller"})}
    ),
)
plans = st.fixed_dictionaries(
    {
        "name": names,
        "topics": st.just([{"name": "orders", "partitions": 3, "replication": 3, "config": {"min.insync.replicas": 2}}]),
        "workloads": st.lists(
            st.fixed_dictionaries({"name": names, "produce": produces}, optional={"arms": st.dictionaries(names, arms, min_size=1, max_size=3)}),
            min_size=1,
            max_size=2,
        ),
    },
    optional={
        "why": st.text("abc: #'\"\n-", max_size=20),
        "cluster": st.just({"racks": {"b": 2, "a": 1}, "config": {"log.retention.ms": 5, "x": True}}),
        "timing": st.fixed_dictionaries({}, optional={"steady": durations, "warmup": st.just({"min": "1s", "max": "2s"})}),
        "faults": st.lists(faults, max_size=3),
        "slo": st.lists(st.sampled_from(["lost == 0", {"slo": "order == 0", "gate": "report"}, {"slo": "lost == 0"}]), max_size=2),
    },
)  # fmt: skip


@given(plans)
def test_yaml_and_back_is_the_identity(data: dict[str, Any]) -> None:
    """Plan -> YAML text -> reader -> Plan is the identity."""
    plan = Plan.model_validate(data)
    text = StringIO()
    YAML(typ="safe", pure=True).dump(dump(plan), text)
    assert Plan.model_validate(load(text.getvalue()).data) == plan


def test_built_in_python() -> None:
    """Python objects give the same plan as YAML."""
    built = Plan(
        name="test",
        topics=(Topic(name="orders", partitions=3, replication=3),),
        workloads=(Workload(name="w", produce=Produce(topic="orders", rate="60/s")),),
        faults=(
            Kill(at="0s", for_="8s", broker="leader of orders/0"),
            Latency(at="1s", for_="2s", link="client(a) -> broker", delay="50ms"),
            Reassign(at="20s", topic="orders", rotate=1),
        ),
    )
    check(built)
    written = load_plan(
        """\
name: test
topics: [{name: orders, partitions: 3, replication: 3}]
workloads: [{name: w, produce: {topic: orders, rate: 60/s}}]
faults:
  - {at: 0s, for: 8s, kind: kill, broker: leader of orders/0}
  - {at: 1s, for: 2s, kind: latency, link: client(a) -> broker, delay: 50ms}
  - {at: 20s, kind: reassign, topic: orders, rotate: 1}
"""
    )
    assert written.plan == built


def test_python_plans_have_the_same_problems_as_yaml() -> None:
    """The problems equal those of YAML, with Python positions."""
    plan = Plan(
        name="test",
        topics=(Topic(name="orders", partitions=3, replication=5),),
        workloads=(Workload(name="w", produce=Produce(topic="odrers", rate="60/s")),),
        faults=(Kill(at="0s", broker=1), Reassign(at="0s", topic="nowhere", rotate=1)),
    )
    with pytest.raises(PlanError) as caught:
        check(plan)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "plan.topics[0].replication",
        "plan.workloads[0].produce.topic",
        "plan.faults[0]",
        "plan.faults[1].topic",
    ]


def test_frozen() -> None:
    """A plan is immutable."""
    with pytest.raises(ValidationError, match="frozen"):
        Cluster().kafka = "4.1.2"  # type: ignore[misc]


def test_dangerous_settings_pass_no_check() -> None:
    """The rules for client settings also hold for plans built in Python."""
    arms = {"risky": Arm(settings={"plugin.library.paths": "evil.so"})}
    workload = Workload(name="w", produce=Produce(topic="t", rate="1/s"), arms=arms)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="loads code"):
        check(Plan(name="p", topics=(Topic(name="t", partitions=1, replication=1),), workloads=(workload,)))


def test_a_setting_that_a_plan_file_could_not_hold_is_refused() -> None:
    assert Arm(settings={"retry.backoff.ms": INTEGER_MAX}).settings == {"retry.backoff.ms": INTEGER_MAX}
    for number in (INTEGER_MAX + 1, -INTEGER_MAX - 1):
        with pytest.raises(ValueError, match=f"`{number}` is too large; give at most {INTEGER_MAX}"):
            Arm(settings={"retry.backoff.ms": number})


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"client": "confluent", "fetch_session": True}, "`fetch_session` only applies to `client: reference`"),
        ({"client": "java", "leader_discovery": "metadata"}, "`leader_discovery` only applies to `client: reference`"),
        ({"client": "exec"}, "`client: exec` needs a command"),
        ({"client": "reference", "command": ["./mine"]}, "the client reference runs no `command`: write `client: serv"),
        ({"command": ["./mine"]}, "the client confluent runs no `command`: write `client: service`"),
        ({"client": "reference", "partitioner": "round"}, "'sticky', 'uniform', 'adaptive' or 'availability'"),
        ({"client": "reference", "switch": "sharply"}, "'delayed' or 'sharp'"),
        ({"client": "java", "switch": "sharp"}, "`switch` only applies to `client: reference`"),
        ({"client": "reference", "partitioner": "sticky", "switch": "sharp"}, "remove `switch`"),
        ({"client": "reference", "leader_discovery": "metdata"}, "write response, metadata"),
    ],
)
def test_an_arm_speaks_the_words_of_its_client(said: dict[str, Any], why: str) -> None:
    """A switch of another client, and a program without a command, are refused."""
    with pytest.raises(ValidationError, match=why):
        Arm.model_validate(said)


def test_the_words_of_leader_discovery() -> None:
    """``response`` enables every rule of KIP-951, ``metadata`` none, and each can be set by itself."""
    on, off = Arm(client="reference", leader_discovery="response"), Arm(client="reference", leader_discovery="metadata")  # type: ignore[arg-type]
    assert {True} == set(on.switches["leader_discovery"].values())
    assert {False} == set(off.switches["leader_discovery"].values())
    one = Arm.model_validate({"client": "reference", "leader_discovery": {"immediate_retry": False}})
    assert {"hints": True, "immediate_retry": False, "endpoint_merge": True, "highest_version": True} == one.switches[
        "leader_discovery"
    ]
    assert {} == Arm(client="reference").switches


def test_brokers_are_numbered_as_listed() -> None:
    """Brokers are numbered rack after rack, in the order of the plan."""
    assert Cluster(racks={"b": 2, "a": 1}).broker_racks == {1: "b", 2: "b", 3: "a"}


def test_schema_covers_every_kind() -> None:
    """The JSON Schema contains each kind of fault by its discriminator, with YAML's keys."""
    schema = plan_schema()
    kinds = schema["properties"]["faults"]["items"]["oneOf"][0]["discriminator"]["mapping"]
    assert set(kinds) == set(KINDS)
    assert {"at", "for", "kind", "link", "delay"} <= set(schema["$defs"]["Latency"]["properties"])
    entry = schema["$defs"]["SloEntry"]
    assert {"type": "string"} in schema["properties"]["slo"]["items"]["anyOf"]
    assert (["slo"], ["verdict", "report"]) == (entry["required"], entry["properties"]["gate"]["enum"])
    assert (
        schema["properties"].keys()
        == load(FRAME + "  []\nabort: []\nblocks: 2\ncluster: {}\nslo: []\nwhy: x\n").data.keys()
    )

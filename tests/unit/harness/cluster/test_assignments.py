"""Assignments of clients: each gets the settings of the plan, and no two arms send at the same instant."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import EngineError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_plan
from aftershock.harness.cluster.assignments import RunContext, all_worker_names, assignments, java_command, label_worker
from aftershock.harness.cluster.images import build
from aftershock.workloads.load.assignment import (
    CONTAINER_ID,
    AssignedTopic,
    Assignment,
    CommitAssignment,
    ConsumeAssignment,
    PipeAssignment,
    ProduceAssignment,
)
from aftershock.workloads.load.logread import Topic
from aftershock.workloads.load.security import SecuritySettings

PLAN = """
name: two
cluster: {config: {offsets.topic.num.partitions: 3}}
topics: [{name: orders, partitions: 3, replication: 3}]
workloads:
  - name: orders
    produce:
      {topic: orders, rate: 50/s, record_size: {min: 10, max: 20}, keys: 5, acks: "1", idempotence: false, rack: b}
    consume: {topic: orders, group: readers, from: latest, rack: c}
    arms: {x: {settings: {retry.backoff.ms: 7}}, y: {client_rack: c}}
  - {name: extra, produce: {topic: orders, rate: 10/s}}
  - name: positions
    commit: {groups: 4, rate: 20/s}
    arms: {ours: {client: reference, leader_discovery: metadata, fetch_session: false}, kafkas: {client: java}}
  - {name: busy, commit: {groups: 90, in_flight: 9, by_coordinator: true}, arms: {ours: {client: reference}}}
"""


BEGIN = {"orders": {0: 5}}
IMAGE = ("image", "client")


class Doorways:
    """The part of a cluster that assignments use: bootstrap addresses and security."""

    security = SecuritySettings(protocol="SASL_SSL", mechanism="PLAIN", user="alice", password="${PASSWORD}")  # noqa: S106

    def kafka_rack(self, rack: str | None) -> str | None:
        return rack and f"zone-{rack}"

    def bootstrap(self, rack: str | None, *, own_addresses: bool = False) -> str:
        return f"{'side-' * own_addresses}door-{rack}"


def told(plan: str = PLAN, **context: Any) -> dict[str, Assignment]:
    checked = load_plan(plan)
    timeline = compile_plan(checked.plan, 7, checked.source, checked.slo_positions)
    around = RunContext(
        "r",
        1,
        Path("spool"),
        Path("events"),
        {"orders": Topic("orders", "id", 3), "returns": Topic("returns", "id2", 2)},
        {1: "a"},
        BEGIN,
        ("image", "client"),
        **context,
    )
    all_told = assignments(timeline, Doorways(), around)  # type: ignore[arg-type]  # only `bootstrap` is asked
    return {each.worker: each for each in all_told}


def test_one_process_for_each_workload_arm_and_operation() -> None:
    """Eight clients, named after workload, arm and operation."""
    assert [
        "orders-x-produce",
        "orders-x-consume",
        "orders-y-produce",
        "orders-y-consume",
        "extra-baseline-produce",
        "positions-ours-commit",
        "positions-kafkas-commit",
        "busy-ours-commit",
    ] == [*told()]


def test_clients_get_bootstrap_addresses_that_a_fault_can_lose() -> None:
    """The harness's own reader of a pipe keeps the listener that no fault affects."""
    doors = {each.bootstrap for each in told(own_bootstrap=True).values()}
    assert doors == {f"side-{each.bootstrap}" for each in told().values()}


def test_clients_stand_where_the_plan_puts_them() -> None:
    """Producers connect in rack b, consumers in c, and clients without a rack in the first."""
    doors = {name: each.bootstrap for name, each in told().items()}
    assert ("door-b", "door-c", "door-a") == (
        doors["orders-x-produce"],
        doors["orders-x-consume"],
        doors["extra-baseline-produce"],
    )


def test_plan_words_become_client_words() -> None:
    """Every knob of the plan reaches the process it belongs to."""
    x, y = told()["orders-x-produce"], told()["orders-y-consume"]
    assert isinstance(x, ProduceAssignment)
    assert isinstance(y, ConsumeAssignment)
    assert ("1", False, 10, 20, 5, 7) == (x.acks, x.idempotence, x.record_size_min, x.record_size_max, x.keys, x.seed)
    assert {"retry.backoff.ms": 7} == x.settings
    assert ("readers-y", "latest", "zone-c") == (y.group, y.from_, y.client_rack)


def test_arms_send_the_same_records_and_never_at_once() -> None:
    """Same seed and rate, producer ids of their own, schedules half a period apart."""
    x, y = told()["orders-x-produce"], told()["orders-y-produce"]
    assert isinstance(x, ProduceAssignment)
    assert isinstance(y, ProduceAssignment)
    assert (x.seed, x.rate_per_s) == (y.seed, y.rate_per_s)
    assert [0, 1] == [x.producer_id, y.producer_id]
    assert 10_000 == y.offset_us - x.offset_us


def test_arms_get_the_settings_of_their_client() -> None:
    """The reference client gets its switches, the Java client its command; commits are dealt to groups."""
    ours, kafkas = told()["positions-ours-commit"], told()["positions-kafkas-commit"]
    assert isinstance(ours, CommitAssignment)
    assert isinstance(kafkas, CommitAssignment)
    off = dict.fromkeys(("hints", "immediate_retry", "endpoint_merge", "highest_version"), False)
    assert {"leader_discovery": off, "fetch_session": False} == ours.switches
    named = ("--label", "aftershock.worker=positions-kafkas-commit", "image", "client")
    assert ("java", named, ()) == (kafkas.client, kafkas.command, ours.command)
    assert ("positions-ours-1", 1, 1) == (ours.group_of(5), ours.partition_of(5), ours.offset_of(5))
    assert 6 == len({each.producer_id for each in told().values() if not isinstance(each, ConsumeAssignment)})


def test_a_closed_loop_has_an_in_flight_limit_and_partitions() -> None:
    """No rate, and the number of offsets partitions from the cluster's configuration."""
    busy, plain = told()["busy-ours-commit"], told()["positions-ours-commit"]
    assert isinstance(busy, CommitAssignment)
    assert isinstance(plain, CommitAssignment)
    assert (None, 9, 0, 3) == (busy.rate_per_s, busy.in_flight, busy.offset_us, busy.offsets_partitions)
    assert (20, None, None) == (plain.rate_per_s, plain.in_flight, plain.offsets_partitions)


def test_client_names_are_known_before_assignment() -> None:
    """A fault may set quotas of the run's clients only, and the timeline has their names."""
    checked = load_plan(PLAN)
    timeline = compile_plan(checked.plan, 7, checked.source, checked.slo_positions)
    assert [*told()] == [*all_worker_names(timeline)]


def test_readers_ignore_records_from_before_the_run() -> None:
    """Also if an earlier run wrote them to the existing topic."""
    told_readers = [each for each in told().values() if isinstance(each, ConsumeAssignment)]
    assert [BEGIN, BEGIN] == [each.begin for each in told_readers]


def test_several_topics_reach_the_clients() -> None:
    """Each with its id, its partitions and its first offset of this run; and the pattern of a subscription."""
    plan = PLAN.replace(
        "topics: [{name: orders", "topics: [{name: returns, partitions: 2, replication: 3}, {name: orders"
    )
    plan = plan.replace("produce:\n      {topic: orders,", "produce:\n      {topics: [returns, orders],")
    plan = plan.replace("consume: {topic: orders,", "consume: {pattern: '.*',").replace("from: latest, ", "")
    x, y = told(plan)["orders-x-produce"], told(plan)["orders-y-consume"]
    assert isinstance(y, ConsumeAssignment)
    returns, orders = (
        AssignedTopic(name="returns", topic_id="id2", partitions=2),
        AssignedTopic(name="orders", topic_id="id", partitions=3),
    )
    assert (returns, orders) == x.topics == y.topics
    assert (".*", {"orders": {0: 5}}) == (y.pattern, y.begin)
    assert [("returns", 0), ("returns", 1), ("orders", 0), ("orders", 1), ("orders", 2)] == y.places


def test_every_assignment_has_security_without_secrets() -> None:
    """The names of environment variables, as in the cluster's configuration."""
    assert {Doorways.security} == {each.security for each in told().values()}


def test_an_image_is_named_for_the_kafka_image_it_is_made_from() -> None:
    """Kafka's version is in the name; another image of that version, official or ours, gives another name."""
    official, ours, older = (
        build.java_client(kafka).name
        for kafka in ("apache/kafka:4.3.1", "aftershock/kafka:4.3.1-0123456789", "k:4.1.2")
    )
    assert official.startswith("aftershock/java-client:4.3.1-")
    assert ours.startswith("aftershock/java-client:4.3.1-")
    assert official != ours
    assert older.startswith("aftershock/java-client:4.1.2-")


SERVICE = """
name: service
topics: [{name: orders, partitions: 3, replication: 3}, {name: returns, partitions: 2, replication: 3}]
workloads:
  - name: own
    produce: {topic: orders, rate: 10/s}
    pipe: {from: orders, to: returns, group: g}
    arms: {app: {client: service, image: aftershock/streams, command: [run], env: {TO: "{to}"}, file: "a={from}"}}
"""


def test_a_service_in_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker starts the image that the plan's name stands for, and tells the id of the container, for its end."""
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/docker")
    service = told(SERVICE, labels={"aftershock.run": "r"}, images={"aftershock/streams": "built:1"})["own-app-pipe"]
    assert isinstance(service, PipeAssignment)
    assert service.in_container
    words = service.command
    assert ("docker", "run", "--rm", "--network", "host") == words[:5]
    assert CONTAINER_ID == words[words.index("--cidfile") + 1]
    assert {"aftershock.run=r", "aftershock.worker=own-app-pipe", "TO={to}"} <= {*words}
    assert "type=bind,source={file},target={file},readonly" == words[words.index("--mount") + 1]
    assert ("built:1", "run") == words[-2:]


def test_the_command_carries_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that outlives its run is identified by the run's label; it is removed at its end, and its output
    is not logged.
    """
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/docker")
    words = java_command("i:1", {"aftershock.run": "r 1", "aftershock.keep": "false"})
    assert words[:3] == ("docker", "run", "--interactive")
    assert {"--rm", "host", "none", "never"} <= set(words)
    marks = ("--label", "aftershock.run=r 1", "--label", "aftershock.keep=false")
    assert words[-6:] == (*marks, "i:1", "/opt/aftershock/client")
    assert label_worker(words, "w")[-4:] == ("--label", "aftershock.worker=w", "i:1", "/opt/aftershock/client")


def test_a_missing_docker_command_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the command and the client that needs it."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EngineError, match=r"client: java.*not on the PATH"):
        java_command("i:1", {})


def test_members_and_producers() -> None:
    """Members have numbers, names and racks in turn; producers share the rate, with evenly interleaved schedules."""
    text = (
        PLAN.replace("{topic: orders, rate: 50/s,", "{topic: orders, producers: 2, rate: 50/s,")
        .replace(
            "latest, rack: c}", "latest, racks: [c, a], members: 3, protocol: classic, assignor: range, static: true}"
        )
        .replace("from: latest,", "from: latest, commit: {every: 100 records}, processing: 2ms,")
    )
    every = told(text)
    members = [every[f"orders-x-consume-{number}"] for number in (1, 2, 3)]
    assert all(isinstance(member, ConsumeAssignment) for member in members)
    assert [(1, "c", "door-c"), (2, "a", "door-a"), (3, "c", "door-c")] == [
        (member.number, member.rack, member.bootstrap) for member in members
    ]
    first = members[0].model_dump()
    assert ("readers-x", 3, "classic", "range", 2) == tuple(
        first[name] for name in ("group", "members", "protocol", "assignor", "processing_ms")
    )
    assert ("orders-x-consume-1", {"every_ms": None, "every_records": 100}) == (first["instance_id"], first["commit"])
    producers = [every[f"orders-{arm}-produce-{number}"].model_dump() for number in (1, 2) for arm in "xy"]
    assert [0, 10_000, 20_000, 30_000] == [producer["offset_us"] for producer in producers]
    assert {25.0} == {producer["rate_per_s"] for producer in producers}
    assert 4 == len({producer["producer_id"] for producer in producers})


PIPES = """
name: pipes
topics: [{name: orders, partitions: 3, replication: 3}, {name: billed, partitions: 3, replication: 3}]
workloads:
  - name: billing
    produce: {topic: orders, rate: 50/s}
    pipe: {from: orders, to: billed, group: biller, transactional: true}
    arms:
      java: {client: java, settings: {session.timeout.ms: 6000}}
      reference: {client: reference, leader_discovery: metadata, settings: {transaction.timeout.ms: 9000}}
      lib: {}
"""


def test_pipes_of_ours_are_services_with_the_settings_of_their_arm() -> None:
    """Kafka's Java client runs in a container, which gets its settings as a variable; the others run as modules."""
    checked = load_plan(PIPES)
    timeline = compile_plan(checked.plan, 7, checked.source, checked.slo_positions)
    names = ("orders", "billed-java", "billed-reference", "billed-lib")
    topics = {name: Topic(name, "id", 3) for name in names}
    java = ("docker", "run", "--label", "a=b", "image", "client")
    around = RunContext("r", 1, Path("spool"), Path("events"), topics, {1: "a"}, java=java)
    all_told = assignments(timeline, Doorways(), around)  # type: ignore[arg-type]  # only `bootstrap` is asked
    pipes = {each.arm: each for each in all_told if isinstance(each, PipeAssignment)}
    expected = {
        "java": {"session.timeout.ms": 6000},
        "reference": {
            "transaction.timeout.ms": 9000,
            "leader_discovery": pipes["reference"].switches["leader_discovery"],
        },
        "lib": {},
    }
    for arm, settings in expected.items():
        config = json.loads(pipes[arm].env["AFTERSHOCK_PIPE"])
        assert (settings, True) == (config.pop("settings"), config.pop("transactional"))
        assert {word: f"{{{word}}}" for word in ("bootstrap", "from", "to", "group", "member")} == config
        assert "started" == pipes[arm].ready.log
        assert ("orders", f"billed-{arm}", f"biller-{arm}") == (pipes[arm].topic, pipes[arm].to, pipes[arm].group)
    *words, image, program, role = pipes["java"].command
    assert ("image", "client", "pipe") == (image, program, role)
    assert f"AFTERSHOCK_PIPE={pipes['java'].env['AFTERSHOCK_PIPE']}" == words[words.index("--env") + 1]
    assert any(word.endswith("=billing-java-pipe") for word in words)
    assert "aftershock.workloads.adapters.reference_pipe" == pipes["reference"].command[-1]
    assert "aftershock.workloads.adapters.confluent_pipe" == pipes["lib"].command[-1]

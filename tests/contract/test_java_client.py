"""Kafka's own Java client behind the exec protocol, on a real cluster: it conforms, and its container is always
removed.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from aftershock.faults.targets.values import BrokerId
from aftershock.harness.adhoc.conformance import RACK, LaunchedCluster
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.assignments import java_command
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety.ownership import RUN, labels_of, remove_run
from aftershock.tests.contract.load import Load, new_topic
from aftershock.workloads.adapters.conformance.bench import (
    ONCE,
    Bench,
    ClientSession,
    Violation,
    require_exit_at_end_of_input,
)
from aftershock.workloads.adapters.conformance.checks import CHECKS, Check, judge
from aftershock.workloads.adapters.exec_orders import Send, commit_order, start_order
from aftershock.workloads.adapters.exec_protocol import Failed, Traffic
from aftershock.workloads.load.assignment import Assignment
from aftershock.workloads.load.events import run_clock
from aftershock.workloads.load.fleet import Fleet

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

PATIENCE_S = 30.0

EVERY_CHECK = [pytest.param(op, check, id=f"{op}-{check.__name__}") for op, list_ in CHECKS.items() for check in list_]

HOLDER = """
import sys, time
from aftershock.workloads.adapters.exec_child import Child
child = Child(sys.argv[1:])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    client = engine.connect()
    yield client
    client.close()


@pytest.fixture(scope="module")
def command(client: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    image = engine.java_client_image(client, engine.DEFAULT_KAFKA, print).name
    run_id = "contract-java-client"
    try:
        yield java_command(image, labels_of(run_id, tmp_path_factory.mktemp("java"), keep=False))
    finally:
        remove_run(client, run_id)


@pytest.fixture(scope="module")
def bench(command: tuple[str, ...], cluster: Cluster) -> Bench:
    return Bench(command, LaunchedCluster(cluster), PATIENCE_S)


@pytest.mark.parametrize(("op", "check"), EVERY_CHECK)
def test_the_java_client_conforms(bench: Bench, op: str, check: Check) -> None:
    """Every conformance check, producing, consuming and committing, with outages that cut every link."""
    result = judge(op, check, bench)
    assert ("passed", "") == (result.outcome, result.reason)


def containers(client: docker.DockerClient, run_id: str) -> list[str]:
    """Return the ids of the run's running containers."""
    return [found.id for found in client.containers.list(filters={"label": f"{RUN}={run_id}"}, ignore_removed=True)]


def wait_for(lacking: Callable[[], str]) -> None:
    assert not still_lacking(lacking, PATIENCE_S)


def test_no_container_outlives_a_worker_that_is_killed(client: docker.DockerClient, tmp_path: Path) -> None:
    """SIGKILL of the worker: the program and its container end as well."""
    run_id = f"contract-{tmp_path.name.lower().replace('_', '-')}"
    image = engine.java_client_image(client, engine.DEFAULT_KAFKA, print).name
    words = java_command(image, labels_of(run_id, tmp_path, keep=False))
    try:
        with subprocess.Popen([sys.executable, "-c", HOLDER, *words], stdout=subprocess.PIPE) as holder:
            wait_for(lambda: "" if containers(client, run_id) else "the container does not run")
            os.kill(holder.pid, signal.SIGKILL)
        wait_for(lambda: "the container is still there" if containers(client, run_id) else "")
    finally:
        remove_run(client, run_id)


def test_traffic_is_reported_by_broker(bench: Bench) -> None:
    """After records to every partition, bytes are reported for each broker, which exposure needs."""
    with bench.session() as talk:
        talk.start(bench.producing(bench.topic()))
        for seq in range(200):
            talk.order(Send(seq=seq, topic=talk.topic, key=b"%d" % seq, value=b"x" * 1000, headers=()).line())
        talk.until(lambda: {1, 2, 3} <= busy(talk), "tell the traffic of brokers 1, 2 and 3", ONCE)
    told = talk.reports_of(Traffic)[-1].brokers
    assert {1, 2, 3} == set(told)
    assert sum(sent for sent, _ in told.values()) > 200 * 1000


def busy(talk: ClientSession) -> set[int]:
    """Return the brokers with bytes sent and received in the last report."""
    return {number for report in talk.reports_of(Traffic)[-1:] for number, both in report.brokers.items() if all(both)}


def test_a_setting_that_kafka_does_not_have_is_refused(bench: Bench) -> None:
    """A misspelt setting ends the client with a reason; settings of another kind of Kafka client are ignored."""
    with bench.session() as talk:
        talk.start(bench.producing(bench.topic(), settings={"max.poll.records": 5, "batch.size": 1000}))
    with bench.session() as talk, pytest.raises(Violation, match=r"no setting linger\.mss"):
        talk.start(bench.producing(bench.topic(), settings={"linger.mss": 5}))


def test_orders_are_read_while_kafka_is_unreachable(bench: Bench) -> None:
    """Without Kafka the client fails orders beyond its buffer, and ends with its worker."""
    nowhere = bench.producing("nowhere").model_copy(update={"bootstrap": "127.0.0.1:1"})
    with bench.session() as talk:
        talk.order(start_order(nowhere))
        for seq in range(6):
            talk.order(Send(seq=seq, topic="nowhere", key=None, value=b"x" * 10**6, headers=()).line())
        talk.until(lambda: talk.reports_of(Failed), "fail an order that there is no room for", ONCE)
        assert {(report.error, report.in_doubt) for report in talk.reports_of(Failed)} == {("_QUEUE_FULL", False)}
        require_exit_at_end_of_input(talk)


SHARE = {"share": True}
GROUPS = 4


def sharing(load: Load, command: tuple[str, ...], rate_per_s: float) -> tuple[Assignment, ...]:
    """Run share groups, and a topic that is written faster than each group acknowledges."""
    shares = load.commit("shares", "java", command=command, settings=SHARE, rate_per_s=rate_per_s, groups=GROUPS)
    return load.produce("feed", "confluent", rate_per_s=20 + 2 * rate_per_s / GROUPS), shares


def test_share_groups_acknowledge_each_order(
    command: tuple[str, ...], cluster: Cluster, client: docker.DockerClient, tmp_path: Path
) -> None:
    """Every order is acked; and Kafka's own share consumer misses exactly as many records of a group."""
    load = Load(cluster, tmp_path, new_topic(cluster, "shared", 6))
    load.run(sharing(load, command, rate_per_s=40), seconds=6)
    assert 40 * 5 < len(load.of("shares"))
    assert {"ok"} == {row["status"] for row in load.of("shares")}
    group, acked = Counter(row["group"] for row in load.of("shares")).popitem()
    assert sum(load.read_to.values()) - acked == len(left_to(client, load, group))


def left_to(client: docker.DockerClient, load: Load, group: str) -> list[str]:
    """Return what Kafka's own share consumer reads as a member of that group: one line for each record."""
    command = ["/opt/kafka/bin/kafka-console-share-consumer.sh", "--bootstrap-server", load.cluster.bootstrap(RACK)]
    command += ["--topic", load.topic.name, "--group", group, "--timeout-ms", "8000"]
    command += ["--property", "print.value=false", "--property", "print.offset=true"]
    said = engine.run_to_end(
        client,
        load.cluster.nodes[BrokerId(1)].container.image.id,
        command,
        network_mode="host",
        environment={"KAFKA_HEAP_OPTS": "-Xmx128m"},
        labels={RUN: load.cluster.run_id},
    )
    return [line for line in said.decode().splitlines() if line.startswith("Offset:")]


def test_share_groups_continue_after_an_outage(
    bench: Bench, command: tuple[str, ...], cluster: Cluster, tmp_path: Path
) -> None:
    """Orders during an outage of every link are in doubt; later orders are acked."""
    load = Load(cluster, tmp_path, new_topic(cluster, "shared-on", 6))
    now_us = run_clock(load.origin_ns)
    cut_us = back_us = 0

    async def cut(_: Fleet) -> None:
        nonlocal cut_us, back_us
        await asyncio.sleep(3)
        cut_us = now_us()
        with bench.outage():
            await asyncio.sleep(3)
        back_us = now_us()
        await asyncio.sleep(8)

    load.run(sharing(load, command, rate_per_s=20), 14, cut)
    assert {"ok"} == statuses(load, 0, cut_us - 1_000_000)
    assert "in_doubt" in statuses(load, cut_us, back_us)
    assert {"ok"} == statuses(load, back_us + 5_000_000, now_us())


def statuses(load: Load, since_us: int, until_us: int) -> set[str]:
    """Return the outcomes of the commits that were due in that time."""
    return {row["status"] for row in load.of("shares") if since_us <= row["intended_us"] < until_us}


def test_an_order_without_a_record_fails_and_is_not_in_doubt(bench: Bench) -> None:
    """No record arrived before the deadline, so no acknowledgement was sent."""
    with bench.session() as talk:
        assignment = bench.committing(bench.topic(), settings=SHARE, deadline_ms=500)
        talk.start(assignment)
        talk.order(commit_order(assignment, 0))
        talk.until(lambda: talk.reports_of(Failed), "fail an order that no record is there for", ONCE)
        assert [Failed(seq=0, error="_NO_OFFSET", in_doubt=False)] == talk.reports_of(Failed)


def test_more_share_groups_than_it_has_room_for_are_refused(bench: Bench) -> None:
    """Each group is a consumer with its own threads in a small process, so the number is bounded."""
    with bench.session() as talk, pytest.raises(Violation, match="at most 32 groups"):
        talk.start(bench.committing(bench.topic(), settings=SHARE, groups=33))

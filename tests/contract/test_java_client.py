"""Kafka's own Java client behind our protocol, on a real cluster: it keeps it, and it leaves nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from aftershock.harness import engine
from aftershock.harness.cluster import Cluster
from aftershock.harness.java_client import java_command
from aftershock.harness.labels import RUN, labels_of, remove_run
from aftershock.harness.waiting import still_lacking
from aftershock.workloads.clients.conformance.__main__ import CHECKS, Check, judge
from aftershock.workloads.clients.conformance.bench import Bench, Complaint, Talk
from aftershock.workloads.clients.conformance.cluster import StandingCluster
from aftershock.workloads.clients.conformance.sending import end_of_input_ends
from aftershock.workloads.clients.exec_protocol import Failed, Traffic, send_order, start_order

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

PATIENCE_S = 30.0
RACK = "a"

EVERY_CHECK = {f"{op}-{check.__name__}": check for op, checks in CHECKS.items() for check in checks}

HOLDER = """
import sys, time
from aftershock.workloads.clients.exec_child import Child
child = Child(sys.argv[1:])
print(child.pid, flush=True)
time.sleep(600)
"""


class BehindToxiproxy(StandingCluster):
    """A real cluster whose every client link can be cut."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.bootstrap(RACK))
        self._toxiproxy = cluster.toxiproxy
        self._links = [proxy.name for proxy in cluster.spec.topology.proxies() if proxy.channel == "client"]

    def down(self) -> None:
        self._open(enabled=False)

    def up(self) -> None:
        self._open(enabled=True)

    def _open(self, *, enabled: bool) -> None:
        for link in self._links:
            self._toxiproxy.enable(link, enabled=enabled)


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
    return Bench(command, BehindToxiproxy(cluster), PATIENCE_S)


@pytest.mark.parametrize("check", EVERY_CHECK.values(), ids=EVERY_CHECK.keys())
def test_it_keeps_the_protocol(bench: Bench, check: Check) -> None:
    """Every check that any client must pass, producing, consuming and committing, with outages that cut every link."""
    assert judge(check, bench) == ("ok", "")


def containers(client: docker.DockerClient, run_id: str) -> list[str]:
    """The ids of the run's containers that are running."""
    return [found.id for found in client.containers.list(filters={"label": f"{RUN}={run_id}"}, ignore_removed=True)]


def wait_for(lacking: Callable[[], str]) -> None:
    assert not still_lacking(lacking, PATIENCE_S)


def test_no_container_outlives_a_worker_that_is_killed(client: docker.DockerClient, tmp_path: Path) -> None:
    """kill -9 whoever started it: the program goes with it, and so does its container."""
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


def test_its_traffic_is_told_by_broker(bench: Bench) -> None:
    """Once it has sent to every partition, bytes are told for each broker, so that exposure to its links is known."""
    with bench.talk() as talk:
        talk.start(bench.producing(bench.topic()))
        for seq in range(200):
            talk.order(send_order(seq, b"%d" % seq, b"x" * 1000, []))
        talk.until(lambda: {1, 2, 3} <= busy(talk), "tell the traffic of brokers 1, 2 and 3")
    told = talk.said(Traffic)[-1].brokers
    assert {1, 2, 3} == set(told)
    assert sum(sent for sent, _ in told.values()) > 200 * 1000


def busy(talk: Talk) -> set[int]:
    """The brokers that bytes were last told for, sent and received."""
    return {number for report in talk.said(Traffic)[-1:] for number, both in report.brokers.items() if all(both)}


def test_a_setting_that_kafka_does_not_have_is_refused(bench: Bench) -> None:
    """A typing error is an end with a reason; what is only another client's of Kafka's is passed over."""
    with bench.talk() as talk:
        talk.start(bench.producing(bench.topic(), settings={"max.poll.records": 5, "batch.size": 1000}))
    with bench.talk() as talk, pytest.raises(Complaint, match=r"no setting linger\.mss"):
        talk.start(bench.producing(bench.topic(), settings={"linger.mss": 5}))


def test_it_reads_whatever_it_waits_for(bench: Bench) -> None:
    """Waiting for a Kafka that isn't there it fails orders that it has no room for, and ends with its worker."""
    nowhere = bench.producing("nowhere").model_copy(update={"bootstrap": "127.0.0.1:1"})
    with bench.talk() as talk:
        talk.order(start_order(nowhere))
        for seq in range(6):
            talk.order(send_order(seq, None, b"x" * 10**6, []))
        talk.until(lambda: talk.said(Failed), "fail an order that there is no room for")
        assert {(report.error, report.in_doubt) for report in talk.said(Failed)} == {("_QUEUE_FULL", False)}
        end_of_input_ends(talk)

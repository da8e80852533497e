"""State of a node's container: memory in use, and which container stands for the node."""

import ctypes
import os
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker.errors import APIError

from aftershock.errors import ClusterError
from aftershock.harness.cluster.node import (
    FREEZE_ATTEMPTS,
    ContainerUsage,
    KafkaNode,
    current_container,
    node_name,
)
from aftershock.harness.cluster.topology import Node

NETWORKS = {"eth0": {"rx_bytes": 5, "tx_bytes": 30}, "eth1": {"rx_bytes": 5, "tx_bytes": 7}}


class Container:
    """A container with the given statistics, or one that raises the given error."""

    name, labels = "k1", dict[str, str]()

    def __init__(self, told: dict[str, Any] | APIError) -> None:
        self._told = told

    def stats(self, **asked: bool) -> dict[str, Any]:
        assert {"stream": False, "one_shot": True} == asked
        if isinstance(self._told, APIError):
            raise self._told
        return self._told


@pytest.mark.parametrize(
    ("told", "used"),
    [
        ({"cpu_stats": {"cpu_usage": {"total_usage": 5_000_000}}, "networks": NETWORKS}, ContainerUsage(5_000, 37)),
        ({"cpu_stats": {"cpu_usage": {"total_usage": 5_000_000}}}, ContainerUsage(5_000, 0)),
        ({"cpu_stats": {"cpu_usage": {"total_usage": 0}}}, None),
        ({}, None),
        (APIError("gone"), None),
    ],
)
def test_cpu_time_and_network_bytes(told: dict[str, Any] | APIError, used: ContainerUsage | None) -> None:
    """The engine counts nanoseconds; for a stopped container it returns zeros or nothing, which means unknown."""
    assert used == KafkaNode(cast("Any", None), cast("Any", Container(told))).usage()


def test_cpu_time_of_the_threads_that_handle_requests() -> None:
    """Of a real process, this one: only a thread with the broker's name counts, and with all that it has used."""
    used, done, go = [0], threading.Event(), threading.Event()

    def work() -> None:
        ctypes.CDLL(None).prctl(15, b"data-plane-kafka-request-handler-0")  # PR_SET_NAME
        while used[0] < 20_000_000:
            used[0] = time.thread_time_ns()
        done.set()
        go.wait()

    container: Any = SimpleNamespace(name="k1", attrs={"State": {"Pid": os.getpid()}})
    node = KafkaNode(cast("Any", None), container)
    assert node.request_cpu_us() is None
    thread = threading.Thread(target=work)
    thread.start()
    done.wait()
    counted_us = node.request_cpu_us()
    go.set()
    thread.join()
    assert counted_us is not None
    # the kernel adds the time of a running thread with the next tick
    assert used[0] // 2000 <= counted_us <= time.process_time_ns() // 1000
    container.attrs["State"]["Pid"] = 0
    assert node.request_cpu_us() is None


def test_metrics_of_a_node() -> None:
    """Numbers of Kafka's own tool by MBean and attribute; texts, NaN, and a node whose tool fails give nothing."""
    printed = b"""Trying to connect to JMX url: service:jmx:rmi:///jndi/rmi://172.20.0.3:9999/jmxrmi
time=1764464000000
kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions:Value=8
kafka.server:type=FetchSessionCacheShard,name=IncrementalFetchSessionEvictionsPerSec,cacheShard=0:EventType=evictions
kafka.server:type=group-coordinator-metrics:batch-flush-rate=12.5
kafka.server:type=group-coordinator-metrics:batch-linger-time-ms-max=NaN
"""
    outcome = [(0, printed)]
    container: Any = SimpleNamespace(name="k1", exec_run=lambda _: outcome[0])
    node = KafkaNode(cast("Any", None), container)
    assert {
        "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions:Value": 8,
        "kafka.server:type=group-coordinator-metrics:batch-flush-rate": 12.5,
    } == node.metrics()
    outcome[0] = 1, printed
    assert {} == node.metrics()


@pytest.mark.parametrize(
    ("there", "stands"),
    [
        (["r-k1", "r-k2"], "r-k2"),
        (["r-k2", "r-k2-was-1"], "r-k2"),
        (["r-k2-was-9", "r-k2-was-10", "r-k2-was-1"], "r-k2-was-10"),
        (["r-k20", "r-k20-was-1"], None),
        ([], None),
    ],
)
def test_the_current_container_of_a_node(there: list[str], stands: str | None) -> None:
    """The container with the node's own name, else the replaced container with the highest number; other nodes don't
    count.
    """
    found: Any = {name: name for name in there}
    assert stands == current_container(found, "r-k2")


@pytest.mark.parametrize("name", ["r-k2", "r-k2-was-1", "r-k2-was-12"])
def test_the_node_name_of_a_replaced_container(name: str) -> None:
    """The node name is the same before and after the replacement."""

    class Container:
        pass

    container: Any = Container()
    container.name = name
    assert "r-k2" == node_name(container)


@pytest.mark.parametrize(
    ("refusals", "reason", "attempts"),
    [
        (0, "", 1),
        (FREEZE_ATTEMPTS - 1, "OCI runtime pause failed: unable to freeze: unknown", FREEZE_ATTEMPTS),
        (FREEZE_ATTEMPTS, "OCI runtime pause failed: unable to freeze: unknown", FREEZE_ATTEMPTS),
        (1, "Container k1 is not running", 1),
    ],
)
def test_pause_is_repeated_while_the_kernel_holds_a_thread(
    refusals: int, reason: str, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the refusal to freeze is temporary; the last one, and any other reason, is the caller's error."""
    monkeypatch.setattr(time, "sleep", lambda _s: None)
    asked = []

    class Freezing(Container):
        def reload(self) -> None: ...

        def pause(self) -> None:
            asked.append(self)
            if len(asked) <= refusals:
                raise APIError("500 Server Error", explanation=reason)

    node = KafkaNode(cast("Any", None), cast("Any", Freezing({})))
    with pytest.raises(ClusterError, match=reason) if attempts <= refusals else nullcontext():
        node.pause()
    assert attempts == len(asked)


class Recorded:
    """A container that records what is done to it."""

    def __init__(self, name: str, calls: list[tuple[str, str]], network_mode: str = "bridge") -> None:
        self.name, self._calls, self.labels = name, calls, dict[str, str]()
        self.attrs = {"HostConfig": {"NetworkMode": network_mode}}
        self.client: Any = None

    def reload(self) -> None: ...

    def kill(self) -> None:
        self._calls.append((self.name, "kill"))

    def start(self) -> None:
        self._calls.append((self.name, "start"))


@pytest.mark.parametrize(
    ("network_mode", "killed", "crashed", "started"),
    [("bridge", ["k1"], ["k1"], ["k1"]), ("container:7f", ["k1", "host"], ["k1"], ["host", "k1"])],
)
def test_a_host_dies_with_a_killed_node_and_outlives_a_crashed_one(
    network_mode: str, killed: list[str], crashed: list[str], started: list[str]
) -> None:
    """Sockets are closed before the address disappears; a node starts in the network of a running host."""
    calls: list[tuple[str, str]] = []
    container, hosts = Recorded("k1", calls, network_mode), {"7f": Recorded("host", calls)}
    container.client = SimpleNamespace(containers=SimpleNamespace(get=hosts.__getitem__, list=lambda **_: []))
    node = KafkaNode(cast("Any", None), cast("Any", container))
    for action, expected in ((node.kill, killed), (node.crash, crashed), (node.restart, started)):
        calls.clear()
        action()
        assert expected == [name for name, _ in calls]


def test_a_vanished_node_has_lost_its_network_before_it_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that keeps its network is not killed, because its kernel would close its connections."""
    calls: list[tuple[str, str]] = []
    container, hosts = Recorded("k1", calls, "container:7f"), {"7f": Recorded("host", calls)}
    container.client = SimpleNamespace(containers=SimpleNamespace(get=hosts.__getitem__))
    node = KafkaNode(cast("Any", None), cast("Any", container))
    devices = iter([b"eth0\nlo\n", b"lo\n"])
    monkeypatch.setattr(container, "exec_run", lambda _: SimpleNamespace(output=next(devices)), raising=False)
    node.vanish()
    assert [("host", "kill"), ("k1", "kill")] == calls
    calls.clear()
    monkeypatch.setattr(f"{KafkaNode.__module__}._UNPLUGGED_S", 0)
    monkeypatch.setattr(container, "exec_run", lambda _: SimpleNamespace(output=b"eth0\nlo\n"))
    with pytest.raises(ClusterError, match="the node k1 has the network devices eth0, lo 0 s after"):
        node.vanish()
    assert [("host", "kill")] == calls


@pytest.mark.parametrize(
    ("network_mode", "code", "output", "expected"),
    [
        ("container:7f", 1, b"bash: connect: Connection refused", "closed"),
        ("container:7f", 0, b"", "answered"),
        ("container:7f", 124, b"", "silent"),
        ("container:7f", 1, b"bash: k1: Name or service not known", "silent"),
        ("container:7f", None, b"", "silent"),
        ("bridge", 1, b"", "silent"),
    ],
)
def test_a_host_that_runs_refuses_a_connection(
    network_mode: str, code: int | None, output: bytes, expected: str
) -> None:
    """A host that is gone can't be asked."""
    asked = []

    def execute(command: list[str]) -> tuple[int, bytes]:
        asked.append(command[-1])
        if code is None:
            raise APIError("409 Conflict", explanation="the container is not running")
        return code, output

    host = SimpleNamespace(exec_run=execute)
    container = Recorded("k1", [], network_mode)
    container.client = SimpleNamespace(containers=SimpleNamespace(get={"7f": host}.__getitem__))
    broker = Node(1, "a", broker=True, controller=True)
    assert expected == KafkaNode(broker, cast("Any", container)).dial()
    assert [": < /dev/tcp/k1/9201"] * (network_mode != "bridge") == asked


@pytest.mark.parametrize(
    ("out_of_memory", "reason"), [(True, "; it needed more memory than its container's 1280 MiB"), (False, "")]
)
def test_a_node_that_was_killed_for_its_memory(out_of_memory: bool, reason: str) -> None:
    """Docker tells it from other ends, which have the same exit code."""
    attrs = {"State": {"OOMKilled": out_of_memory, "ExitCode": 137}, "HostConfig": {"Memory": 1280 << 20}}
    container = SimpleNamespace(name="aftershock-run-k1", attrs=attrs)
    node = KafkaNode(cast("Any", SimpleNamespace(name="k1", rack="a")), cast("Any", container))
    assert f"the Kafka node k1 (rack a) exited with code 137{reason}" == node.exit_of()


@pytest.mark.parametrize(("states", "starts"), [([], 1), (["running"], 1), (["exited"], 0)])
def test_a_node_without_its_block_device_stays_down(states: list[str], starts: int) -> None:
    """The number of its loop device may belong to another program by now, whose disk it would mount."""
    calls: list[tuple[str, str]] = []
    holders, container = [SimpleNamespace(status=status) for status in states], Recorded("k2", calls)
    container.client = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: holders))
    node = KafkaNode(cast("Any", None), cast("Any", container))
    if starts:
        node.restart()
    else:
        with pytest.raises(ClusterError, match=r"the block device of the node k2 is gone, because .* k2-device ended"):
            node.restart()
    assert starts == len(calls)

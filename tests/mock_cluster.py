"""librdkafka's mock cluster in a separate process, with brokers that can be stopped.

Kafka 4's Java client doesn't work with librdkafka's mock cluster, because it reads a throttle time of many minutes in
the mock cluster's response to ApiVersions v4 (librdkafka 2.16.0). The process calls librdkafka through ctypes, because
the Python binding can start a mock cluster but can't stop its brokers.
"""

import contextlib
import ctypes
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import confluent_kafka

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters.conformance.bench import PARTITIONS

BROKERS = 3
_VOID = {"group_initial_rebalance_delay_ms"}  # functions of rdkafka_mock.h that return nothing


class MockCluster:
    """Context manager of librdkafka's mock cluster, which runs in a separate process."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "aftershock.tests.mock_cluster"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.bootstrap = str(self._reply())
        self._request("group_initial_rebalance_delay_ms", 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def create(self, topic: str, partitions: int = PARTITIONS) -> None:
        self._request("topic_create", topic, partitions, BROKERS)

    def down(self) -> None:
        for broker in range(1, BROKERS + 1):
            self._request("broker_set_down", broker)

    def up(self) -> None:
        for broker in range(1, BROKERS + 1):
            self._request("broker_set_up", broker)

    def _request(self, function: str, *arguments: str | int) -> None:
        if self._process.stdin is None:
            return
        self._process.stdin.write(json.dumps([function, *arguments]).encode() + b"\n")
        self._process.stdin.flush()
        if status := self._reply():
            raise WorkloadError(f"librdkafka's mock cluster rejected {function}{arguments}: status {status}")

    def _reply(self) -> Any:
        line = self._process.stdout.readline() if self._process.stdout else b""
        if not line:
            raise WorkloadError("librdkafka's mock cluster has ended; is confluent-kafka installed from its wheel?")
        return json.loads(line)


def library() -> ctypes.CDLL:
    wheel = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    return ctypes.CDLL(str(next(wheel.glob("librdkafka-*.so*"))))


def _reply(answer: str | int) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _serve() -> None:
    kafka = library()
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(kafka, name).restype = ctypes.c_void_p
    kafka.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    handle = kafka.rd_kafka_new(0, ctypes.c_void_p(kafka.rd_kafka_conf_new()), None, 0)
    cluster = ctypes.c_void_p(kafka.rd_kafka_mock_cluster_new(ctypes.c_void_p(handle), BROKERS))
    _reply(kafka.rd_kafka_mock_cluster_bootstraps(cluster).decode())
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        function = getattr(kafka, f"rd_kafka_mock_{name}")
        function.restype = None if name in _VOID else ctypes.c_int
        converted = [argument.encode() if isinstance(argument, str) else argument for argument in arguments]
        _reply(function(cluster, *converted) or 0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the starting process
    with contextlib.suppress(BrokenPipeError):
        _serve()

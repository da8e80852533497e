from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from aftershock.tests.mock_cluster import MockCluster
from aftershock.workloads.adapters.conformance.bench import PARTITIONS
from aftershock.workloads.load.assignment import CommitAssignment, ConsumeAssignment, ProduceAssignment
from aftershock.workloads.load.events import run_clock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Bench:
    """A fake run: directories, clock, and assignments that differ only in the fields that a test gives."""

    def __init__(self, home: Path, bootstrap: str, topic: str) -> None:
        self.spool, self.events, self.logs = home / "spool", home / "events.jsonl", home / "logs"
        self.outcomes, self.log = home / "outcomes", home / "log"
        self.topic, self.origin_ns = topic, time.monotonic_ns()
        self.now_us = run_clock(self.origin_ns)
        self._common: dict[str, Any] = {
            "run_id": "run-1",
            "origin_ns": self.origin_ns,
            "workload": "orders",
            "arm": "baseline",
            "topic": topic,
            "topic_id": f"id-of-{topic}",
            "partitions": PARTITIONS,
            "bootstrap": bootstrap,
            "rack": "a",
            "spool": self.spool,
            "events": self.events,
        }

    def produce(self, **changes: Any) -> ProduceAssignment:
        plain = {"worker": "p0", "producer_id": 0, "rate_per_s": 200, "record_size_min": 50, "record_size_max": 90}
        return ProduceAssignment(**(self._common | plain | {"seed": 7} | changes))

    def consume(self, **changes: Any) -> ConsumeAssignment:
        return ConsumeAssignment(**(self._common | {"worker": "c0"} | changes))

    def commit(self, **changes: Any) -> CommitAssignment:
        plain = {"worker": "o0", "producer_id": 0, "rate_per_s": 200, "groups": 5}
        return CommitAssignment(**(self._common | plain | changes))


@pytest.fixture(scope="session")
def mock_cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    """For tests without a cluster."""
    return Bench(tmp_path, "127.0.0.1:1", request.node.originalname)


@pytest.fixture
def live_bench(tmp_path: Path, request: pytest.FixtureRequest, mock_cluster: MockCluster) -> Bench:
    """For tests that talk to the mock cluster; each test has its own topic."""
    topic = request.node.originalname
    mock_cluster.create(topic, PARTITIONS)
    return Bench(tmp_path, mock_cluster.bootstrap, topic)

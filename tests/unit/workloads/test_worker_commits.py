"""A committing worker as its runner sees it: the conversation of ``test_worker.py``, with a ``CommitAssignment``."""

import json
from collections.abc import Iterator

import pytest

from aftershock.tests.mock_cluster import MockCluster
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.tests.unit.workloads.load.test_worker import Talk, events
from aftershock.workloads.load.assignment import CommitAssignment

TOPIC = "t"


@pytest.fixture(params=["confluent", "reference"])
def told(request: pytest.FixtureRequest, bench: Bench, mock_cluster: MockCluster) -> Iterator[CommitAssignment]:
    """An assignment to either client, and a cluster that it can talk to."""
    if request.param == "confluent":
        topic = "commits-of-a-worker"
        mock_cluster.create(topic, 4)
        yield bench.commit(client="confluent", bootstrap=mock_cluster.bootstrap, topic=topic)
        return
    with ScriptedBroker(nodes=3) as broker:
        broker.create(TOPIC, partitions=4)
        yield bench.commit(client="reference", bootstrap=broker.bootstrap, topic=TOPIC)


def test_the_whole_conversation(told: CommitAssignment, bench: Bench) -> None:
    """Ready, go, progress, stop, quit: each answered as documented, the counters written, exit status 0."""
    worker = Talk(told.model_dump_json())
    try:
        assert {"node_disconnected", "request_timed_out"} <= {*worker.hear("ready")["reports"]}
        start_us = bench.now_us()
        worker.send(json.dumps({"do": "go", "start_us": start_us}))
        progress = worker.hear("progress")
        assert {"sent", "ok", "failed", "in_doubt", "late_p99_us", "window", "traffic"} <= progress.keys()
        worker.send(json.dumps({"do": "stop", "at_us": start_us + 1_000_000}))
        assert {"say": "done", "did": "stop", "unreported": 0} == worker.hear("done")
        worker.send('{"do": "quit"}')
        assert {"say": "done", "did": "quit"} == worker.hear("done")
        assert worker.process.wait(20) == 0
    finally:
        worker.end()
    (counters,) = [line["counters"] for line in events(bench) if line["event"] == "counters"]
    assert (200, 200) == (counters["sent"], counters["ok"])

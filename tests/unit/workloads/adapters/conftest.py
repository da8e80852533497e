import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aftershock.tests.mock_cluster import MockCluster
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.adapters.steps import TOPIC
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.adapters import exec as exec_link
from aftershock.workloads.adapters.conformance.bench import PARTITIONS
from aftershock.workloads.adapters.exec_child import Child

_NUMBERS = itertools.count()


@pytest.fixture
def live_bench(tmp_path: Path, request: pytest.FixtureRequest, mock_cluster: MockCluster) -> Bench:
    """For tests that talk to the mock cluster; each test case has its own topic."""
    topic = f"{request.node.originalname}-{next(_NUMBERS)}"
    mock_cluster.create(topic, PARTITIONS)
    return Bench(tmp_path, mock_cluster.bootstrap, topic)


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=3, racks=["a", "b", "c"]) as broker:
        yield broker


@pytest.fixture
def here(broker: ScriptedBroker, bench: Bench) -> Bench:
    """A bench whose assignments point to the scripted broker, which has one topic of four partitions."""
    broker.reset()
    broker.create(TOPIC, partitions=4)
    bench._common |= {"bootstrap": broker.bootstrap, "topic": TOPIC, "client": "reference"}
    return bench


@pytest.fixture(autouse=True)
def no_program_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill the clients that a test has started; outside of tests they end with their worker."""
    children: list[Child] = []

    def start(*args: Any) -> Child:
        children.append(Child(*args))
        return children[-1]

    monkeypatch.setattr(exec_link, "Child", start)
    yield
    for child in children:
        child.kill()

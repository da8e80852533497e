"""A scripted cluster of two nodes, empty at the start of each test."""

from collections.abc import Iterator

import pytest

from aftershock.tests.scripted_broker import ScriptedBroker


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: ScriptedBroker) -> Iterator[ScriptedBroker]:
    yield running
    running.clear()

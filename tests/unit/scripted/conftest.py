import contextlib
from collections.abc import Iterator

import pytest

from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.scripted.client import TIMEOUT_S, Client, Dial
from aftershock.workloads.kafka.wire.connection import Connection


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=3, racks=["a", "b", "c"]) as started:
        yield started


@pytest.fixture
def broker(running: ScriptedBroker) -> ScriptedBroker:
    running.reset()
    return running


@pytest.fixture
def dial() -> Iterator[Dial]:
    """Connects to a node of a broker; all connections are closed afterwards."""
    with contextlib.ExitStack() as stack:

        def connect(broker: ScriptedBroker, node: int = 1) -> Client:
            return Client(stack.enter_context(Connection(broker.addresses[node], TIMEOUT_S)))

        yield connect
